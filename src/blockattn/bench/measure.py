"""Times every provider on a workload: each is gated, then they take turns, so that heat and clocks hit all alike.

Compilation, warm-up and what is built once a batch are outside the times. Providers with the same layout share its tensors.
A workload marked `graph` is replayed from a CUDA graph over several sets of inputs, together larger than the L2 cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from . import batch as batches
from . import gate, timer
from .batch import Batch, make_batch
from .limit import Limit
from .providers import Prepared, Provider
from .result import DIRECTIONS, Row, with_speedups
from .workloads import Workload

ROUNDS = 5
SAMPLED_TILES = 24
L2_FACTOR = 3  # a rotation of inputs is this many times the L2 cache


@dataclasses.dataclass(frozen=True, eq=False)
class Leaves:
    """q, k, v, which require gradients, and do, in one provider's layout."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v


@dataclasses.dataclass
class Entrant:
    """A provider that passed the gate, and its call, times and memory in each direction."""

    provider: Provider
    prepared: Prepared
    calls: dict[str, timer.Call]
    calls_at_once: int
    setup_ms: float
    kept_bytes: int
    peak_bytes: dict[str, int | None]
    times: dict[str, list[float]]


def measure(
    workload: Workload, providers: Iterable[Provider], directions: Iterable[str], limit: Limit | None,
    device: torch.device, advance: Callable[[str], None],
) -> list[Row]:  # fmt: skip
    """Rows for every provider and direction; `advance(text)` is told of each step. Without a GPU the limit is None."""
    stream = torch.cuda.Stream() if device.type == "cuda" else None
    with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
        batch = make_batch(workload, device)
        sampled = gate.sample(batch, sampled_tiles(batch))
        copies = _copies(batch)
        layouts: dict[str, list[Leaves]] = {}
        entrants, rows = [], []
        for provider in providers:
            advance(f"{workload.name}: {provider.name} against the oracle")
            entrant = _enter(provider, batch, sampled, layouts, copies, tuple(directions), stream)
            if isinstance(entrant, Entrant):
                entrants.append(entrant)
            else:
                status, reason = entrant
                rows += [_row(batch, provider, d, status=status, reason=reason) for d in directions]
        for turn in range(ROUNDS):
            for entrant in entrants:
                advance(f"{workload.name}: {entrant.provider.name}, turn {turn + 1} of {ROUNDS}")
                for direction in directions:
                    found = timer.samples(entrant.calls[direction], device)
                    entrant.times[direction] += [ms / entrant.calls_at_once for ms in found]
        rows += [_timed_row(batch, entrant, direction, limit) for entrant in entrants for direction in directions]
    order = {provider.name: place for place, provider in enumerate(providers)}
    return with_speedups(sorted(rows, key=lambda row: (order[row.provider], DIRECTIONS.index(row.direction))))


def sampled_tiles(batch: Batch) -> Tensor:
    """Numbers of tiles for the gate: some of all, and some full ones, which are all that some providers compute."""
    everything = torch.arange(len(batch.lengths))
    return torch.cat([gate.spread(everything, SAMPLED_TILES), gate.spread(batch.full_tiles, SAMPLED_TILES)]).unique()


def run_once(prepared: Prepared, leaves: Leaves) -> dict[str, Tensor]:
    """o, dq, dk and dv of a provider, as rows."""
    o = prepared.attend(*leaves.inputs)
    gradients = torch.autograd.grad(o, leaves.inputs, leaves.do)
    results = dict(zip(gate.RESULTS, (o.detach(), *gradients), strict=True))
    return {name: prepared.leave(x) for name, x in results.items()}


def enter(prepared: Prepared, batch: Batch) -> Leaves:
    """The batch's tensors in a provider's layout, copied: q, k and v as leaves of their own."""
    q, k, v, do = (prepared.enter(x.clone()) for x in (batch.q, batch.k, batch.v, batch.do))
    return Leaves(*(x.requires_grad_() for x in (q, k, v)), do)


def _enter(
    provider: Provider, batch: Batch, sampled: gate.Sample, layouts: dict, copies: int, directions: tuple, stream
) -> Entrant | tuple[str, str]:
    """The provider ready to be timed, or the status and reason why not."""
    obstacle = provider.obstacle(batch)
    if obstacle:
        return "absent", obstacle
    try:
        prepared, setup_ms = _prepare(provider, batch)
        sets = layouts.get(prepared.layout)
        if sets is None:
            sets = layouts[prepared.layout] = [enter(prepared, batch) for _ in range(copies)]
        faults = gate.faults(*restrict(sampled, prepared, run_once(prepared, sets[0])))
        if faults:
            return "wrong", "; ".join(faults)
        calls = {d: [_call(prepared, leaves, d) for leaves in sets] for d in directions}
        peaks = {d: _peak_bytes(calls[d][0], batch.device) for d in directions}
        kept = _kept_bytes(prepared, sets[0])
        ready = {d: timer.captured(calls[d], stream) if batch.workload.graph and stream else calls[d][0] for d in directions}
    except Exception as error:  # a peer may raise anything; what it was stands in the table
        lines = str(error).strip().splitlines() or [""]
        return "failed", f"{type(error).__name__}: {lines[0]}"[:300]
    at_once = len(sets) if batch.workload.graph and stream else 1
    return Entrant(provider, prepared, ready, at_once, setup_ms, kept, peaks, {d: [] for d in directions})


def _prepare(provider: Provider, batch: Batch) -> tuple[Prepared, float]:
    """The second time is timed, when everything is loaded and compiled."""
    provider.prepare(batch)
    _synchronize(batch.device)
    start = time.perf_counter()
    prepared = provider.prepare(batch)
    _synchronize(batch.device)
    return prepared, (time.perf_counter() - start) * 1e3


def restrict(sampled: gate.Sample, prepared: Prepared, results: dict[str, Tensor]) -> tuple[gate.Sample, dict[str, Tensor]]:
    """The sample without tiles that the provider does not compute, and its results there."""
    if prepared.rows is None:
        return sampled, {name: x[sampled.rows] for name, x in results.items()}
    place = torch.searchsorted(prepared.rows, sampled.rows).clamp(max=len(prepared.rows) - 1)
    has = prepared.rows[place] == sampled.rows
    lengths = tuple(len(part) for part in has.split(sampled.lengths) if part.all())
    kept = gate.Sample(
        sampled.rows[has],
        lengths,
        {name: x[has] for name, x in sampled.truth.items()},
        {name: x[has] for name, x in sampled.loop.items()},
    )
    return kept, {name: x[place[has]] for name, x in results.items()}


def _call(prepared: Prepared, leaves: Leaves, direction: str) -> timer.Call:
    """A call without arguments that computes one direction."""
    attend, inputs, do = prepared.attend, leaves.inputs, leaves.do
    if direction == "forward":
        return torch.no_grad()(lambda: attend(*inputs))
    if direction == "both":
        return lambda: torch.autograd.grad(attend(*inputs), inputs, do)
    o = attend(*inputs)
    return lambda: torch.autograd.grad(o, inputs, do, retain_graph=True)


def _peak_bytes(call: timer.Call, device: torch.device) -> int | None:
    """GPU memory that a call allocates beyond what there was, at most."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _kept_bytes(prepared: Prepared, leaves: Leaves) -> int:
    """Memory that autograd keeps between forward and backward, inputs included."""
    kept = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        prepared.attend(*leaves.inputs)
    return sum(kept.values())


def _copies(batch: Batch) -> int:
    """Sets of inputs to rotate through; one is enough where the L2 cache is cleared between calls."""
    if not batch.workload.graph or batch.device.type != "cuda":
        return 1
    nbytes = sum(x.nbytes for x in (batch.q, batch.k, batch.v, batch.do))
    return 1 + L2_FACTOR * torch.cuda.get_device_properties(batch.device).L2_cache_size // nbytes


def _row(batch: Batch, provider: Provider, direction: str, **fields) -> Row:
    workload = batch.workload
    return Row(workload.name, workload.spec, "attention", provider.name, direction, **fields)


def _timed_row(batch: Batch, entrant: Entrant, direction: str, limit: Limit | None) -> Row:
    times = sorted(entrant.times[direction])
    ms = statistics.median(times)
    prepared, workload = entrant.prepared, batch.workload
    lengths = batch.lengths if prepared.rows is None else batch.lengths[batch.full_tiles]
    rows = int(lengths.sum())
    parts = ("forward", "backward") if direction == "both" else (direction,)
    nbytes = {part: batches.nbytes(workload, rows, part) for part in parts}
    least = sum(limit.ms(n, part) for part, n in nbytes.items()) if limit else None
    return _row(
        batch, entrant.provider, direction, status="timed", rows=rows, ms=ms, ms_p20=times[len(times) // 5],
        ms_p80=times[len(times) * 4 // 5], samples=len(times), tbs=sum(nbytes.values()) / ms * 1e-9,
        share=least / ms if least else None, tflops=batches.flops(workload, lengths, direction) / ms * 1e-9,
        peak_bytes=entrant.peak_bytes[direction], kept_bytes=entrant.kept_bytes, setup_ms=entrant.setup_ms,
    )  # fmt: skip


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
