"""C = A B on Hopper: a producer fills a ring by TMA, two consumers multiply half a tile of C each and store it by TMA.

| barrier | arrives | count | waits |
|---|---|---|---|
| full[slot] | producer's expected bytes | 1 | both consumers |
| empty[slot] | each consumer, when its product has read the slot | CONSUMERS | producer |

Programs take output tiles in turn; rings go on from tile to tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hazard import Launch, by_tiles, random, unwritten

BM, BN, BK, SLOTS, CONSUMERS = 64, 64, 32, 3, 2  # BM: rows of a consumer
GRID = (2,)
OPTIONS = dict(BM=BM, BN=BN, BK=BK, SLOTS=SLOTS, CONSUMERS=CONSUMERS, num_warps=4)


@triton.jit
def load_tiles(
    a_desc, b_desc, a_smem, b_smem, full, empty, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SLOTS: tl.constexpr, CONSUMERS: tl.constexpr,
):  # fmt: skip
    """The producer: CONSUMERS tiles of A and one of B into each slot."""
    turn = 0
    for tile in range(tl.program_id(0), M // (BM * CONSUMERS) * (N // BN), tl.num_programs(0)):
        row = tile // (N // BN) * BM * CONSUMERS
        column = tile % (N // BN) * BN
        for k in range(0, K, BK):
            slot = turn % SLOTS
            phase = (turn // SLOTS) & 1
            tlx.barrier_wait(empty[slot], phase ^ 1)
            tlx.barrier_expect_bytes(full[slot], (CONSUMERS * BM + BN) * BK * 2)
            for part in tl.static_range(CONSUMERS):
                tlx.async_descriptor_load(a_desc, a_smem[slot * CONSUMERS + part], [row + part * BM, k], full[slot])
            tlx.async_descriptor_load(b_desc, b_smem[slot], [k, column], full[slot])
            turn += 1


@triton.jit
def multiply(
    part, c_desc, a_smem, b_smem, c_smem, full, empty, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SLOTS: tl.constexpr, CONSUMERS: tl.constexpr,
):  # fmt: skip
    """A consumer, `part` of them: one product stays in flight, a slot is freed when the next has been issued.

    A function is compiled once for all replicas of a task, so that it must be told which one calls it.
    """
    turn = 0
    for tile in range(tl.program_id(0), M // (BM * CONSUMERS) * (N // BN), tl.num_programs(0)):
        row = (tile // (N // BN) * CONSUMERS + part) * BM
        column = tile % (N // BN) * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            slot = turn % SLOTS
            phase = (turn // SLOTS) & 1
            tlx.barrier_wait(full[slot], phase)
            acc = tlx.async_dot(a_smem[slot * CONSUMERS + part], b_smem[slot], acc)
            acc = tlx.async_dot_wait(1, acc)
            if k > 0:
                tlx.barrier_arrive(empty[(turn - 1) % SLOTS], 1)
            turn += 1
        acc = tlx.async_dot_wait(0, acc)
        tlx.barrier_arrive(empty[(turn - 1) % SLOTS], 1)
        tlx.async_descriptor_store_wait(0)
        tlx.local_store(c_smem[part], acc.to(tl.bfloat16))
        tlx.fence_async_shared()
        tlx.async_descriptor_store(c_desc, c_smem[part], [row, column])
    tlx.async_descriptor_store_wait(0)


@triton.jit
def gemm(
    a_desc, b_desc, c_desc, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SLOTS: tl.constexpr, CONSUMERS: tl.constexpr,
):  # fmt: skip
    """Memory, barriers and who does what."""
    a_smem = tlx.local_alloc((BM, BK), tl.bfloat16, SLOTS * CONSUMERS)
    b_smem = tlx.local_alloc((BK, BN), tl.bfloat16, SLOTS)
    c_smem = tlx.local_alloc((BM, BN), tl.bfloat16, CONSUMERS)
    full = tlx.alloc_barriers(SLOTS, arrive_count=1)
    empty = tlx.alloc_barriers(SLOTS, arrive_count=CONSUMERS)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            load_tiles(a_desc, b_desc, a_smem, b_smem, full, empty, M, N, K, BM, BN, BK, SLOTS, CONSUMERS)
        with tlx.async_task(num_warps=4, replicate=CONSUMERS):
            part = tlx.async_task_replica_id()
            multiply(part, c_desc, a_smem, b_smem, c_smem, full, empty, M, N, K, BM, BN, BK, SLOTS, CONSUMERS)


def launch(device: str) -> Launch:
    """Four and three output tiles for two programs, four steps of K each: every slot is filled at least four times."""
    m, n, k = 128, 448, 128
    a, b, c = random(m, k, device=device), random(k, n, device=device, seed=1), unwritten(m, n, device=device)
    args = (by_tiles(a, BM, BK), by_tiles(b, BK, BN), by_tiles(c, BM, BN), m, n, k)
    return Launch(args, c, (a.float() @ b.float()).to(torch.bfloat16))


def start(launched: Launch) -> None:
    gemm[GRID](*launched.args, **OPTIONS)
