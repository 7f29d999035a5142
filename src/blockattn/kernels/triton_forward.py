"""Portable forward: one program for each (tile, head), plain Triton.

    s = q kᵀ      p = softmax(scale · s)      o = p v      lse = log Σ exp(scale · s)

Blocks too large for one accumulator are computed ROWS queries at a time, head dims too large in CHUNK channels.
"""

import triton
import triton.language as tl
from torch import Tensor

from . import calls, plans, tile_math, walk
from .launch import Launcher, wide


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, tiles_ptr,
    q_row: tl.constexpr, q_head, k_row: tl.constexpr, k_head, v_row: tl.constexpr, v_head, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr, HAS_LSE: tl.constexpr,
):  # fmt: skip
    line_ptr, head = walk.program_line(tiles_ptr, HEADS)
    start, length, kind = walk.load_tile(line_ptr)
    o_row = HEADS * D
    o_ptr += start * o_row + head * D
    if HAS_LSE:
        lse_ptr += start * HEADS + head
    keys = walk.rows_from(0, BLOCK, WIDE)
    if not walk.attends(kind):
        walk.fill_rows(o_ptr, o_row, length, walk.fill_value(kind, 0.0), BLOCK, D, CHUNK)
        if HAS_LSE:
            lse = tl.full((BLOCK,), 0.0, tl.float32) + walk.fill_value(kind, float("-inf"))
            tl.store(lse_ptr + keys * HEADS, lse, mask=keys < length)
        return

    q_ptr += start * q_row + head.to(tl.int64) * q_head
    k_ptr += start * k_row + (head // GROUP).to(tl.int64) * k_head
    v_ptr += start * v_row + (head // GROUP).to(tl.int64) * v_head
    for first_row in range(0, BLOCK, ROWS):
        queries = walk.rows_from(first_row, ROWS, WIDE)
        v = walk.load_rows(v_ptr, v_row, keys, length, 0, D, CHUNK)  # early: it arrives while the scores are computed
        s = tl.zeros((ROWS, BLOCK), tl.float32)
        for first in tl.static_range(0, D, CHUNK):
            q = walk.load_rows(q_ptr, q_row, queries, length, first, D, CHUNK)
            k = walk.load_rows(k_ptr, k_row, keys, length, first, D, CHUNK)
            s = tl.dot(q, tl.trans(k), s)
        e, row_max, row_sum = tile_math.exponentials(s, queries, keys, length, scale, CAUSAL)
        if HAS_LSE:
            tl.store(lse_ptr + queries * HEADS, tile_math.logsumexp(row_max, row_sum), mask=queries < length)
        e = e.to(v.dtype)
        normaliser = 1.0 / row_sum
        for first in tl.static_range(0, D, CHUNK):
            if first > 0:
                v = walk.load_rows(v_ptr, v_row, keys, length, first, D, CHUNK)
            o = tl.dot(e, v) * normaliser[:, None]
            walk.store_rows(o_ptr, o_row, queries, length, first, o, D, CHUNK)


def _configure(heads, kv_heads, head_dim, block_size, causal, return_lse, *, strides, dtype, capability):
    """The kernel's constants, its programs for a tile, and the plan."""
    plan = plans.forward(block_size, head_dim, dtype, capability)
    step = (plan.rows, plan.chunk, wide(block_size, strides))
    return (heads, heads // kv_heads, head_dim, block_size, *step, causal, return_lse), heads, plan


_launch = Launcher(forward_kernel, _configure)


def forward(*arguments) -> list[Tensor]:
    """`calls.forward` with this kernel."""
    return calls.forward(_launch, *arguments)
