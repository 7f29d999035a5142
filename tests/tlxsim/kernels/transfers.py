"""Copies by TMA and by cp.async, and the proxy fence between ordinary stores and what reads them asynchronously."""

from __future__ import annotations

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from .handoff import phase_of
from .hazard import (
    Hazard,
    Launch,
    copy_by_descriptors,
    copy_by_pointers,
    copy_from_pointers,
    copy_to_pointers,
    pointers,
)  # fmt: skip

TILE_BYTES = 64 * 64 * 2
NOWHERE, BEFORE_STORE, BETWEEN, AFTER_ARRIVE, AFTER_WAIT = range(5)  # where the proxy fence stands


@triton.jit
def load_bytes(x_desc, out_ptr, N: tl.constexpr, NB: tl.constexpr, COPIES: tl.constexpr, BYTES: tl.constexpr):
    """COPIES tiles come on one barrier that expects BYTES: -1 for no arrival at all, 0 for an ordinary one."""
    ring = tlx.local_alloc((64, 64), tl.bfloat16, NB * COPIES)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
                if BYTES > 0:
                    tlx.barrier_expect_bytes(full[i % NB], BYTES)
                if BYTES == 0:
                    tlx.barrier_arrive(full[i % NB])
                for j in tl.static_range(COPIES):
                    row = (i * COPIES + j) * 64
                    tlx.async_descriptor_load(x_desc, ring[i % NB * COPIES + j], [row, 0], full[i % NB])
        with tlx.async_task(num_warps=4):
            for i in range(N):
                tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                for j in tl.static_range(COPIES):
                    y = tlx.local_load(ring[i % NB * COPIES + j])
                    tl.store(pointers(out_ptr, i * COPIES + j), y)
                tlx.barrier_arrive(empty[i % NB])


@triton.jit
def load_handoff(
    x_desc, out_ptr, N: tl.constexpr, NB: tl.constexpr,
    FULL_WAIT: tl.constexpr, EMPTY_WAIT: tl.constexpr, EMPTY_ARRIVE: tl.constexpr, EXPECT_FIRST: tl.constexpr,
):  # fmt: skip
    """A TMA ring with each wait missing; the bytes may be expected before or after the copy is issued."""
    ring = tlx.local_alloc((64, 64), tl.bfloat16, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                if EMPTY_WAIT:
                    tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
                if EXPECT_FIRST:
                    tlx.barrier_expect_bytes(full[i % NB], 64 * 64 * 2)
                tlx.async_descriptor_load(x_desc, ring[i % NB], [i * 64, 0], full[i % NB])
                if not EXPECT_FIRST:
                    tlx.barrier_expect_bytes(full[i % NB], 64 * 64 * 2)
        with tlx.async_task(num_warps=4):
            for i in range(N):
                if FULL_WAIT:
                    tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                tl.store(pointers(out_ptr, i), tlx.local_load(ring[i % NB]))
                if EMPTY_ARRIVE:
                    tlx.barrier_arrive(empty[i % NB])


@triton.jit
def load_turns(x_desc, out_ptr, N: tl.constexpr, NB: tl.constexpr, NC: tl.constexpr):
    """NC consumers take turns over NB buffers that TMA fills. Copies complete in any order: where NC does not divide NB, a
    consumer skips phases of a barrier, and nothing else tells it of them."""
    ring = tlx.local_alloc((64, 64), tl.bfloat16, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
                tlx.barrier_expect_bytes(full[i % NB], 64 * 64 * 2)
                tlx.async_descriptor_load(x_desc, ring[i % NB], [i * 64, 0], full[i % NB])
        with tlx.async_task(num_warps=4, replicate=NC):
            for i in range(tlx.async_task_replica_id(), N, NC):
                tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                tl.store(pointers(out_ptr, i), tlx.local_load(ring[i % NB]))
                tlx.barrier_arrive(empty[i % NB])


@triton.jit
def store_reuse(x_ptr, out_desc, N: tl.constexpr, NB: tl.constexpr, PENDING: tl.constexpr, DRAINS: tl.constexpr):
    """A task stores tiles by TMA from NB buffers, and fills one while PENDING stores may be in flight (-1: no wait)."""
    ring = tlx.local_alloc((64, 64), tl.bfloat16, NB)
    for i in range(N):
        if PENDING >= 0:
            tlx.async_descriptor_store_wait(PENDING)
        tlx.local_store(ring[i % NB], tl.load(pointers(x_ptr, i)))
        tlx.fence_async_shared()
        tlx.async_descriptor_store(out_desc, ring[i % NB], [i * 64, 0])
    if DRAINS:
        tlx.async_descriptor_store_wait(0)


@triton.jit
def pass_through(x_desc, out_desc, N: tl.constexpr, NB: tl.constexpr, STORE_WAIT: tl.constexpr, FREES: tl.constexpr):
    """Tiles come by TMA and leave by TMA from the same buffer; its release must come after the store's wait."""
    ring = tlx.local_alloc((64, 64), tl.bfloat16, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
                tlx.barrier_expect_bytes(full[i % NB], 64 * 64 * 2)
                tlx.async_descriptor_load(x_desc, ring[i % NB], [i * 64, 0], full[i % NB])
        with tlx.async_task(num_warps=4):
            for i in range(N):
                tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                tlx.async_descriptor_store(out_desc, ring[i % NB], [i * 64, 0])
                if STORE_WAIT == 1:
                    tlx.async_descriptor_store_wait(0)
                if FREES:
                    tlx.barrier_arrive(empty[i % NB])
                if STORE_WAIT == 2:
                    tlx.async_descriptor_store_wait(0)
            tlx.async_descriptor_store_wait(0)


@triton.jit
def store_fence(x_ptr, out_desc, N: tl.constexpr, NB: tl.constexpr, FENCE: tl.constexpr):
    """One task fills buffers with ordinary stores, another sends them off by TMA: where the proxy fence stands."""
    ring = tlx.local_alloc((64, 64), tl.bfloat16, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
                if FENCE == 1:
                    tlx.fence_async_shared()
                tlx.local_store(ring[i % NB], tl.load(pointers(x_ptr, i)))
                if FENCE == 2:
                    tlx.fence_async_shared()
                tlx.barrier_arrive(full[i % NB])
                if FENCE == 3:
                    tlx.fence_async_shared()
        with tlx.async_task(num_warps=4):
            for i in range(N):
                tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                if FENCE == 4:
                    tlx.fence_async_shared()
                tlx.async_descriptor_store(out_desc, ring[i % NB], [i * 64, 0])
                tlx.async_descriptor_store_wait(0)
                tlx.barrier_arrive(empty[i % NB])


@triton.jit
def async_groups(x_ptr, out_ptr, N: tl.constexpr, NB: tl.constexpr, PENDING: tl.constexpr, COMMITS: tl.constexpr):
    """cp.async loads NB - 1 tiles ahead; at most NB - 2 groups may be left in flight when a tile is read."""
    ring = tlx.local_alloc((64, 64), tl.float32, NB)
    for j in tl.static_range(NB - 1):
        tlx.async_load(pointers(x_ptr, j), ring[j])
        if COMMITS:
            tlx.async_load_commit_group()
    for i in range(N):
        if PENDING >= 0:
            tlx.async_load_wait_group(PENDING)
        tl.store(pointers(out_ptr, i), tlx.local_load(ring[i % NB]))
        ahead = i + NB - 1
        tlx.async_load(pointers(x_ptr, ahead), ring[ahead % NB], mask=ahead < N)
        if COMMITS:
            tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)


@triton.jit
def async_handoff(x_ptr, out_ptr, N: tl.constexpr, NB: tl.constexpr, GROUP_WAIT: tl.constexpr, EMPTY_WAIT: tl.constexpr):
    """One task loads with cp.async for another, and arrives after its group has come, or (GROUP_WAIT = 0) without a wait."""
    ring = tlx.local_alloc((64, 64), tl.float32, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                if EMPTY_WAIT:
                    tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
                tlx.async_load(pointers(x_ptr, i), ring[i % NB])
                tlx.async_load_commit_group()
                if GROUP_WAIT:
                    tlx.async_load_wait_group(0)
                tlx.barrier_arrive(full[i % NB])
            tlx.async_load_wait_group(0)
        with tlx.async_task(num_warps=4):
            for i in range(N):
                tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                tl.store(pointers(out_ptr, i), tlx.local_load(ring[i % NB]))
                tlx.barrier_arrive(empty[i % NB])


def _by_copies(device: str, switches: dict) -> Launch:
    return copy_to_pointers(4 * switches["COPIES"])(device, switches)


_both = (False, True)
_FENCES = (NOWHERE, BEFORE_STORE, BETWEEN, AFTER_ARRIVE, AFTER_WAIT)
_SIZES = (-1, 0, TILE_BYTES // 2, TILE_BYTES - 16, TILE_BYTES, TILE_BYTES + 16, 2 * TILE_BYTES)
HAZARDS = (
    Hazard(load_bytes,
        _by_copies, dict(COPIES=(1, 2), BYTES=_SIZES), constants=dict(N=4, NB=2),
           archs=("sm_90",)),
    Hazard(load_handoff, copy_to_pointers(8),
           dict(FULL_WAIT=_both, EMPTY_WAIT=_both, EMPTY_ARRIVE=_both, EXPECT_FIRST=_both), constants=dict(N=8, NB=2)),
    Hazard(load_turns, copy_to_pointers(24), dict(NB=(1, 2, 3, 4, 6), NC=(1, 2, 3)), constants=dict(N=24), archs=("sm_90",)),
    Hazard(store_reuse, copy_from_pointers(8), dict(NB=(1, 2, 3), PENDING=(-1, 0, 1, 2), DRAINS=_both),
           constants=dict(N=8), archs=("sm_90",)),
    Hazard(pass_through, copy_by_descriptors(8), dict(NB=(1, 2), STORE_WAIT=(0, 1, 2), FREES=_both), constants=dict(N=8),
           archs=("sm_90",)),
    Hazard(store_fence, copy_from_pointers(6), dict(NB=(1, 2), FENCE=_FENCES), constants=dict(N=6)),
    Hazard(async_groups, copy_by_pointers(8), dict(NB=(2, 3, 4), PENDING=(-1, 0, 1, 2, 3), COMMITS=_both),
           constants=dict(N=8), archs=("sm_90",)),
    Hazard(async_handoff, copy_by_pointers(8), dict(GROUP_WAIT=_both, EMPTY_WAIT=_both), constants=dict(N=8, NB=2)),
)  # fmt: skip
