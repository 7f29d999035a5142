"""One task hands buffers to others: waits and arrivals of both directions, phases, turns of several consumers, counts.

All memory accesses are ordinary loads and stores, so that nothing but the barriers is judged.
"""

from __future__ import annotations

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from .hazard import Hazard, copy_by_pointers, pointers

TILES = 8


@triton.jit
def phase_of(i, NB: tl.constexpr):
    return (i // NB) & 1


@triton.jit
def handoff(
    x_ptr, out_ptr, N: tl.constexpr, NB: tl.constexpr,
    FULL_ARRIVE: tl.constexpr, FULL_WAIT: tl.constexpr, EMPTY_ARRIVE: tl.constexpr, EMPTY_WAIT: tl.constexpr,
):  # fmt: skip
    """A ring of buffers between two tasks, each wait and arrive of which can be missing."""
    ring = tlx.local_alloc((64, 64), tl.float32, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                if EMPTY_WAIT:
                    tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
                tlx.local_store(ring[i % NB], tl.load(pointers(x_ptr, i)))
                if FULL_ARRIVE:
                    tlx.barrier_arrive(full[i % NB])
        with tlx.async_task(num_warps=4):
            for i in range(N):
                if FULL_WAIT:
                    tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                tl.store(pointers(out_ptr, i), tlx.local_load(ring[i % NB]))
                if EMPTY_ARRIVE:
                    tlx.barrier_arrive(empty[i % NB])


@triton.jit
def phases(
    x_ptr, out_ptr, N: tl.constexpr, NB: tl.constexpr,
    PRODUCER_PHASE: tl.constexpr, PRODUCER_FLIPS: tl.constexpr, CONSUMER_PHASE: tl.constexpr, CONSUMER_FLIPS: tl.constexpr,
):  # fmt: skip
    """The phase that each side starts with, and whether it flips with every lap."""
    ring = tlx.local_alloc((64, 64), tl.float32, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.barrier_wait(empty[i % NB], (phase_of(i, NB) if PRODUCER_FLIPS else i * 0) ^ PRODUCER_PHASE)
                tlx.local_store(ring[i % NB], tl.load(pointers(x_ptr, i)))
                tlx.barrier_arrive(full[i % NB])
        with tlx.async_task(num_warps=4):
            for i in range(N):
                tlx.barrier_wait(full[i % NB], (phase_of(i, NB) if CONSUMER_FLIPS else i * 0) ^ CONSUMER_PHASE)
                tl.store(pointers(out_ptr, i), tlx.local_load(ring[i % NB]))
                tlx.barrier_arrive(empty[i % NB])


@triton.jit
def turns(x_ptr, out_ptr, N: tl.constexpr, NB: tl.constexpr, NC: tl.constexpr):
    """NC consumers take turns over NB buffers. The producer's arrivals follow one another, so that a consumer knows all up
    to its last tile's: it passes a wait too early only if that does not reach back a lap."""
    ring = tlx.local_alloc((64, 64), tl.float32, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
                tlx.local_store(ring[i % NB], tl.load(pointers(x_ptr, i)))
                tlx.barrier_arrive(full[i % NB])
        with tlx.async_task(num_warps=4, replicate=NC):
            for i in range(tlx.async_task_replica_id(), N, NC):
                tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                tl.store(pointers(out_ptr, i), tlx.local_load(ring[i % NB]))
                tlx.barrier_arrive(empty[i % NB])


@triton.jit
def counts(x_ptr, out_ptr, N: tl.constexpr, NB: tl.constexpr, COUNT: tl.constexpr, ARRIVALS: tl.constexpr):
    """Two consumers read every buffer, each arrives with ARRIVALS, and the barrier counts to COUNT."""
    ring = tlx.local_alloc((64, 64), tl.float32, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=COUNT)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
                tlx.local_store(ring[i % NB], tl.load(pointers(x_ptr, i)))
                tlx.barrier_arrive(full[i % NB])
        with tlx.async_task(num_warps=4, replicate=2):
            for i in range(N):
                tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                y = tlx.local_load(ring[i % NB])
                if tlx.async_task_replica_id() == i % 2:
                    tl.store(pointers(out_ptr, i), y)
                tlx.barrier_arrive(empty[i % NB], ARRIVALS)


@triton.jit
def warp_counts(
    x_ptr, out_ptr, N: tl.constexpr, NB: tl.constexpr, WARPS: tl.constexpr, ARRIVALS: tl.constexpr, NC: tl.constexpr
):
    """NC consumers of 4 warps arrive with every thread on barriers that count 32 WARPS ARRIVALS threads."""
    ring = tlx.local_alloc((64, 64), tl.float32, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_warp_barrier(NB, num_warps=WARPS, num_arrivals=ARRIVALS)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
                tlx.local_store(ring[i % NB], tl.load(pointers(x_ptr, i)))
                tlx.barrier_arrive(full[i % NB])
        with tlx.async_task(num_warps=4, replicate=NC):
            for i in range(N):
                tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                y = tlx.local_load(ring[i % NB])
                if tlx.async_task_replica_id() == i % NC:
                    tl.store(pointers(out_ptr, i), y)
                tlx.barrier_arrive(empty[i % NB])


@triton.jit
def pending(x_ptr, out_ptr, N: tl.constexpr, COUNT: tl.constexpr, ARRIVALS: tl.constexpr):
    """Nobody waits on a barrier, which ends with arrivals pending unless they fill its phases."""
    bar = tlx.alloc_barriers(1, arrive_count=COUNT)
    for i in range(N):
        tl.store(pointers(out_ptr, i), tl.load(pointers(x_ptr, i)))
    for _ in range(ARRIVALS):
        tlx.barrier_arrive(bar[0])


@triton.jit
def named(x_ptr, out_ptr, N: tl.constexpr, ARRIVE_THREADS: tl.constexpr, WAIT_THREADS: tl.constexpr, ARRIVES: tl.constexpr):
    """One handoff through a hardware barrier: 128 threads arrive, 128 wait, so its count is 256 on both sides."""
    buffers = tlx.local_alloc((64, 64), tl.float32, N)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.local_store(buffers[i], tl.load(pointers(x_ptr, i)))
            if ARRIVES:
                tlx.named_barrier_arrive(9, ARRIVE_THREADS)
        with tlx.async_task(num_warps=4):
            tlx.named_barrier_wait(9, WAIT_THREADS)
            for i in range(N):
                tl.store(pointers(out_ptr, i), tlx.local_load(buffers[i]))


@triton.jit
def ping_pong(
    x_ptr, out_ptr, N: tl.constexpr, FIRST_ARRIVES: tl.constexpr, SECOND_ARRIVES: tl.constexpr, SAME_BARRIER: tl.constexpr
):
    """Two tasks take turns in one buffer, by two named barriers that each arrives on for the other."""
    buffer = tlx.local_alloc((64, 64), tl.float32, 1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(0, N, 2):
                tlx.local_store(buffer[0], tl.load(pointers(x_ptr, i)))
                tl.store(pointers(out_ptr, i), tlx.local_load(buffer[0]))
                if FIRST_ARRIVES:
                    tlx.named_barrier_arrive(9, 256)
                tlx.named_barrier_wait(9 if SAME_BARRIER else 10, 256)
        with tlx.async_task(num_warps=4):
            for i in range(1, N, 2):
                tlx.named_barrier_wait(9, 256)
                tlx.local_store(buffer[0], tl.load(pointers(x_ptr, i)))
                tl.store(pointers(out_ptr, i), tlx.local_load(buffer[0]))
                if SECOND_ARRIVES:
                    tlx.named_barrier_arrive(10, 256)


_copy, _both = copy_by_pointers(TILES), (False, True)
HAZARDS = (
    Hazard(handoff, _copy, dict(FULL_ARRIVE=_both, FULL_WAIT=_both, EMPTY_ARRIVE=_both, EMPTY_WAIT=_both),
           constants=dict(N=TILES, NB=2)),
    Hazard(phases, _copy, dict(PRODUCER_PHASE=(0, 1), PRODUCER_FLIPS=_both, CONSUMER_PHASE=(0, 1), CONSUMER_FLIPS=_both),
           constants=dict(N=TILES, NB=2), archs=("sm_90",)),
    Hazard(turns, copy_by_pointers(12), dict(NB=(1, 2, 3, 4), NC=(1, 2, 3)), constants=dict(N=12)),
    Hazard(counts, _copy, dict(COUNT=(1, 2, 3, 4, 5), ARRIVALS=(1, 2)), constants=dict(N=TILES, NB=2), archs=("sm_90",)),
    Hazard(warp_counts, _copy, dict(WARPS=(2, 4, 8), ARRIVALS=(1, 2), NC=(1, 2)), constants=dict(N=TILES, NB=2),
           archs=("sm_90",)),
    Hazard(pending, copy_by_pointers(1), dict(COUNT=(1, 2, 3), ARRIVALS=(0, 1, 2, 3, 4)), constants=dict(N=1),
           archs=("sm_90",)),
    Hazard(named, copy_by_pointers(2), dict(ARRIVE_THREADS=(128, 256, 384), WAIT_THREADS=(128, 256, 384), ARRIVES=_both),
           constants=dict(N=2), archs=("sm_90",)),
    Hazard(ping_pong, _copy, dict(FIRST_ARRIVES=_both, SECOND_ARRIVES=_both, SAME_BARRIER=_both), constants=dict(N=TILES),
           archs=("sm_90",)),
)  # fmt: skip
