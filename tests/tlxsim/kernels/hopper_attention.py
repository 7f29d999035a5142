"""Attention inside tiles of 64 rows on Hopper: O = softmax(scale Q Kᵀ) V, one head of D channels.

A producer loads q, k and v of a tile by TMA; CONSUMERS tasks take tiles in turn, a slot of the ring belongs to one of them.

| barrier | arrives | count | waits |
|---|---|---|---|
| full[slot] | producer's expected bytes | 1 | the slot's consumer |
| empty[slot] | the slot's consumer, when its store has read the slot | 1 | producer |
"""

# ruff: noqa: SIM113  a jit function has no enumerate
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hazard import Launch, by_tiles, random, unwritten

ROWS, D, SLOTS, CONSUMERS = 64, 64, 4, 2
OPTIONS = dict(ROWS=ROWS, D=D, SLOTS=SLOTS, CONSUMERS=CONSUMERS, num_warps=4)


@triton.jit
def load_tiles(
    q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, full, empty, TILES,
    ROWS: tl.constexpr, D: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    turn = 0
    for tile in range(tl.program_id(0), TILES, tl.num_programs(0)):
        slot = turn % SLOTS
        tlx.barrier_wait(empty[slot], ((turn // SLOTS) & 1) ^ 1)
        tlx.barrier_expect_bytes(full[slot], 3 * ROWS * D * 2)
        tlx.async_descriptor_load(q_desc, q_smem[slot], [tile * ROWS, 0], full[slot])
        tlx.async_descriptor_load(k_desc, k_smem[slot], [tile * ROWS, 0], full[slot])
        tlx.async_descriptor_load(v_desc, v_smem[slot], [tile * ROWS, 0], full[slot])
        turn += 1


@triton.jit
def attend(
    turn, o_desc, q_smem, k_smem, v_smem, full, empty, TILES, scale,
    ROWS: tl.constexpr, SLOTS: tl.constexpr, CONSUMERS: tl.constexpr,
):  # fmt: skip
    """A consumer, whose first turn is its number."""
    first = tl.program_id(0) + turn * tl.num_programs(0)
    for tile in range(first, TILES, CONSUMERS * tl.num_programs(0)):
        slot = turn % SLOTS
        tlx.barrier_wait(full[slot], (turn // SLOTS) & 1)
        s = tlx.async_dot(q_smem[slot], tlx.local_trans(k_smem[slot]))
        s = tlx.async_dot_wait(0, s) * (scale * 1.4426950408889634)
        p = tl.exp2(s - tl.max(s, 1)[:, None])
        total = tl.sum(p, 1)
        o = tlx.async_dot(p.to(tl.bfloat16), v_smem[slot])
        o = tlx.async_dot_wait(0, o)
        tlx.local_store(q_smem[slot], (o / total[:, None]).to(tl.bfloat16))
        tlx.fence_async_shared()
        tlx.async_descriptor_store(o_desc, q_smem[slot], [tile * ROWS, 0])
        tlx.async_descriptor_store_wait(0)
        tlx.barrier_arrive(empty[slot], 1)
        turn += CONSUMERS


@triton.jit
def attention(
    q_desc, k_desc, v_desc, o_desc, TILES, scale,
    ROWS: tl.constexpr, D: tl.constexpr, SLOTS: tl.constexpr, CONSUMERS: tl.constexpr,
):  # fmt: skip
    q_smem = tlx.local_alloc((ROWS, D), tl.bfloat16, SLOTS)
    k_smem = tlx.local_alloc((ROWS, D), tl.bfloat16, SLOTS)
    v_smem = tlx.local_alloc((ROWS, D), tl.bfloat16, SLOTS)
    full = tlx.alloc_barriers(SLOTS, arrive_count=1)
    empty = tlx.alloc_barriers(SLOTS, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            load_tiles(q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, full, empty, TILES, ROWS, D, SLOTS)
        with tlx.async_task(num_warps=4, replicate=CONSUMERS):
            replica = tlx.async_task_replica_id()
            attend(replica, o_desc, q_smem, k_smem, v_smem, full, empty, TILES, scale, ROWS, SLOTS, CONSUMERS)


def launch(device: str, tiles: int = 13) -> Launch:
    q, k, v = (random(tiles * ROWS, D, device=device, seed=seed) for seed in range(3))
    o = unwritten(tiles * ROWS, D, device=device)
    scale = 1 / math.sqrt(D)
    scores = q.float().view(tiles, ROWS, D) @ k.float().view(tiles, ROWS, D).mT * scale
    expected = (scores.softmax(-1) @ v.float().view(tiles, ROWS, D)).view(tiles * ROWS, D).to(torch.bfloat16)
    return Launch((*(by_tiles(x, ROWS, D) for x in (q, k, v, o)), tiles, scale), o, expected)


def start(launched: Launch, programs: int = 1) -> None:
    attention[(programs,)](*launched.args, **OPTIONS)
