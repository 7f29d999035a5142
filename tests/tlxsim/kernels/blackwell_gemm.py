"""C = A B on Blackwell: a producer fills a ring by TMA, an MMA task multiplies into tensor memory, an epilogue stores C.

| barrier | arrives | count | waits |
|---|---|---|---|
| full[slot] | producer's expected bytes | 1 | MMA task |
| empty[slot] | the MMA that read the slot, when it has completed | 1 | producer |
| acc_full[place] | commit after a tile's last MMA | 1 | epilogue |
| acc_empty[place] | epilogue, when it has loaded the accumulator | 1 | MMA task |
"""

# ruff: noqa: SIM113  a jit function has no enumerate
from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hazard import Launch, by_tiles, random, unwritten

BM, BN, BK, SLOTS, PLACES = 128, 64, 64, 3, 2
GRID = (1,)
OPTIONS = dict(BM=BM, BN=BN, BK=BK, SLOTS=SLOTS, PLACES=PLACES, num_warps=4)


@triton.jit
def load_tiles(
    a_desc, b_desc, a_smem, b_smem, full, empty, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """The producer: a tile of A and one of B into each slot."""
    turn = 0
    for tile in range(tl.program_id(0), M // BM * (N // BN), tl.num_programs(0)):
        for k in range(0, K, BK):
            slot = turn % SLOTS
            phase = (turn // SLOTS) & 1
            tlx.barrier_wait(empty[slot], phase ^ 1)
            tlx.barrier_expect_bytes(full[slot], (BM + BN) * BK * 2)
            tlx.async_descriptor_load(a_desc, a_smem[slot], [tile // (N // BN) * BM, k], full[slot])
            tlx.async_descriptor_load(b_desc, b_smem[slot], [k, tile % (N // BN) * BN], full[slot])
            turn += 1


@triton.jit
def multiply(
    a_smem, b_smem, acc, full, empty, acc_full, acc_empty, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SLOTS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """The MMA task: a tile's products into one accumulator, while the epilogue reads the other."""
    turn = 0
    done = 0
    for _ in range(tl.program_id(0), M // BM * (N // BN), tl.num_programs(0)):
        place = done % PLACES
        tlx.barrier_wait(acc_empty[place], ((done // PLACES) & 1) ^ 1)
        for k in range(0, K, BK):
            slot = turn % SLOTS
            phase = (turn // SLOTS) & 1
            tlx.barrier_wait(full[slot], phase)
            tlx.async_dot(a_smem[slot], b_smem[slot], acc[place], use_acc=k > 0, mBarriers=[empty[slot]])
            turn += 1
        tlx.tcgen05_commit(acc_full[place])
        done += 1


@triton.jit
def store_tiles(
    c_desc, c_smem, acc, acc_full, acc_empty, M, N,
    BM: tl.constexpr, BN: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """The epilogue: from tensor memory through registers and shared memory to C."""
    done = 0
    for tile in range(tl.program_id(0), M // BM * (N // BN), tl.num_programs(0)):
        place = done % PLACES
        tlx.barrier_wait(acc_full[place], (done // PLACES) & 1)
        c = tlx.local_load(acc[place])
        tlx.barrier_arrive(acc_empty[place], 1)
        tlx.async_descriptor_store_wait(0)
        tlx.local_store(c_smem[0], c.to(tl.bfloat16))
        tlx.fence_async_shared()
        tlx.async_descriptor_store(c_desc, c_smem[0], [tile // (N // BN) * BM, tile % (N // BN) * BN])
        done += 1
    tlx.async_descriptor_store_wait(0)


@triton.jit
def gemm(
    a_desc, b_desc, c_desc, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SLOTS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Memory, barriers and who does what."""
    a_smem = tlx.local_alloc((BM, BK), tl.bfloat16, SLOTS)
    b_smem = tlx.local_alloc((BK, BN), tl.bfloat16, SLOTS)
    c_smem = tlx.local_alloc((BM, BN), tl.bfloat16, 1)
    acc = tlx.local_alloc((BM, BN), tl.float32, PLACES, tlx.storage_kind.tmem)
    full = tlx.alloc_barriers(SLOTS, arrive_count=1)
    empty = tlx.alloc_barriers(SLOTS, arrive_count=1)
    acc_full = tlx.alloc_barriers(PLACES, arrive_count=1)
    acc_empty = tlx.alloc_barriers(PLACES, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            store_tiles(c_desc, c_smem, acc, acc_full, acc_empty, M, N, BM, BN, PLACES)
        with tlx.async_task(num_warps=1):
            load_tiles(a_desc, b_desc, a_smem, b_smem, full, empty, M, N, K, BM, BN, BK, SLOTS)
        with tlx.async_task(num_warps=1):
            multiply(a_smem, b_smem, acc, full, empty, acc_full, acc_empty, M, N, K, BM, BN, BK, SLOTS, PLACES)


def launch(device: str) -> Launch:
    """Seven output tiles of one program, two steps of K each: slots are filled four times, accumulators three times. No
    ring ends with a full lap, so that whoever is a turn behind at the end is stuck."""
    m, n, k = 128, 448, 128
    a, b, c = random(m, k, device=device), random(k, n, device=device, seed=1), unwritten(m, n, device=device)
    args = (by_tiles(a, BM, BK), by_tiles(b, BK, BN), by_tiles(c, BM, BN), m, n, k)
    return Launch(args, c, (a.float() @ b.float()).to(torch.bfloat16))


def start(launched: Launch) -> None:
    gemm[GRID](*launched.args, **OPTIONS)
