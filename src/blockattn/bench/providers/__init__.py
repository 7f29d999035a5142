"""The attentions that are compared: ours, and what a user would take instead, a module for each family.

A provider says what keeps it from a workload (`obstacle`, with how to install it) and is made ready for a batch by
`prepare`, outside the timing. It brings q, k, v into the layout that it wants (`enter`), attends, and gives its output back
as rows (`leave`), so that one gate can check all. Some serve full tiles only: `rows` are those that they compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import torch
from torch import Tensor

from ..batch import OPERATIONS, Batch


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
    tensors, one, or a layer's input and weights), and part: its gradients as those of q, k and v, or of a layer's input;
    enter: `[T, heads, D]` rows to that layout; leave: back to `[R, heads, D]`; rows: `[R]` int64, the batch's rows that it
    computes (None: all T); layout: providers with the same word share the tensors that `enter` made.
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
    """Every provider of one of the OPERATIONS, ours first."""
    from . import flash, flash4, flex, layer, ours, rotary, sdpa, xformers

    if operation != "attention":
        return {"rotary": rotary, "layer": layer}[operation].PROVIDERS
    return (*ours.PROVIDERS, *flash.PROVIDERS, *sdpa.PROVIDERS, *flex.PROVIDERS, *flash4.PROVIDERS, *xformers.PROVIDERS)


def chosen(names: Collection[str] | None, operations: Iterable[str] = OPERATIONS[:1]) -> dict[str, tuple[Provider, ...]]:
    """The providers of each operation with these names, in their usual order; all for None.

    A name may be that of another operation; an operation without any of the names is left out.
    """
    found = {operation: all_providers(operation) for operation in operations}
    if names is None:
        return found
    known = [provider.name for operation in OPERATIONS for provider in all_providers(operation)]
    for name in names:
        if name not in known:
            raise ValueError(f"provider must be one of {', '.join(known)}, got {name!r}")
    kept = {operation: tuple(p for p in some if p.name in names) for operation, some in found.items()}
    if not any(kept.values()):
        raise ValueError(f"provider must be one that computes {' or '.join(found)}, got {', '.join(names)}")
    return {operation: some for operation, some in kept.items() if some}


def needs_cuda(batch: Batch) -> str | None:
    """The obstacle that all GPU libraries share."""
    return None if batch.device.type == "cuda" and torch.version.hip is None else "needs an NVIDIA GPU"


def graph_obstacle(batch: Batch) -> str | None:
    """Of what torch.compile made: replays of a graph with it end in an illegal memory access on torch 2.11, after which
    nothing else can be measured."""
    replayed = batch.workload.graph and batch.device.type == "cuda"
    return "compiled by torch, which cannot be replayed from a CUDA graph" if replayed else None
