"""Times every provider on a workload: each is gated, then they take turns, so that heat and clocks hit all alike.

Compilation, warm-up and what is built once a batch are outside the times. Providers with the same layout share its tensors.
A workload marked `graph` is replayed from a CUDA graph over several sets of inputs, together larger than the L2 cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from . import batch as batches
from . import gate, timer
from .batch import Batch, make_batch
from .limit import Limit
from .providers import Prepared, Provider
from .result import Row, with_speedups
from .workloads import Workload

ROUNDS = 5
SAMPLED_TILES = 24
L2_FACTOR = 3  # a rotation of inputs is this many times the L2 cache


class LostDevice(RuntimeError):
    """A provider broke the GPU's context, so that nothing can be measured any more in this process."""


@dataclasses.dataclass(frozen=True, eq=False)
class Leaves:
    """What a provider's attend takes, which requires gradients, and do, in its layout."""

    inputs: tuple[Tensor, ...]
    do: Tensor


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
    device: torch.device, advance: Callable[[str, int], None], operation: str = "attention",
) -> list[Row]:  # fmt: skip
    """Rows for every provider and direction; `advance(text, steps)` is told of each. Without a GPU the limit is None."""
    providers, directions = tuple(providers), tuple(directions)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # what is compiled is compiled for a workload's shapes, and dynamo gives up after a few
    # A backward is repeated on one graph, whose buffers a compiled backward must then not take for its own.
    with functorch_config.patch(donated_buffer=False), _stream_for(workload, device) as stream:
        batch = make_batch(workload, device, operation=operation)
        sampled = gate.sample(batch, sampled_tiles(batch))
        copies = _copies(batch)
        layouts: dict[str, list[Leaves]] = {}
        entrants: dict[str, Entrant | tuple[str, str]] = {}
        for provider in providers:
            advance(f"{workload.name}: {provider.name} against the oracle", 1)
            entrants[provider.name] = _enter(provider, batch, sampled, layouts, copies, directions, stream)
        for turn in range(ROUNDS):
            for name, entrant in entrants.items():
                advance(f"{workload.name}: {name}, turn {turn + 1} of {ROUNDS}", 1)
                if isinstance(entrant, Entrant):
                    entrants[name] = _take_turn(entrant, directions, device)
        rows = []
        for provider, entrant in zip(providers, entrants.values(), strict=True):
            for direction in directions:
                if isinstance(entrant, Entrant):
                    rows.append(_timed_row(batch, entrant, direction, limit))
                else:
                    rows.append(_row(batch, provider, direction, status=entrant[0], reason=entrant[1]))
    return with_speedups(rows)


@contextlib.contextmanager
def _stream_for(workload: Workload, device: torch.device) -> Iterator[torch.cuda.Stream | None]:
    """A side stream where a CUDA graph will be captured; at the end, cached memory is given back for the next workload."""
    if device.type != "cuda":
        yield None
        return
    try:
        stream = torch.cuda.Stream() if workload.graph else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            yield stream
    finally:
        if not lost(device):
            torch.cuda.empty_cache()


def lost(device: torch.device) -> bool:
    """Whether an earlier call has broken the GPU's context: then waiting for the GPU raises, again and again."""
    try:
        _synchronize(device)
    except RuntimeError:
        return True
    return False


def _take_turn(entrant: Entrant, directions: tuple[str, ...], device: torch.device) -> Entrant | tuple[str, str]:
    """Time each direction once more; a provider that raises now has failed."""
    try:
        for direction in directions:
            found = timer.samples(entrant.calls[direction], device)
            entrant.times[direction] += [ms / entrant.calls_at_once for ms in found]
    except Exception as error:
        return _failure(entrant.provider, error, device)
    return entrant


def _failure(provider: Provider, error: Exception, device: torch.device) -> tuple[str, str]:
    """The status and reason of a provider that raised; LostDevice when nothing after it can run."""
    if lost(device):
        raise LostDevice(f"{provider.name}: {first_line(error)}") from error
    return "failed", first_line(error)


def first_line(error: Exception) -> str:
    """What a peer raised, on one line; it may raise anything, and that stands in the table."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]


def sampled_tiles(batch: Batch) -> Tensor:
    """Numbers of tiles for the gate: some of all, some full ones, which are all that some providers take, and some short."""
    short = (batch.lengths < batch.workload.block_size).nonzero().squeeze(1)
    kinds = (torch.arange(len(batch.lengths)), batch.full_tiles, short)
    return torch.cat([gate.spread(kind, SAMPLED_TILES) for kind in kinds]).unique()


def run_once(prepared: Prepared, leaves: Leaves, names: Iterable[str] = gate.RESULTS) -> dict[str, Tensor]:
    """o and the gradients of a provider, which have these names, as rows."""
    o = prepared.attend(*leaves.inputs)
    gradients = prepared.part(*torch.autograd.grad(o, leaves.inputs, leaves.do))
    results = dict(zip(names, (o.detach(), *gradients), strict=True))
    return {name: prepared.leave(x) for name, x in results.items()}


def enter(prepared: Prepared, batch: Batch) -> Leaves:
    """The batch's tensors in a provider's layout, copied: leaves of their own."""
    q, k, v, do = (prepared.enter(x.clone()) for x in (batch.q, batch.k, batch.v, batch.do))
    return Leaves(tuple(x.requires_grad_() for x in prepared.join(q, k, v)), do)


def _enter(
    provider: Provider, batch: Batch, sampled: gate.Sample, layouts: dict, copies: int, directions: tuple, stream
) -> Entrant | tuple[str, str]:
    """The provider ready to be timed, or the status and reason why not."""
    try:
        obstacle = provider.obstacle(batch)
        if obstacle:
            return "absent", obstacle
        prepared, setup_ms = _prepare(provider, batch)
        sets = layouts.get(prepared.layout)
        if sets is None:
            sets = layouts[prepared.layout] = [enter(prepared, batch) for _ in range(copies)]
        poison(sets[0])
        results = run_once(prepared, sets[0], sampled.truth)
        faults = gate.not_finite(results) or gate.faults(*restrict(sampled, prepared, results))
        if faults:
            return "wrong", "; ".join(faults)
        calls = {d: [_call(prepared, leaves, d) for leaves in sets] for d in directions}
        peaks = {d: _peak_bytes(calls[d][0], batch.device) for d in directions}
        kept = _kept_bytes(prepared, sets[0])
        in_graph = batch.workload.graph and stream is not None
        ready = {d: timer.captured(calls[d], stream) if in_graph else calls[d][0] for d in directions}
        _synchronize(batch.device)  # what breaks the GPU's context is then known by name
    except Exception as error:
        return _failure(provider, error, batch.device)
    return Entrant(
        provider, prepared, ready, len(sets) if in_graph else 1, setup_ms, kept, peaks, {d: [] for d in directions}
    )


def poison(leaves: Leaves) -> None:
    """Leave NaN in the memory that the next outputs may get, so that what a provider does not write is seen."""
    freed = [torch.full_like(x, torch.nan) for x in (*leaves.inputs, leaves.do)]
    del freed


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
        sampled.block_size,
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
    """GPU memory that a call allocates beyond what there was, at most.

    Of several calls, since autograd's thread may drop a call's gradients only after the next has begun.
    """
    if device.type != "cuda":
        return None
    call()  # whatever is compiled or loaded now
    before, peaks = [], []
    for _ in range(3):
        torch.cuda.synchronize()
        time.sleep(2e-3)
        torch.cuda.reset_peak_memory_stats()
        before.append(torch.cuda.memory_allocated())
        call()
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated())
    return max(peaks) - min(before)


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
    nbytes = sum(x.nbytes for x in (batch.q, batch.do, *(batch.weights or (batch.k, batch.v))))
    return 1 + L2_FACTOR * torch.cuda.get_device_properties(batch.device).L2_cache_size // nbytes


def _row(batch: Batch, provider: Provider, direction: str, **fields) -> Row:
    workload = batch.workload
    return Row(workload.name, workload.spec, batch.operation, provider.name, direction, **fields)


def _timed_row(batch: Batch, entrant: Entrant, direction: str, limit: Limit | None) -> Row:
    times = sorted(entrant.times[direction])
    ms = statistics.median(times)
    prepared, workload = entrant.prepared, batch.workload
    lengths = batch.lengths if prepared.rows is None else batch.lengths[batch.full_tiles]
    rows = int(lengths.sum())
    tbs, share = (None, None) if batch.operation == "layer" else _streaming(batch, rows, direction, ms, limit)
    return _row(
        batch, entrant.provider, direction, status="timed", rows=rows, ms=ms, ms_p20=times[round(0.2 * (len(times) - 1))],
        ms_p80=times[round(0.8 * (len(times) - 1))], samples=len(times), tbs=tbs, share=share,
        tflops=batches.flops(workload, lengths, direction, batch.operation) / ms * 1e-9,
        peak_bytes=entrant.peak_bytes[direction], kept_bytes=entrant.kept_bytes, setup_ms=entrant.setup_ms,
    )  # fmt: skip


def _streaming(batch: Batch, rows: int, direction: str, ms: float, limit: Limit | None) -> tuple[float, float | None]:
    """TB/s of each tensor once, and the share of the limit."""
    parts = ("forward", "backward") if direction == "both" else (direction,)
    nbytes = {part: batches.nbytes(batch.workload, rows, part, rotary=batch.rotary is not None) for part in parts}
    share = sum(limit.ms(n, part) for part, n in nbytes.items()) / ms if limit else None
    return sum(nbytes.values()) / ms * 1e-9, share


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
