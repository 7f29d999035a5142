"""Matrix products: Hopper's wgmma with its waits, Blackwell's tcgen05 with commits and tensor memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from .handoff import phase_of
from .hazard import (
    BLACKWELL,
    HOPPER,
    TILE,
    Hazard,
    Launch,
    by_tiles,
    pointers,
    product_of_tiles,
    random,
    unwritten,
)  # fmt: skip
from .transfers import AFTER_ARRIVE, AFTER_WAIT, BEFORE_STORE, BETWEEN, NOWHERE

AFTER_WAIT_0, BEFORE_THE_WAIT, ONE_BEHIND, THIS_ONE = range(4)  # when wgmma_release frees a buffer


@triton.jit
def load_operands(a_desc, b_desc, a_smem, b_smem, full, empty, N: tl.constexpr, NB: tl.constexpr, ROWS: tl.constexpr):
    """The producer of the kernels below: a tile of A and one of B into each slot of a ring."""
    for i in range(N):
        tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
        tlx.barrier_expect_bytes(full[i % NB], (ROWS + 64) * 64 * 2)
        tlx.async_descriptor_load(a_desc, a_smem[i % NB], [0, i * 64], full[i % NB])
        tlx.async_descriptor_load(b_desc, b_smem[i % NB], [i * 64, 0], full[i % NB])


@triton.jit
def wgmma_release(a_desc, b_desc, out_ptr, N: tl.constexpr, NB: tl.constexpr, RELEASE: tl.constexpr, DRAINS: tl.constexpr):
    """When a consumer frees the operands of a product: after its wait, before it, one behind with one left in flight, or at
    once with one left in flight; and whether it waits before it uses the result."""
    a_smem = tlx.local_alloc((64, 64), tl.bfloat16, NB)
    b_smem = tlx.local_alloc((64, 64), tl.bfloat16, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            load_operands(a_desc, b_desc, a_smem, b_smem, full, empty, N, NB, 64)
        with tlx.async_task(num_warps=4):
            acc = tl.zeros((64, 64), tl.float32)
            for i in tl.static_range(N):
                tlx.barrier_wait(full[i % NB], (i // NB) & 1)
                acc = tlx.async_dot(a_smem[i % NB], b_smem[i % NB], acc)
                if RELEASE == 0:
                    acc = tlx.async_dot_wait(0, acc)
                if RELEASE >= 2:
                    acc = tlx.async_dot_wait(1, acc)
                if RELEASE != 2:
                    tlx.barrier_arrive(empty[i % NB])
                elif i > 0:
                    tlx.barrier_arrive(empty[(i - 1) % NB])
                if RELEASE == 1:
                    acc = tlx.async_dot_wait(0, acc)
            if DRAINS:
                acc = tlx.async_dot_wait(0, acc)
            tl.store(pointers(out_ptr, 0), acc)


@triton.jit
def wgmma_overwrite(a_ptr, b_desc, out_ptr, N: tl.constexpr, WAITS: tl.constexpr, FENCE: tl.constexpr):
    """A task writes its own left operand, multiplies and overwrites it: it must wait for the product first."""
    a_smem = tlx.local_alloc((64, 64), tl.bfloat16, 1)
    b_smem = tlx.local_alloc((64, 64), tl.bfloat16, N)
    full = tlx.alloc_barriers(1, arrive_count=1)
    tlx.barrier_expect_bytes(full[0], N * 64 * 64 * 2)
    for i in tl.static_range(N):
        tlx.async_descriptor_load(b_desc, b_smem[i], [i * 64, 0], full[0])
    tlx.barrier_wait(full[0], 0)
    acc = tl.zeros((64, 64), tl.float32)
    for i in tl.static_range(N):
        tlx.local_store(a_smem[0], tl.load(pointers(a_ptr, i)))
        if FENCE:
            tlx.fence_async_shared()
        acc = tlx.async_dot(a_smem[0], b_smem[i], acc)
        if WAITS:
            acc = tlx.async_dot_wait(0, acc)
    acc = tlx.async_dot_wait(0, acc)
    tl.store(pointers(out_ptr, 0), acc)


@triton.jit
def wgmma_fence(a_ptr, b_desc, out_ptr, N: tl.constexpr, FENCE: tl.constexpr):
    """One task writes left operands with ordinary stores, another multiplies: where the proxy fence stands."""
    a_smem = tlx.local_alloc((64, 64), tl.bfloat16, N)
    b_smem = tlx.local_alloc((64, 64), tl.bfloat16, N)
    a_full = tlx.alloc_barriers(N, arrive_count=1)
    b_full = tlx.alloc_barriers(N, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.barrier_expect_bytes(b_full[i], 64 * 64 * 2)
                tlx.async_descriptor_load(b_desc, b_smem[i], [i * 64, 0], b_full[i])
                if FENCE == 1:
                    tlx.fence_async_shared()
                tlx.local_store(a_smem[i], tl.load(pointers(a_ptr, i)))
                if FENCE == 2:
                    tlx.fence_async_shared()
                tlx.barrier_arrive(a_full[i])
        with tlx.async_task(num_warps=4):
            acc = tl.zeros((64, 64), tl.float32)
            for i in tl.static_range(N):
                tlx.barrier_wait(b_full[i], 0)
                tlx.barrier_wait(a_full[i], 0)
                if FENCE == 4:
                    tlx.fence_async_shared()
                acc = tlx.async_dot(a_smem[i], b_smem[i], acc)
            acc = tlx.async_dot_wait(0, acc)
            tl.store(pointers(out_ptr, 0), acc)


@triton.jit
def tcgen05_release(
    a_desc, b_desc, out_ptr, N: tl.constexpr, NB: tl.constexpr,
    RELEASE: tl.constexpr, DONE: tl.constexpr, FIRST_ADDS: tl.constexpr, READS: tl.constexpr,
):  # fmt: skip
    """Operands are freed by an ordinary arrival at issue (0), by the MMA's barrier (1) or by a commit (2); the result is
    announced by an ordinary arrival (0) or a commit (1), and its reader waits (1) or not."""
    a_smem = tlx.local_alloc((128, 64), tl.bfloat16, NB)
    b_smem = tlx.local_alloc((64, 64), tl.bfloat16, NB)
    acc = tlx.local_alloc((128, 64), tl.float32, 1, tlx.storage_kind.tmem)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    done = tlx.alloc_barriers(1, arrive_count=1)
    spare = tlx.alloc_barriers(1, arrive_count=1)  # an MMA with no barrier at all is a synchronous one
    with tlx.async_tasks():
        with tlx.async_task("default"):
            if READS:
                tlx.barrier_wait(done[0], 0)
            tl.store(pointers(out_ptr, 0, 128), tlx.local_load(acc[0]))
        with tlx.async_task(num_warps=1):
            load_operands(a_desc, b_desc, a_smem, b_smem, full, empty, N, NB, 128)
        with tlx.async_task(num_warps=1):
            for i in range(N):
                tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                adds = (i > 0) | FIRST_ADDS
                if RELEASE == 1:
                    tlx.async_dot(a_smem[i % NB], b_smem[i % NB], acc[0], use_acc=adds, mBarriers=[empty[i % NB]])
                else:
                    tlx.async_dot(a_smem[i % NB], b_smem[i % NB], acc[0], use_acc=adds, mBarriers=[spare[0]])
                if RELEASE == 2:
                    tlx.tcgen05_commit(empty[i % NB])
                if RELEASE == 0:
                    tlx.barrier_arrive(empty[i % NB])
            if DONE == 1:
                tlx.tcgen05_commit(done[0])
            else:
                tlx.barrier_arrive(done[0])


@triton.jit
def tmem_ring(
    a_desc, b_desc, out_ptr, N: tl.constexpr, NB: tl.constexpr,
    MMA_WAITS: tl.constexpr, READER_WAITS: tl.constexpr, RELEASE: tl.constexpr,
):  # fmt: skip
    """N products into NB accumulators; their reader frees them after its load (1), before it (2) or never (0)."""
    a_smem = tlx.local_alloc((128, 64), tl.bfloat16, N)
    b_smem = tlx.local_alloc((64, 64), tl.bfloat16, N)
    acc = tlx.local_alloc((128, 64), tl.float32, NB, tlx.storage_kind.tmem)
    loaded = tlx.alloc_barriers(1, arrive_count=1)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            total = tl.zeros((128, 64), tl.float32)
            for i in range(N):
                if READER_WAITS:
                    tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                if RELEASE == 2:
                    tlx.barrier_arrive(empty[i % NB])
                total += tlx.local_load(acc[i % NB])
                if RELEASE == 1:
                    tlx.barrier_arrive(empty[i % NB])
            tl.store(pointers(out_ptr, 0, 128), total)
        with tlx.async_task(num_warps=1):
            tlx.barrier_expect_bytes(loaded[0], N * (128 + 64) * 64 * 2)
            for i in tl.static_range(N):
                tlx.async_descriptor_load(a_desc, a_smem[i], [0, i * 64], loaded[0])
                tlx.async_descriptor_load(b_desc, b_smem[i], [i * 64, 0], loaded[0])
            tlx.barrier_wait(loaded[0], 0)
            for i in range(N):
                if MMA_WAITS:
                    tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
                tlx.async_dot(a_smem[i], b_smem[i], acc[i % NB], use_acc=False, mBarriers=[full[i % NB]])


@triton.jit
def tcgen05_fence(a_ptr, b_desc, out_ptr, N: tl.constexpr, FENCE: tl.constexpr):
    """One task writes left operands with ordinary stores, another multiplies: where the proxy fence stands."""
    a_smem = tlx.local_alloc((128, 64), tl.bfloat16, N)
    b_smem = tlx.local_alloc((64, 64), tl.bfloat16, N)
    acc = tlx.local_alloc((128, 64), tl.float32, 1, tlx.storage_kind.tmem)
    a_full = tlx.alloc_barriers(N, arrive_count=1)
    b_full = tlx.alloc_barriers(1, arrive_count=1)
    done = tlx.alloc_barriers(1, arrive_count=1)
    spare = tlx.alloc_barriers(1, arrive_count=1)  # an MMA with no barrier at all is a synchronous one
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                if FENCE == 1:
                    tlx.fence_async_shared()
                tlx.local_store(a_smem[i], tl.load(pointers(a_ptr, i, 128)))
                if FENCE == 2:
                    tlx.fence_async_shared()
                tlx.barrier_arrive(a_full[i])
                if FENCE == 3:
                    tlx.fence_async_shared()
            tlx.barrier_wait(done[0], 0)
            tl.store(pointers(out_ptr, 0, 128), tlx.local_load(acc[0]))
        with tlx.async_task(num_warps=1):
            tlx.barrier_expect_bytes(b_full[0], N * 64 * 64 * 2)
            for i in tl.static_range(N):
                tlx.async_descriptor_load(b_desc, b_smem[i], [i * 64, 0], b_full[0])
            tlx.barrier_wait(b_full[0], 0)
            for i in range(N):
                tlx.barrier_wait(a_full[i], 0)
                if FENCE == 4:
                    tlx.fence_async_shared()
                tlx.async_dot(a_smem[i], b_smem[i], acc[0], use_acc=i > 0, mBarriers=[spare[0]])
            tlx.tcgen05_commit(done[0])


def _left_by_pointer(tiles: int, rows: int = TILE):
    """(a_ptr, b_desc, out_ptr): the left tiles stand one below the other."""

    def launch(device: str, switches: dict) -> Launch:
        a = random(tiles * rows, TILE, device=device)
        b = random(tiles * TILE, TILE, device=device, seed=1)
        out = unwritten(rows, TILE, device=device, dtype=torch.float32)
        products = a.float().view(tiles, rows, TILE) @ b.float().view(tiles, TILE, TILE)
        return Launch((a, by_tiles(b), out), out, products.sum(0))

    return launch


_both = (False, True)
_FENCES = (NOWHERE, BEFORE_STORE, BETWEEN, AFTER_ARRIVE, AFTER_WAIT)
HAZARDS = (
    Hazard(wgmma_release, product_of_tiles(6),
           dict(RELEASE=(AFTER_WAIT_0, BEFORE_THE_WAIT, ONE_BEHIND, THIS_ONE), DRAINS=_both),
           constants=dict(N=6, NB=2), archs=(HOPPER,)),
    Hazard(wgmma_overwrite, _left_by_pointer(3), dict(WAITS=_both, FENCE=_both), constants=dict(N=3), archs=(HOPPER,)),
    Hazard(wgmma_fence, _left_by_pointer(3), dict(FENCE=(NOWHERE, BEFORE_STORE, BETWEEN, AFTER_WAIT)),
           constants=dict(N=3), archs=(HOPPER,)),
    Hazard(tcgen05_release, product_of_tiles(6, 128),
           dict(RELEASE=(0, 1, 2), DONE=(0, 1), FIRST_ADDS=_both, READS=_both), constants=dict(N=6, NB=2),
           archs=(BLACKWELL,)),
    Hazard(tmem_ring, product_of_tiles(6, 128), dict(NB=(1, 2), MMA_WAITS=_both, READER_WAITS=_both, RELEASE=(0, 1, 2)),
           constants=dict(N=6), archs=(BLACKWELL,)),
    Hazard(tcgen05_fence, _left_by_pointer(3, 128), dict(FENCE=_FENCES), constants=dict(N=3), archs=(BLACKWELL,)),
)  # fmt: skip
