"""Portable backward: one program for each (tile, kv head), plain Triton.

    p = softmax(scale · q kᵀ)      dp = do vᵀ      delta = Σ p · dp      ds = p · (dp − delta + dlse)
    dv = pᵀ do      dk = scale · dsᵀ q      dq = scale · ds k

p is recomputed from q and k, delta comes from Σ p · dp: nothing but q, k and v is kept from the forward. A program loops
over the query heads of its group and adds dk and dv in registers, so that the sums have one order. Head dims too large for
the registers are written CHUNK channels at a time; scores are then recomputed for each chunk.
"""

import triton
import triton.language as tl

from . import calls, plans, tile_math, walk
from .launch import Launcher, wide


@triton.jit
def _products(a_ptr, a_row, a_rows, b_ptr, b_row, b_rows, length, D: tl.constexpr, CHUNK: tl.constexpr):
    """a bᵀ `[a_rows, b_rows]` over all channels, read CHUNK at a time."""
    products = tl.zeros((a_rows.shape[0], b_rows.shape[0]), tl.float32)
    for first in range(0, D, CHUNK):
        a = walk.load_rows(a_ptr, a_row, a_rows, length, first, D, CHUNK)
        b = walk.load_rows(b_ptr, b_row, b_rows, length, first, D, CHUNK)
        products = tl.dot(a, tl.trans(b), products)
    return products


@triton.jit
def backward_kernel(
    do_ptr, dlse_ptr, q_ptr, k_ptr, v_ptr, dq_ptr, dk_ptr, dv_ptr, tiles_ptr,
    do_row: tl.constexpr, do_head, q_row: tl.constexpr, q_head, k_row: tl.constexpr, k_head,
    v_row: tl.constexpr, v_head, dq_row: tl.constexpr, dkv_row: tl.constexpr, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr, HAS_DLSE: tl.constexpr,
):  # fmt: skip
    KV_HEADS: tl.constexpr = HEADS // GROUP
    PARTS: tl.constexpr = BLOCK // ROWS
    STEPS: tl.constexpr = GROUP * PARTS
    line_ptr, kv_head = walk.program_line(tiles_ptr, KV_HEADS)
    start, length, kind = walk.load_tile(line_ptr)
    if not walk.attends(kind):
        value = walk.fill_value(kind, 0.0)
        walk.fill_rows(dk_ptr + start * dkv_row + kv_head * D, dkv_row, length, value, BLOCK, D, CHUNK)
        walk.fill_rows(dv_ptr + start * dkv_row + kv_head * D, dkv_row, length, value, BLOCK, D, CHUNK)
        for member in range(GROUP):
            head_ptr = dq_ptr + start * dq_row + (kv_head * GROUP + member) * D
            walk.fill_rows(head_ptr, dq_row, length, value, BLOCK, D, CHUNK)
        return

    first_head = kv_head.to(tl.int64) * GROUP
    k_ptr += start * k_row + kv_head.to(tl.int64) * k_head
    v_ptr += start * v_row + kv_head.to(tl.int64) * v_head
    keys = walk.rows_from(0, BLOCK, WIDE)
    of_ds, of_sums = tile_math.scales(scale, k_ptr.dtype.element_ty)
    for first in range(0, D, CHUNK):
        k = walk.load_rows(k_ptr, k_row, keys, length, first, D, CHUNK)
        v = walk.load_rows(v_ptr, v_row, keys, length, first, D, CHUNK)
        dk = tl.zeros((BLOCK, CHUNK), tl.float32)
        dv = tl.zeros((BLOCK, CHUNK), tl.float32)
        for step in tl.range(STEPS, num_stages=STAGES):
            member = step // PARTS
            queries = walk.rows_from(step % PARTS * ROWS, ROWS, WIDE)
            q_head_ptr = q_ptr + start * q_row + (first_head + member) * q_head
            do_head_ptr = do_ptr + start * do_row + (first_head + member) * do_head
            q = walk.load_rows(q_head_ptr, q_row, queries, length, first, D, CHUNK)
            do = walk.load_rows(do_head_ptr, do_row, queries, length, first, D, CHUNK)
            if CHUNK >= D:
                s = tl.dot(q, tl.trans(k))
            else:
                s = _products(q_head_ptr, q_row, queries, k_ptr, k_row, keys, length, D, CHUNK)
            e, _, row_sum = tile_math.exponentials(s, queries, keys, length, scale, CAUSAL)
            p = e * (1.0 / row_sum)[:, None]
            if STEPS > 1:
                dv = tl.dot(tl.trans(p.to(do.dtype)), do, dv)
            if CHUNK >= D:
                dp = tl.dot(do, tl.trans(v))
            else:
                dp = _products(do_head_ptr, do_row, queries, v_ptr, v_row, keys, length, D, CHUNK)
            dlse = tl.zeros((ROWS,), tl.float32)
            if HAS_DLSE:
                dlse_ptrs = dlse_ptr + (start + queries) * HEADS + first_head + member
                dlse = tl.load(dlse_ptrs, mask=queries < length, other=0.0)
            ds = (tile_math.score_gradient(p, dp, dlse, HAS_DLSE) * of_ds).to(k.dtype)
            # One accumulator at a time: each is stored before the next is computed, so that they share registers, and
            # addresses are computed where they are used.
            dq = tl.dot(ds, k) * of_sums
            head_ptr = dq_ptr + start * dq_row + (kv_head * GROUP + member) * D
            walk.store_rows(head_ptr, dq_row, queries, length, first, dq, D, CHUNK)
            if STEPS == 1:
                dv = tl.dot(tl.trans(p.to(do.dtype)), do)
                walk.store_rows(dv_ptr + start * dkv_row + kv_head * D, dkv_row, keys, length, first, dv, D, CHUNK)
            dk = tl.dot(tl.trans(ds), q, dk)
        if STEPS > 1:
            walk.store_rows(dv_ptr + start * dkv_row + kv_head * D, dkv_row, keys, length, first, dv, D, CHUNK)
        walk.store_rows(dk_ptr + start * dkv_row + kv_head * D, dkv_row, keys, length, first, dk * of_sums, D, CHUNK)


def _configure(heads, kv_heads, head_dim, block_size, causal, has_dlse, *, strides, dtype, capability):
    """The kernel's constants, its programs for a tile, and the plan."""
    plan = plans.backward(block_size, head_dim, dtype, heads // kv_heads, capability)
    step = (plan.rows, plan.chunk, plan.stages, wide(block_size, strides))
    return (heads, heads // kv_heads, head_dim, block_size, *step, causal, has_dlse), kv_heads, plan


_launch = Launcher(backward_kernel, _configure)


def backward(*arguments) -> None:
    """`calls.backward` with this kernel."""
    calls.backward(_launch, *arguments)
