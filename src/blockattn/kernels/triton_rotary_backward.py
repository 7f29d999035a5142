"""Portable backward with rotary embedding: one program for a tile and a kv head.

    q' = turn(q)      k' = turn(k)      p again from q', k'      dp = do vᵀ      delta = Σ p · dp
    ds = p · (dp − delta + dlse)        dq = turn back(scale · ds k')      dk = turn back(scale · dsᵀ q')      dv = pᵀ do

Nothing that was turned is read from memory, and each gradient stays in fp32 until it is turned back and stored once.
Channels come in chunks of CHUNK pairs (`pairs.py`). All are on the chip at once when HELD; otherwise scores are computed
again for each.
"""

import triton
import triton.language as tl

from . import calls, pairs, plans, tile_math, walk
from .launch import Launcher


@triton.jit
def rotary_backward_kernel(
    do_ptr, dlse_ptr, q_ptr, k_ptr, v_ptr, dq_ptr, dk_ptr, dv_ptr, tiles_ptr, cos_ptr, sin_ptr, starts_ptr,
    do_row: tl.constexpr, do_head, q_row: tl.constexpr, q_head, k_row: tl.constexpr, k_head,
    v_row: tl.constexpr, v_head, dq_row: tl.constexpr, dkv_row: tl.constexpr,
    cos_row: tl.constexpr, sin_row: tl.constexpr, lines, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, HELD: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_DLSE: tl.constexpr, PER_TOKEN: tl.constexpr, HAS_STARTS: tl.constexpr, INTERLEAVED: tl.constexpr,
    ROTATE_V: tl.constexpr,
):  # fmt: skip
    KV_HEADS: tl.constexpr = HEADS // GROUP
    PARTS: tl.constexpr = BLOCK // ROWS
    STEPS: tl.constexpr = GROUP * PARTS
    CUTS: tl.constexpr = (D // 2 + CHUNK - 1) // CHUNK if HELD else 1
    dtype: tl.constexpr = dq_ptr.dtype.element_ty
    VECTOR: tl.constexpr = pairs.vector(dtype, INTERLEAVED)
    line_ptr, kv_head = walk.program_line(tiles_ptr, KV_HEADS)
    start, length, kind = walk.load_tile(line_ptr)
    angle, kind = pairs.first_angle(line_ptr, starts_ptr, start, length, kind, lines, PER_TOKEN, HAS_STARTS)
    dk_ptr += start * dkv_row
    dv_ptr += start * dkv_row
    dq_ptr += start * dq_row
    if not walk.attends(kind):
        value = walk.fill_value(kind, 0.0)
        walk.fill_rows(dk_ptr + kv_head * D, dkv_row, length, value, BLOCK, D, 2 * CHUNK)
        walk.fill_rows(dv_ptr + kv_head * D, dkv_row, length, value, BLOCK, D, 2 * CHUNK)
        for member in range(GROUP):
            walk.fill_rows(dq_ptr + (kv_head * GROUP + member) * D, dq_row, length, value, BLOCK, D, 2 * CHUNK)
        return

    kv_head = kv_head.to(tl.int64)
    cos_ptr += angle * cos_row
    sin_ptr += angle * sin_row
    q_ptr += start * q_row
    do_ptr += start * do_row
    k_ptr += start * k_row
    v_ptr += start * v_row
    keys = walk.rows_from(0, BLOCK, WIDE)
    of_ds, of_sums = tile_math.scales(scale, dtype)
    for first_pair in range(0, D // 2, CUTS * CHUNK):
        ks = ()
        vs = ()
        dks = ()
        dvs = ()
        for cut in tl.static_range(CUTS):
            first = first_pair + cut * CHUNK
            key_cos, key_sin = pairs.load_angles(
                cos_ptr, cos_row, sin_ptr, sin_row, keys, length, first, D, R, CHUNK, VECTOR
            )
            k = pairs.load_pairs(k_ptr + kv_head * k_head, k_row, keys, length, first, True, D, R, CHUNK, INTERLEAVED)
            ks = ks + (pairs.turn(k, key_cos, key_sin),)
            if HELD:
                v = pairs.load_pairs(
                    v_ptr + kv_head * v_head, v_row, keys, length, first, ROTATE_V, D, R, CHUNK, INTERLEAVED
                )
                if ROTATE_V:
                    v = pairs.turn(v, key_cos, key_sin)
                vs = vs + (v,)
            if STEPS > 1:
                dks = dks + (tl.zeros((BLOCK, 2 * CHUNK), tl.float32),)
                dvs = dvs + (tl.zeros((BLOCK, 2 * CHUNK), tl.float32),)
        for step in tl.range(STEPS, num_stages=STAGES):
            member = step // PARTS
            queries = walk.rows_from(step % PARTS * ROWS, ROWS, WIDE)
            q_head_ptr = q_ptr + (kv_head * GROUP + member) * q_head
            do_head_ptr = do_ptr + (kv_head * GROUP + member) * do_head
            s = tl.zeros((ROWS, BLOCK), tl.float32)
            dp = tl.zeros((ROWS, BLOCK), tl.float32)
            qs = ()
            dos = ()
            angles = ()
            for cut in tl.static_range(CUTS):
                first = first_pair + cut * CHUNK
                cos, sin = pairs.load_angles(cos_ptr, cos_row, sin_ptr, sin_row, queries, length, first, D, R, CHUNK, VECTOR)
                angles = angles + (pairs.joined(cos, sin),)
                q = pairs.load_pairs(q_head_ptr, q_row, queries, length, first, True, D, R, CHUNK, INTERLEAVED)
                do = pairs.load_pairs(do_head_ptr, do_row, queries, length, first, ROTATE_V, D, R, CHUNK, INTERLEAVED)
                q = pairs.turn(q, cos, sin)
                qs = qs + (q,)
                dos = dos + (do,)
            if HELD:
                for cut in tl.static_range(CUTS):  # settled again, so that the product's copy is made here
                    s = tl.dot(pairs.settled(qs[cut]), tl.trans(ks[cut]), s)
            else:
                s = pairs.turned_products(
                    q_head_ptr, q_row, queries, k_ptr + kv_head * k_head, k_row, keys, length, cos_ptr, cos_row, sin_ptr,
                    sin_row, True, True, D, R, CHUNK, VECTOR, INTERLEAVED,
                )  # fmt: skip
            e, _, row_sum = tile_math.exponentials(s, queries, keys, length, scale, CAUSAL)
            p = e * (1.0 / row_sum)[:, None]
            if HELD:
                for cut in tl.static_range(CUTS):
                    dp = tl.dot(dos[cut], tl.trans(vs[cut]), dp)
            else:
                dp = pairs.turned_products(
                    do_head_ptr, do_row, queries, v_ptr + kv_head * v_head, v_row, keys, length, cos_ptr, cos_row, sin_ptr,
                    sin_row, False, ROTATE_V, D, R, CHUNK, VECTOR, INTERLEAVED,
                )  # fmt: skip
            dlse = tl.zeros((ROWS,), tl.float32)
            if HAS_DLSE:
                dlse_ptrs = dlse_ptr + (start + queries) * HEADS + kv_head * GROUP + member
                dlse = tl.load(dlse_ptrs, mask=queries < length, other=0.0)
            ds = (tile_math.score_gradient(p, dp, dlse, HAS_DLSE) * of_ds).to(dtype)
            p = p.to(dtype)
            # One accumulator at a time, so that they share registers: each gradient is stored when it is complete.
            for cut in tl.static_range(CUTS):
                first = first_pair + cut * CHUNK
                turn_cos, turn_sin = pairs.parted(angles[cut], cos_ptr.dtype.element_ty)
                dq = tl.dot(ds, ks[cut]) * of_sums
                _store_turned_back(
                    dq_ptr + (kv_head * GROUP + member) * D,
                    dq_row,
                    queries,
                    length,
                    first,
                    dq,
                    turn_cos,
                    turn_sin,
                    True,
                    D,
                    R,
                    CHUNK,
                    INTERLEAVED,
                )
                if STEPS == 1:
                    dv = tl.dot(tl.trans(p), dos[cut])
                    _store_turned_back(
                        dv_ptr + kv_head * D,
                        dkv_row,
                        keys,
                        length,
                        first,
                        dv,
                        turn_cos,
                        turn_sin,
                        ROTATE_V,
                        D,
                        R,
                        CHUNK,
                        INTERLEAVED,
                    )
                    dk = tl.dot(tl.trans(ds), qs[cut]) * of_sums
                    _store_turned_back(
                        dk_ptr + kv_head * D,
                        dkv_row,
                        keys,
                        length,
                        first,
                        dk,
                        turn_cos,
                        turn_sin,
                        True,
                        D,
                        R,
                        CHUNK,
                        INTERLEAVED,
                    )
            if STEPS > 1:
                dv_sums = ()
                dk_sums = ()
                for cut in tl.static_range(CUTS):
                    dv_sums = dv_sums + (tl.dot(tl.trans(p), dos[cut], dvs[cut]),)
                    dk_sums = dk_sums + (tl.dot(tl.trans(ds), qs[cut], dks[cut]),)
                dvs = dv_sums
                dks = dk_sums
        if STEPS > 1:
            for cut in tl.static_range(CUTS):
                first = first_pair + cut * CHUNK
                key_cos, key_sin = pairs.load_angles(
                    cos_ptr, cos_row, sin_ptr, sin_row, keys, length, first, D, R, CHUNK, VECTOR
                )
                dk = dks[cut] * of_sums
                _store_turned_back(
                    dv_ptr + kv_head * D, dkv_row, keys, length, first, dvs[cut], key_cos, key_sin, ROTATE_V, D, R, CHUNK,
                    INTERLEAVED,
                )  # fmt: skip
                _store_turned_back(
                    dk_ptr + kv_head * D, dkv_row, keys, length, first, dk, key_cos, key_sin, True, D, R, CHUNK, INTERLEAVED
                )


@triton.jit
def _store_turned_back(
    ptr, row_stride, rows, length, first, x, cos, sin, TURN: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    CHUNK: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Store a gradient of pairs from `first` on, turned back when TURN says that what it is of was turned."""
    if TURN:
        x = pairs.turn_back(x, cos, sin, ptr.dtype.element_ty)
    pairs.store_pairs(ptr, row_stride, rows, length, first, x, TURN, D, R, CHUNK, INTERLEAVED)


def _configure(heads, kv_heads, head_dim, block_size, *options, strides, dtype, capability):
    """The kernel's constants, its programs for a tile, and the plan."""
    plan = plans.rotary_backward(block_size, head_dim, dtype, heads // kv_heads, capability)
    step = (plan.rows, plan.chunk, plan.held, plan.stages)
    return pairs.constants(step, strides, heads, kv_heads, head_dim, block_size, *options), kv_heads, plan


_launch = Launcher(rotary_backward_kernel, _configure)


def backward(*arguments) -> None:
    """`calls.backward` with this kernel."""
    calls.backward(_launch, *arguments)
