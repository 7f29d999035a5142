"""Portable forward with rotary embedding: one program for a tile and several heads, which share the tile's angles.

    q' = turn(q)      k' = turn(k)      s = q' k'ᵀ      p = softmax(scale · s)      o = p v      lse = log Σ exp(scale · s)

Turned q and k (and v where ROTATE_V) are rounded once, to the dtype that they came in, and never leave the chip. Channels
are held as pairs (`pairs.py`), CHUNK of them at a time.
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
    CHUNK: tl.constexpr, AT_ONCE: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_LSE: tl.constexpr, PER_TOKEN: tl.constexpr, HAS_STARTS: tl.constexpr, INTERLEAVED: tl.constexpr,
    ROTATE_V: tl.constexpr,
):  # fmt: skip
    line_ptr, part = walk.program_line(tiles_ptr, HEADS // AT_ONCE)
    start, length, kind = walk.load_tile(line_ptr)
    angle, kind = pairs.first_angle(line_ptr, starts_ptr, start, length, kind, lines, PER_TOKEN, HAS_STARTS)
    o_row = HEADS * D
    first_head = part.to(tl.int64) * AT_ONCE
    keys = walk.rows_from(0, BLOCK, WIDE)
    if not walk.attends(kind):
        for index in range(AT_ONCE):
            head = first_head + index
            head_ptr = o_ptr + start * o_row + head * D
            walk.fill_rows(head_ptr, o_row, length, walk.fill_value(kind, 0.0), BLOCK, D, 2 * CHUNK)
            if HAS_LSE:
                lse = tl.full((BLOCK,), 0.0, tl.float32) + walk.fill_value(kind, float("-inf"))
                tl.store(lse_ptr + (start + keys) * HEADS + head, lse, mask=keys < length)
        return

    cos_ptr += angle * cos_row
    sin_ptr += angle * sin_row
    q_ptr += start * q_row
    k_ptr += start * k_row
    v_ptr += start * v_row
    o_ptr += start * o_row
    key_cos, key_sin = pairs.load_angles(cos_ptr, cos_row, sin_ptr, sin_row, keys, length, 0, D, R, CHUNK)
    for index in tl.range(AT_ONCE, num_stages=STAGES):
        head = first_head + index
        q_head_ptr = q_ptr + head * q_head
        k_head_ptr = k_ptr + head // GROUP * k_head
        v_head_ptr = v_ptr + head // GROUP * v_head
        for first_row in range(0, BLOCK, ROWS):
            queries = walk.rows_from(first_row, ROWS, WIDE)
            s = tl.zeros((ROWS, BLOCK), tl.float32)
            for first in range(0, D // 2, CHUNK):
                if D // 2 > CHUNK:
                    key_cos, key_sin = pairs.load_angles(
                        cos_ptr, cos_row, sin_ptr, sin_row, keys, length, first, D, R, CHUNK
                    )
                cos, sin = key_cos, key_sin
                if ROWS < BLOCK:
                    cos, sin = pairs.load_angles(cos_ptr, cos_row, sin_ptr, sin_row, queries, length, first, D, R, CHUNK)
                qa, qb = pairs.load_turned(
                    q_head_ptr, q_row, queries, length, first, cos, sin, True, D, R, CHUNK, INTERLEAVED
                )
                ka, kb = pairs.load_turned(
                    k_head_ptr, k_row, keys, length, first, key_cos, key_sin, True, D, R, CHUNK, INTERLEAVED
                )
                s = tl.dot(qa, tl.trans(ka), s)
                s = tl.dot(qb, tl.trans(kb), s)
            e, row_max, row_sum = tile_math.exponentials(s, queries, keys, length, scale, CAUSAL)
            if HAS_LSE:
                lse = tile_math.logsumexp(row_max, row_sum)
                tl.store(lse_ptr + (start + queries) * HEADS + head, lse, mask=queries < length)
            e = e.to(q_ptr.dtype.element_ty)
            normaliser = (1.0 / row_sum)[:, None]
            for first in range(0, D // 2, CHUNK):
                if D // 2 > CHUNK:
                    key_cos, key_sin = pairs.load_angles(
                        cos_ptr, cos_row, sin_ptr, sin_row, keys, length, first, D, R, CHUNK
                    )
                va, vb = pairs.load_turned(
                    v_head_ptr, v_row, keys, length, first, key_cos, key_sin, ROTATE_V, D, R, CHUNK, INTERLEAVED
                )
                oa, ob = tl.dot(e, va) * normaliser, tl.dot(e, vb) * normaliser
                pairs.store_pairs(o_ptr + head * D, o_row, queries, length, first, oa, ob, D, R, CHUNK, INTERLEAVED)


def _configure(heads, kv_heads, head_dim, block_size, *options, strides, dtype, capability):
    """The kernel's constants, its programs for a tile, and the plan."""
    plan = plans.rotary_forward(block_size, head_dim, dtype, capability)
    return pairs.configure(plan, heads, strides, heads, kv_heads, head_dim, block_size, *options)


_launch = Launcher(rotary_forward_kernel, _configure)


def forward(*arguments) -> list[Tensor]:
    """`calls.forward` with this kernel."""
    return calls.forward(_launch, *arguments)
