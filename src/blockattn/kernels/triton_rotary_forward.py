"""Portable forward with rotary embedding: one program for a tile and a head.

    q' = turn(q)      k' = turn(k)      s = q' k'ᵀ      p = softmax(scale · s)      o = p v      lse = log Σ exp(scale · s)

Turned q and k (and v where ROTATE_V) are rounded once, to the dtype that they came in, and never leave the chip. Channels
come in chunks of CHUNK pairs (`pairs.py`), all of which are on the chip at once when HELD.
"""

import triton
import triton.language as tl
from torch import Tensor

from . import calls, pairs, plans, tile_math, walk
from .launch import Launcher


@triton.jit
def rotary_forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, tiles_ptr, cos_ptr, sin_ptr, starts_ptr,
    q_row: tl.constexpr, q_head, k_row: tl.constexpr, k_head, v_row: tl.constexpr, v_head,
    cos_row: tl.constexpr, sin_row: tl.constexpr, lines, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, HELD: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr, HAS_LSE: tl.constexpr,
    PER_TOKEN: tl.constexpr, HAS_STARTS: tl.constexpr, INTERLEAVED: tl.constexpr, ROTATE_V: tl.constexpr,
):  # fmt: skip
    tl.static_assert(ROWS == BLOCK or not HELD, "angles are loaded once for q and k, so HELD needs all rows in one step")
    CUTS: tl.constexpr = (D // 2 + CHUNK - 1) // CHUNK if HELD else 1
    VECTOR: tl.constexpr = pairs.vector(q_ptr.dtype.element_ty, INTERLEAVED)
    line_ptr, head = walk.program_line(tiles_ptr, HEADS)
    start, length, kind = walk.load_tile(line_ptr)
    angle, kind = pairs.first_angle(line_ptr, starts_ptr, start, length, kind, lines, PER_TOKEN, HAS_STARTS)
    o_row = HEADS * D
    o_ptr += start * o_row
    keys = walk.rows_from(0, BLOCK, WIDE)
    if not walk.attends(kind):
        walk.fill_rows(o_ptr + head * D, o_row, length, walk.fill_value(kind, 0.0), BLOCK, D, 2 * CHUNK)
        if HAS_LSE:
            lse = tl.full((BLOCK,), 0.0, tl.float32) + walk.fill_value(kind, float("-inf"))
            tl.store(lse_ptr + (start + keys) * HEADS + head, lse, mask=keys < length)
        return

    head = head.to(tl.int64)
    kv_head = head // GROUP
    q_ptr += start * q_row
    k_ptr += start * k_row
    v_ptr += start * v_row
    cos_ptr += angle * cos_row
    sin_ptr += angle * sin_row
    for first_row in range(0, BLOCK, ROWS):
        queries = walk.rows_from(first_row, ROWS, WIDE)
        if HELD:
            s = tl.zeros((ROWS, BLOCK), tl.float32)
            qs = ()
            ks = ()
            held = ()
            for cut in tl.static_range(CUTS):
                first = cut * CHUNK
                cos, sin = pairs.load_angles(cos_ptr, cos_row, sin_ptr, sin_row, keys, length, first, D, R, CHUNK, VECTOR)
                k = pairs.load_pairs(k_ptr + kv_head * k_head, k_row, keys, length, first, True, D, R, CHUNK, INTERLEAVED)
                k = pairs.turn(k, cos, sin)
                q = pairs.load_pairs(q_ptr + head * q_head, q_row, queries, length, first, True, D, R, CHUNK, INTERLEAVED)
                v = pairs.load_pairs(
                    v_ptr + kv_head * v_head, v_row, keys, length, first, ROTATE_V, D, R, CHUNK, INTERLEAVED
                )
                q = pairs.turn(q, cos, sin)
                if ROTATE_V:
                    v = pairs.turn(v, cos, sin)
                qs = qs + (q,)
                ks = ks + (k,)
                held = held + (v,)
            for cut in tl.static_range(CUTS):
                s = tl.dot(qs[cut], tl.trans(ks[cut]), s)
        else:
            s = pairs.turned_products(
                q_ptr + head * q_head, q_row, queries, k_ptr + kv_head * k_head, k_row, keys, length, cos_ptr, cos_row,
                sin_ptr, sin_row, True, True, D, R, CHUNK, VECTOR, INTERLEAVED,
            )  # fmt: skip
        e, row_max, row_sum = tile_math.exponentials(s, queries, keys, length, scale, CAUSAL)
        if HAS_LSE:
            lse = tile_math.logsumexp(row_max, row_sum)
            tl.store(lse_ptr + (start + queries) * HEADS + head, lse, mask=queries < length)
        e = e.to(q_ptr.dtype.element_ty)
        normaliser = (1.0 / row_sum)[:, None]
        if HELD:
            for cut in tl.static_range(CUTS):
                o = tl.dot(e, held[cut]) * normaliser
                pairs.store_pairs(
                    o_ptr + head * D, o_row, queries, length, cut * CHUNK, o, ROTATE_V, D, R, CHUNK, INTERLEAVED
                )
        else:
            for first in range(0, D // 2, CHUNK):
                v = pairs.load_pairs(
                    v_ptr + kv_head * v_head, v_row, keys, length, first, ROTATE_V, D, R, CHUNK, INTERLEAVED
                )
                if ROTATE_V:
                    cos, sin = pairs.load_angles(
                        cos_ptr, cos_row, sin_ptr, sin_row, keys, length, first, D, R, CHUNK, VECTOR
                    )
                    v = pairs.turn(v, cos, sin)
                o = tl.dot(e, v) * normaliser
                pairs.store_pairs(o_ptr + head * D, o_row, queries, length, first, o, ROTATE_V, D, R, CHUNK, INTERLEAVED)


def _configure(heads, kv_heads, head_dim, block_size, *options, strides, dtype, capability):
    """The kernel's constants, its programs for a tile, and the plan."""
    plan = plans.rotary_forward(block_size, head_dim, dtype, capability)
    step = (plan.rows, plan.chunk, plan.held)
    return pairs.constants(step, strides, heads, kv_heads, head_dim, block_size, *options), heads, plan


_launch = Launcher(rotary_forward_kernel, _configure)


def forward(*arguments) -> list[Tensor]:
    """`calls.forward` with this kernel."""
    return calls.forward(_launch, *arguments)
