"""Portable backward with rotary embedding: one program for a tile and several kv heads, which share the tile's angles.

    q' = turn(q)      k' = turn(k)      p again from q', k'      dp = do vᵀ      delta = Σ p · dp
    ds = p · (dp − delta + dlse)        dq = turn back(scale · ds k')      dk = turn back(scale · dsᵀ q')      dv = pᵀ do

Nothing that was turned is read from memory, and each gradient stays in fp32 until it is turned back and stored once.
Channels are held as pairs (`pairs.py`), CHUNK of them at a time; where they do not fit at once, scores are computed again
for each chunk.
"""

import triton
import triton.language as tl

from . import calls, pairs, plans, tile_math, walk
from .launch import Launcher


@triton.jit
def _turned_products(
    a_ptr, a_row, a_rows, b_ptr, b_row, b_rows, length, cos_ptr, cos_row, sin_ptr, sin_row, TURN_A: tl.constexpr,
    TURN_B: tl.constexpr, D: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """a bᵀ `[a_rows, b_rows]` over all channels, either turned or not, CHUNK pairs at a time."""
    products = tl.zeros((a_rows.shape[0], b_rows.shape[0]), tl.float32)
    for first in range(0, D // 2, CHUNK):
        a_cos, a_sin = pairs.load_angles(cos_ptr, cos_row, sin_ptr, sin_row, a_rows, length, first, D, R, CHUNK)
        b_cos, b_sin = pairs.load_angles(cos_ptr, cos_row, sin_ptr, sin_row, b_rows, length, first, D, R, CHUNK)
        aa, ab = pairs.load_turned(a_ptr, a_row, a_rows, length, first, a_cos, a_sin, TURN_A, D, R, CHUNK, INTERLEAVED)
        ba, bb = pairs.load_turned(b_ptr, b_row, b_rows, length, first, b_cos, b_sin, TURN_B, D, R, CHUNK, INTERLEAVED)
        products = tl.dot(aa, tl.trans(ba), products)
        products = tl.dot(ab, tl.trans(bb), products)
    return products


@triton.jit
def rotary_backward_kernel(
    do_ptr, dlse_ptr, q_ptr, k_ptr, v_ptr, dq_ptr, dk_ptr, dv_ptr, tiles_ptr, cos_ptr, sin_ptr, starts_ptr,
    do_row: tl.constexpr, do_head, q_row: tl.constexpr, q_head, k_row: tl.constexpr, k_head,
    v_row: tl.constexpr, v_head, dq_row: tl.constexpr, dkv_row: tl.constexpr,
    cos_row: tl.constexpr, sin_row: tl.constexpr, lines, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, AT_ONCE: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_DLSE: tl.constexpr, PER_TOKEN: tl.constexpr, HAS_STARTS: tl.constexpr, INTERLEAVED: tl.constexpr,
    ROTATE_V: tl.constexpr,
):  # fmt: skip
    KV_HEADS: tl.constexpr = HEADS // GROUP
    PARTS: tl.constexpr = BLOCK // ROWS
    STEPS: tl.constexpr = GROUP * PARTS
    CHUNKS: tl.constexpr = (D // 2 + CHUNK - 1) // CHUNK
    line_ptr, part = walk.program_line(tiles_ptr, KV_HEADS // AT_ONCE)
    start, length, kind = walk.load_tile(line_ptr)
    angle, kind = pairs.first_angle(line_ptr, starts_ptr, start, length, kind, lines, PER_TOKEN, HAS_STARTS)
    first_kv_head = part.to(tl.int64) * AT_ONCE
    dq_ptr += start * dq_row
    dk_ptr += start * dkv_row
    dv_ptr += start * dkv_row
    if not walk.attends(kind):
        value = walk.fill_value(kind, 0.0)
        for index in range(AT_ONCE):
            kv_head = first_kv_head + index
            walk.fill_rows(dk_ptr + kv_head * D, dkv_row, length, value, BLOCK, D, 2 * CHUNK)
            walk.fill_rows(dv_ptr + kv_head * D, dkv_row, length, value, BLOCK, D, 2 * CHUNK)
            for member in range(GROUP):
                walk.fill_rows(dq_ptr + (kv_head * GROUP + member) * D, dq_row, length, value, BLOCK, D, 2 * CHUNK)
        return

    cos_ptr += angle * cos_row
    sin_ptr += angle * sin_row
    q_ptr += start * q_row
    do_ptr += start * do_row
    k_ptr += start * k_row
    v_ptr += start * v_row
    keys = walk.rows_from(0, BLOCK, WIDE)
    # A loop over kv heads, chunks of channels, and steps over the group's query heads and their rows.
    for outer in range(AT_ONCE * CHUNKS):
        kv_head = first_kv_head + outer // CHUNKS
        first = outer % CHUNKS * CHUNK
        k_head_ptr = k_ptr + kv_head * k_head
        v_head_ptr = v_ptr + kv_head * v_head
        key_cos, key_sin = pairs.load_angles(cos_ptr, cos_row, sin_ptr, sin_row, keys, length, first, D, R, CHUNK)
        ka, kb = pairs.load_turned(k_head_ptr, k_row, keys, length, first, key_cos, key_sin, True, D, R, CHUNK, INTERLEAVED)
        va, vb = pairs.load_turned(
            v_head_ptr, v_row, keys, length, first, key_cos, key_sin, ROTATE_V, D, R, CHUNK, INTERLEAVED
        )
        dka = tl.zeros((BLOCK, CHUNK), tl.float32)
        dkb = tl.zeros((BLOCK, CHUNK), tl.float32)
        dva = tl.zeros((BLOCK, CHUNK), tl.float32)
        dvb = tl.zeros((BLOCK, CHUNK), tl.float32)
        for step in tl.range(STEPS, num_stages=STAGES):
            head = kv_head * GROUP + step // PARTS
            queries = walk.rows_from(step % PARTS * ROWS, ROWS, WIDE)
            q_head_ptr = q_ptr + head * q_head
            do_head_ptr = do_ptr + head * do_head
            cos, sin = key_cos, key_sin
            if ROWS < BLOCK:
                cos, sin = pairs.load_angles(cos_ptr, cos_row, sin_ptr, sin_row, queries, length, first, D, R, CHUNK)
            qa, qb = pairs.load_turned(q_head_ptr, q_row, queries, length, first, cos, sin, True, D, R, CHUNK, INTERLEAVED)
            doa, dob = pairs.load_pairs(do_head_ptr, do_row, queries, length, first, D, R, CHUNK, INTERLEAVED)
            if CHUNKS == 1:
                s = tl.dot(qb, tl.trans(kb), tl.dot(qa, tl.trans(ka)))
            else:
                s = _turned_products(
                    q_head_ptr, q_row, queries, k_head_ptr, k_row, keys, length, cos_ptr, cos_row, sin_ptr, sin_row, True,
                    True, D, R, CHUNK, INTERLEAVED,
                )  # fmt: skip
            e, _, row_sum = tile_math.exponentials(s, queries, keys, length, scale, CAUSAL)
            p = e * (1.0 / row_sum)[:, None]
            if CHUNKS == 1:
                dp = tl.dot(dob, tl.trans(vb), tl.dot(doa, tl.trans(va)))
            else:
                dp = _turned_products(
                    do_head_ptr, do_row, queries, v_head_ptr, v_row, keys, length, cos_ptr, cos_row, sin_ptr, sin_row,
                    False, ROTATE_V, D, R, CHUNK, INTERLEAVED,
                )  # fmt: skip
            dlse = tl.zeros((ROWS,), tl.float32)
            if HAS_DLSE:
                dlse = tl.load(dlse_ptr + (start + queries) * HEADS + head, mask=queries < length, other=0.0)
            ds = tile_math.score_gradient(p, dp, dlse, HAS_DLSE).to(ka.dtype)
            p = p.to(doa.dtype)
            dqa, dqb = pairs.turn_back(tl.dot(ds, ka) * scale, tl.dot(ds, kb) * scale, cos, sin)
            pairs.store_pairs(dq_ptr + head * D, dq_row, queries, length, first, dqa, dqb, D, R, CHUNK, INTERLEAVED)
            dva = tl.dot(tl.trans(p), doa, dva)
            dvb = tl.dot(tl.trans(p), dob, dvb)
            dka = tl.dot(tl.trans(ds), qa, dka)
            dkb = tl.dot(tl.trans(ds), qb, dkb)
        if ROTATE_V:
            dva, dvb = pairs.turn_back(dva, dvb, key_cos, key_sin)
        pairs.store_pairs(dv_ptr + kv_head * D, dkv_row, keys, length, first, dva, dvb, D, R, CHUNK, INTERLEAVED)
        dka, dkb = pairs.turn_back(dka * scale, dkb * scale, key_cos, key_sin)
        pairs.store_pairs(dk_ptr + kv_head * D, dkv_row, keys, length, first, dka, dkb, D, R, CHUNK, INTERLEAVED)


def _configure(heads, kv_heads, head_dim, block_size, *options, strides, dtype, capability):
    """The kernel's constants, its programs for a tile, and the plan."""
    plan = plans.rotary_backward(block_size, head_dim, dtype, heads // kv_heads, capability)
    return pairs.configure(plan, kv_heads, strides, heads, kv_heads, head_dim, block_size, *options)


_launch = Launcher(rotary_backward_kernel, _configure)


def backward(*arguments) -> None:
    """`calls.backward` with this kernel."""
    calls.backward(_launch, *arguments)
