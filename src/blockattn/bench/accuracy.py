"""How far each provider is from the fp64 oracle: RMS and largest error of o, dq, dk and dv, the same inputs for all.

`blockattn accuracy` runs several seeds; the RMS is over all of them, the largest error is the largest of any.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from . import gate, measure
from .batch import Batch, make_batch
from .providers import Provider
from .workloads import Workload

WORKLOADS = tuple(Workload(f"accuracy-D{d}", 8, 1024, 0.7, head_dim=d) for d in (64, 128))


@dataclasses.dataclass(frozen=True)
class Error:
    """A provider's error on a workload: `rms` and `largest` of each of o, dq, dk and dv; or the reason why there is none."""

    workload: str
    spec: str
    provider: str
    reason: str = ""
    rms: dict[str, float] = dataclasses.field(default_factory=dict)
    largest: dict[str, float] = dataclasses.field(default_factory=dict)


def accuracy(
    workload: Workload, providers: Iterable[Provider], seeds: int, device: torch.device, advance: Callable[[str, int], None]
) -> list[Error]:
    """The errors of every provider on all tiles that it computes; the first thing that goes wrong ends a provider's part."""
    providers = tuple(providers)
    found: dict[str, list[dict[str, Tensor]]] = {provider.name: [] for provider in providers}
    reasons: dict[str, str] = {}
    for seed in range(seeds):
        batch = make_batch(workload, device, seed=seed)
        truth = gate.sample(batch, torch.arange(len(batch.lengths)))
        for provider in providers:
            advance(f"{workload.name}: {provider.name}, seed {seed}", 1)
            if provider.name in reasons:
                continue
            try:
                reason = provider.obstacle(batch)
                if not reason:
                    found[provider.name].append(_errors(provider, batch, truth))
            except Exception as error:
                reason = measure.first_line(error)
            if reason:
                reasons[provider.name] = reason
    return [_summary(workload, provider, found[provider.name], reasons.get(provider.name, "")) for provider in providers]


def _summary(workload: Workload, provider: Provider, errors: list[dict[str, Tensor]], reason: str) -> Error:
    if reason:
        return Error(workload.name, workload.spec, provider.name, reason)
    rms = {name: float(torch.stack([x[name].square().mean() for x in errors]).mean().sqrt()) for name in gate.RESULTS}
    largest = {name: float(torch.stack([x[name].abs().max() for x in errors]).max()) for name in gate.RESULTS}
    return Error(workload.name, workload.spec, provider.name, "", rms, largest)


def write(path: pathlib.Path, machine: dict[str, str], seeds: int, errors: list[Error]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = dict(machine=machine, seeds=seeds, errors=[dataclasses.asdict(error) for error in errors])
    path.write_text(json.dumps(values, indent=1) + "\n")


def _errors(provider: Provider, batch: Batch, truth: gate.Sample) -> dict[str, Tensor]:
    """Result minus truth in fp64; a ValueError when a result is not finite."""
    prepared = provider.prepare(batch)
    leaves = measure.enter(prepared, batch)
    measure.poison(leaves)
    results = measure.run_once(prepared, leaves)
    wrong = gate.not_finite(results)
    if wrong:
        raise ValueError("; ".join(wrong))
    restricted, results = measure.restrict(truth, prepared, results)
    return {name: results[name].double() - restricted.truth[name] for name in gate.RESULTS}
