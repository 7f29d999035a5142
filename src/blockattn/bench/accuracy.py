"""How far each provider is from the fp64 oracle: RMS and largest error of o, dq, dk and dv, the same inputs for all.

`blockattn accuracy` runs several seeds; the RMS is over all of them, the largest error is the largest of any.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable

import torch

from . import gate, measure
from .batch import make_batch
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
    workload: Workload, providers: Iterable[Provider], seeds: int, device: torch.device, advance: Callable[[str], None]
) -> list[Error]:
    """The errors of every provider on all tiles that it computes."""
    squares, largest, reasons = {}, {}, {}
    for seed in range(seeds):
        batch = make_batch(workload, device, seed=seed)
        truth = gate.sample(batch, torch.arange(len(batch.lengths)))
        for provider in providers:
            advance(f"{workload.name}: {provider.name}, seed {seed}")
            reason = provider.obstacle(batch)
            try:
                errors = {} if reason else _errors(provider, batch, truth)
            except Exception as error:  # a peer may raise anything; what it was stands in the table
                reason, errors = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300], {}
            reasons[provider.name] = reason or ""
            for name, x in errors.items():
                squares.setdefault(provider.name, {}).setdefault(name, []).append(x.square().mean())
                found = largest.setdefault(provider.name, {})
                found[name] = max(found.get(name, 0.0), float(x.abs().max()))
    return [
        Error(
            workload.name,
            workload.spec,
            provider.name,
            reasons[provider.name],
            {name: float(torch.stack(x).mean().sqrt()) for name, x in squares.get(provider.name, {}).items()},
            largest.get(provider.name, {}),
        )
        for provider in providers
    ]


def write(path: pathlib.Path, machine: dict[str, str], seeds: int, errors: list[Error]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = dict(machine=machine, seeds=seeds, errors=[dataclasses.asdict(error) for error in errors])
    path.write_text(json.dumps(values, indent=1) + "\n")


def _errors(provider: Provider, batch, truth: gate.Sample) -> dict[str, torch.Tensor]:
    prepared = provider.prepare(batch)
    results = measure.run_once(prepared, measure.enter(prepared, batch))
    restricted, results = measure.restrict(truth, prepared, results)
    return {name: results[name].double() - restricted.truth[name] for name in gate.RESULTS}
