"""Rows as pairs of channels, so that rotary angles turn them in registers.

A tile of a head is held with the two channels of each pair side by side, CHUNK pairs of it at a time; products over channels
take them in any order. Pair i holds channels 2i and 2i + 1 when INTERLEAVED, else i and i + R/2; the channels that R leaves
over are paired too, and turned by a cosine of 1 and a sine of 0.
"""

import triton
import triton.language as tl

from .. import tiles
from ..rotary import Rotation
from . import walk
from .launch import wide


@triton.jit
def first_angle(
    line_ptr, starts_ptr, start, length, kind, lines, PER_TOKEN: tl.constexpr, HAS_STARTS: tl.constexpr,
    ATTEND: tl.constexpr = tiles.ATTEND, POISON: tl.constexpr = tiles.POISON,
):  # fmt: skip
    """The table's line for a tile's first row, and the tile's kind: poisoned when the table lacks one of its positions."""
    if PER_TOKEN:
        return start, kind
    line = walk.load_position(line_ptr)
    if HAS_STARTS:
        line += tl.load(starts_ptr + walk.load_sequence(line_ptr), mask=kind == ATTEND, other=0).to(tl.int64)
    beyond = (kind == ATTEND) & (length > 0) & ((line < 0) | (line > lines - length))  # negative where it passed 2⁶³
    return line, tl.where(beyond, POISON, kind)


@triton.constexpr_function
def vector(dtype, interleaved):
    """How many neighbouring angles meet what a thread loads of a row, 16 bytes of a dtype."""
    return (64 if interleaved else 128) // dtype.primitive_bitwidth


@triton.jit
def load_angles(
    cos_ptr, cos_row, sin_ptr, sin_row, rows, length, first, D: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Cosine and sine `[rows, CHUNK]` of pairs from `first` on, in the table's dtype; no turn past the length and past R.

    VECTOR of them go to a thread (see `vector`), so that they lie where the rows that they turn do, and nothing is exchanged
    through shared memory.
    """
    pairs = first + tl.max_contiguous(tl.arange(0, CHUNK), VECTOR)
    mask = (rows < length)[:, None]
    if R < D or (R // 2) % CHUNK != 0:
        mask = mask & (pairs < R // 2)[None, :]
    cos_ptrs = cos_ptr + rows[:, None] * cos_row + pairs[None, :]
    sin_ptrs = sin_ptr + rows[:, None] * sin_row + pairs[None, :]
    return tl.load(cos_ptrs, mask=mask, other=1.0), tl.load(sin_ptrs, mask=mask, other=0.0)


@triton.jit
def joined(cos, sin):
    """Cosine and sine in one integer, in which they are kept for later in few registers and moved as one."""
    BITS: tl.constexpr = cos.dtype.primitive_bitwidth
    half: tl.constexpr = tl.uint16 if BITS == 16 else tl.uint32
    whole: tl.constexpr = tl.uint32 if BITS == 16 else tl.uint64
    return settled((sin.to(half, bitcast=True).to(whole) << BITS) | cos.to(half, bitcast=True).to(whole))


@triton.jit
def parted(angles, dtype: tl.constexpr):
    """Cosine and sine of a table of a dtype again, in fp32."""
    BITS: tl.constexpr = dtype.primitive_bitwidth
    half: tl.constexpr = tl.uint16 if BITS == 16 else tl.uint32
    if dtype == tl.bfloat16:  # it is the upper half of an fp32
        cos = (angles << 16).to(tl.float32, bitcast=True)
        sin = (angles >> 16 << 16).to(tl.float32, bitcast=True)
    else:
        cos = angles.to(half).to(dtype, bitcast=True).to(tl.float32)
        sin = (angles >> BITS).to(half).to(dtype, bitcast=True).to(tl.float32)
    return cos, sin


@triton.jit
def turn(x, cos, sin):
    """Pairs side by side `[rows, 2 CHUNK]`, turned in fp32."""
    a, b = _apart(x)
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    return settled(_together(a * cos - b * sin, a * sin + b * cos, x.dtype))


@triton.jit
def turn_back(x, cos, sin, dtype: tl.constexpr):
    """Pairs side by side, turned by the opposite angles in fp32 and rounded to a dtype."""
    a, b = _apart(x)
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    return _together(a * cos + b * sin, b * cos - a * sin, dtype)


@triton.jit
def settled(x):
    """x, through a sum over an axis of one element, which costs nothing.

    Triton moves conversions of layout up to the loads, and would turn q once more in the layout of a product's operand; it
    moves none past a sum.
    """
    return tl.sum(tl.reshape(x, (x.shape[0], x.shape[1], 1)), 2)


@triton.jit
def _apart(x):
    """First and second channels `[rows, CHUNK]` of pairs, in fp32."""
    a, b = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
    return a.to(tl.float32), b.to(tl.float32)


@triton.jit
def _together(a, b, dtype: tl.constexpr):
    return tl.reshape(tl.join(a.to(dtype), b.to(dtype)), (a.shape[0], 2 * a.shape[1]))


@triton.jit
def load_pairs(
    ptr, row_stride, rows, length, first, PAIRED: tl.constexpr, D: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Pairs from `first` on of one head of a tile, side by side `[rows, 2 CHUNK]`; 0 past the tile's length and past D.

    Without PAIRED the channels come as they stand in memory, from 2 `first` on.
    """
    if INTERLEAVED or not PAIRED:
        return walk.load_rows(ptr, row_stride, rows, length, 2 * first, D, 2 * CHUNK)
    pairs, mask = _halves(rows, length, first, D, CHUNK)
    row_ptrs = ptr + rows[:, None] * row_stride
    a = tl.load(row_ptrs + _first_channel(pairs, D, R)[None, :], mask=mask, other=0.0, cache_modifier=".cg")
    b = tl.load(row_ptrs + _second_channel(pairs, D, R)[None, :], mask=mask, other=0.0, cache_modifier=".cg")
    x = _together(a, b, a.dtype)
    return settled(x) if x.dtype == tl.float32 else x  # Triton lays no reshaped fp32 out in shared memory


@triton.jit
def store_pairs(
    ptr, row_stride, rows, length, first, x, PAIRED: tl.constexpr, D: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Store what `load_pairs` loads, in the output's dtype."""
    if INTERLEAVED or not PAIRED:
        walk.store_rows(ptr, row_stride, rows, length, 2 * first, x, D, 2 * CHUNK)
    else:
        a, b = tl.split(tl.reshape(x.to(ptr.dtype.element_ty), (rows.shape[0], CHUNK, 2)))
        pairs, mask = _halves(rows, length, first, D, CHUNK)
        row_ptrs = ptr + rows[:, None] * row_stride
        tl.store(row_ptrs + _first_channel(pairs, D, R)[None, :], a, mask=mask)
        tl.store(row_ptrs + _second_channel(pairs, D, R)[None, :], b, mask=mask)


@triton.jit
def turned_products(
    a_ptr, a_row, a_rows, b_ptr, b_row, b_rows, length, cos_ptr, cos_row, sin_ptr, sin_row, TURN_A: tl.constexpr,
    TURN_B: tl.constexpr, D: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr, VECTOR: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """a bᵀ `[a_rows, b_rows]` over all channels, read CHUNK pairs at a time, each turned or not."""
    PAIRED: tl.constexpr = TURN_A or TURN_B
    products = tl.zeros((a_rows.shape[0], b_rows.shape[0]), tl.float32)
    for first in range(0, D // 2, CHUNK):
        a = load_pairs(a_ptr, a_row, a_rows, length, first, PAIRED, D, R, CHUNK, INTERLEAVED)
        b = load_pairs(b_ptr, b_row, b_rows, length, first, PAIRED, D, R, CHUNK, INTERLEAVED)
        if TURN_A:
            cos, sin = load_angles(cos_ptr, cos_row, sin_ptr, sin_row, a_rows, length, first, D, R, CHUNK, VECTOR)
            a = turn(a, cos, sin)
        if TURN_B:
            cos, sin = load_angles(cos_ptr, cos_row, sin_ptr, sin_row, b_rows, length, first, D, R, CHUNK, VECTOR)
            b = turn(b, cos, sin)
        products = tl.dot(a, tl.trans(b), products)
    return products


@triton.jit
def _halves(rows, length, first, D: tl.constexpr, CHUNK: tl.constexpr):
    """Numbers of the pairs from `first` on, and which of them lie inside the tile and D."""
    pairs = first + tl.arange(0, CHUNK)
    mask = (rows < length)[:, None]
    if (D // 2) % CHUNK != 0:
        mask = mask & (pairs < D // 2)[None, :]
    return pairs, mask


@triton.jit
def _first_channel(pairs, D: tl.constexpr, R: tl.constexpr):
    """R/2 pairs hold i and i + R/2, and the rest of the channels, from R on, is halved alike."""
    if R == D:
        return pairs
    return tl.where(pairs < R // 2, pairs, pairs + R // 2)


@triton.jit
def _second_channel(pairs, D: tl.constexpr, R: tl.constexpr):
    if R == D:
        return pairs + D // 2
    return tl.where(pairs < R // 2, pairs + R // 2, pairs + D // 2)


def arguments(rotation: Rotation | None) -> tuple[tuple, tuple[int, ...], tuple]:
    """What a rotary kernel takes besides the plain one's arguments: tensors, integers, and what it is compiled for.

    A table per token has a line for every row, so the number of its lines, which changes with the batch, is not passed.
    """
    if rotation is None:
        return (), (), ()
    cos, sin, starts, per_token, *options = rotation
    lines = 0 if per_token else cos.shape[0]
    shape = (2 * cos.shape[1], cos.dtype, None if starts is None else starts.dtype, per_token, *options)
    return (cos, sin, starts), (cos.stride(0), sin.stride(0), lines), shape


def constants(
    step: tuple, strides: tuple[int, ...], heads, kv_heads, head_dim, block_size, causal, has_lse, dim, _table_dtype,
    starts_dtype, per_token, interleaved, rotate_v,
) -> tuple:  # fmt: skip
    """A rotary kernel's constants; `step` are those of its plan."""
    places = (*step, wide(block_size, strides[:-1]))  # the last stride is the number of the table's lines
    options = (causal, has_lse, per_token, starts_dtype is not None, interleaved, rotate_v)
    return (heads, heads // kv_heads, head_dim, dim, block_size, *places, *options)
