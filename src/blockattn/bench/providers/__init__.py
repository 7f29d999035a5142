"""The attentions that are compared: ours, and what a user would take instead, a module for each family.

A provider says what keeps it from a workload (`obstacle`, with how to install it) and is made ready for a batch by
`prepare`, outside the timing. It brings q, k, v into the layout that it wants (`enter`), attends, and gives its output back
as rows (`leave`), so that one gate can check all. Some serve full tiles only: `rows` are those that they compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor

from ..batch import Batch


def unchanged(x: Tensor) -> Tensor:
    """The layout that needs nothing."""
    return x


def apart(*tensors: Tensor) -> tuple[Tensor, ...]:
    """q, k and v as three tensors."""
    return tensors


@dataclasses.dataclass(frozen=True)
class Prepared:
    """An attention that is ready for a batch.

    attend: q, k, v in the provider's layout to o in it, differentiable; join: what attend takes, made of q, k and v (three
    tensors, or one), and part: its gradients as those of q, k and v; enter: `[T, heads, D]` rows to that layout; leave:
    back to `[R, heads, D]`; rows: `[R]` int64, the batch's rows that it computes (None: all T); layout: providers with the
    same word share the tensors that `enter` made.
    """

    attend: Callable[..., Tensor]
    enter: Callable[[Tensor], Tensor] = unchanged
    leave: Callable[[Tensor], Tensor] = unchanged
    rows: Tensor | None = None
    layout: str = "rows"
    join: Callable[..., tuple[Tensor, ...]] = apart
    part: Callable[..., tuple[Tensor, ...]] = apart


class Provider(Protocol):
    """One attention under a name; `about` says in a line what is called."""

    name: str
    about: str

    def obstacle(self, batch: Batch) -> str | None:
        """Why it cannot serve this batch on this machine, and what to install if that is all; None when it can."""

    def prepare(self, batch: Batch) -> Prepared:
        """Ready for the batch; what it builds once (tables, masks) is timed by itself."""


def all_providers(operation: str = "attention") -> tuple[Provider, ...]:
    """Every provider of an operation ("attention", or "rotary": q, k and v turned first), ours first."""
    from . import flash, flash4, flex, ours, rotary, sdpa, xformers

    if operation == "rotary":
        return rotary.PROVIDERS
    return (*ours.PROVIDERS, *flash.PROVIDERS, *sdpa.PROVIDERS, *flex.PROVIDERS, *flash4.PROVIDERS, *xformers.PROVIDERS)


def chosen(names: Iterable[str] | None) -> tuple[Provider, ...]:
    """The providers with these names, in their usual order; all for None."""
    found = all_providers()
    if names is None:
        return found
    known = {provider.name for provider in found}
    for name in names:
        if name not in known:
            raise ValueError(f"provider must be one of {', '.join(p.name for p in found)}, got {name!r}")
    return tuple(provider for provider in found if provider.name in set(names))


def needs_cuda(batch: Batch) -> str | None:
    """The obstacle that all GPU libraries share."""
    return None if batch.device.type == "cuda" and torch.version.hip is None else "needs an NVIDIA GPU"
