"""Rows as pairs of channels, so that rotary angles turn them in registers.

A tile of a head is held as two matrices `[rows, CHUNK]`, the first and the second channel of each pair. Products over all
channels are sums of two products, so the pairs are only put side by side again to be stored. Pair i holds channels 2i and
2i + 1 when INTERLEAVED, else i and i + R/2; the channels that R leaves over are paired too, and turned by a cosine of 1 and
a sine of 0.
"""

import math

import triton
import triton.language as tl

from .. import tiles
from ..rotary import Rotation
from . import walk
from .launch import wide
from .plans import Plan


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
    beyond = (kind == ATTEND) & (length > 0) & ((line < 0) | (line + length > lines))
    return line, tl.where(beyond, POISON, kind)


@triton.jit
def load_angles(
    cos_ptr, cos_row, sin_ptr, sin_row, rows, length, first, D: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr
):
    """Cosine and sine `[rows, CHUNK]` of pairs from `first` on, in the table's dtype, which takes fewer registers than fp32.

    There is no turn past the tile's length and past R.
    """
    pairs = first + tl.arange(0, CHUNK)
    mask = (rows < length)[:, None]
    if R < D or (R // 2) % CHUNK != 0:
        mask = mask & (pairs < R // 2)[None, :]
    cos = tl.load(cos_ptr + rows[:, None] * cos_row + pairs[None, :], mask=mask, other=1.0)
    sin = tl.load(sin_ptr + rows[:, None] * sin_row + pairs[None, :], mask=mask, other=0.0)
    return cos, sin


@triton.jit
def turn(a, b, cos, sin):
    """A pair turned by its angle, in fp32."""
    a, b = a.to(tl.float32), b.to(tl.float32)
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    return a * cos - b * sin, a * sin + b * cos


@triton.jit
def turn_back(a, b, cos, sin):
    """A pair turned by the opposite angle, in fp32."""
    a, b = a.to(tl.float32), b.to(tl.float32)
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    return a * cos + b * sin, b * cos - a * sin


@triton.jit
def load_pairs(
    ptr, row_stride, rows, length, first, D: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Pairs from `first` on of one head of a tile, two times `[rows, CHUNK]`; 0 past the tile's length and past D."""
    if INTERLEAVED:
        x = walk.load_rows(ptr, row_stride, rows, length, 2 * first, D, 2 * CHUNK)
        a, b = tl.split(tl.reshape(x, (rows.shape[0], CHUNK, 2)))
    else:
        pairs, mask = _halves(rows, length, first, D, CHUNK)
        row_ptrs = ptr + rows[:, None] * row_stride
        a = tl.load(row_ptrs + _first_channel(pairs, D, R)[None, :], mask=mask, other=0.0, cache_modifier=".cg")
        b = tl.load(row_ptrs + _second_channel(pairs, D, R)[None, :], mask=mask, other=0.0, cache_modifier=".cg")
    return a, b


@triton.jit
def load_turned(
    ptr, row_stride, rows, length, first, cos, sin, TURN: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    CHUNK: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """The same, turned when TURN says so and rounded to the dtype they came in."""
    a, b = load_pairs(ptr, row_stride, rows, length, first, D, R, CHUNK, INTERLEAVED)
    if TURN:
        turned_a, turned_b = turn(a, b, cos, sin)
        a, b = turned_a.to(a.dtype), turned_b.to(b.dtype)
    return a, b


@triton.jit
def store_pairs(
    ptr, row_stride, rows, length, first, a, b, D: tl.constexpr, R: tl.constexpr, CHUNK: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Store pairs where `load_pairs` finds them, in the output's dtype."""
    if INTERLEAVED:
        x = tl.reshape(tl.join(a, b), (rows.shape[0], 2 * CHUNK))
        walk.store_rows(ptr, row_stride, rows, length, 2 * first, x, D, 2 * CHUNK)
    else:
        pairs, mask = _halves(rows, length, first, D, CHUNK)
        row_ptrs = ptr + rows[:, None] * row_stride
        tl.store(row_ptrs + _first_channel(pairs, D, R)[None, :], a.to(ptr.dtype.element_ty), mask=mask)
        tl.store(row_ptrs + _second_channel(pairs, D, R)[None, :], b.to(ptr.dtype.element_ty), mask=mask)


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


def configure(
    plan: Plan, program_heads: int, strides: tuple[int, ...], heads, kv_heads, head_dim, block_size, causal, has_lse, dim,
    _table_dtype, starts_dtype, per_token, interleaved, rotate_v,
) -> tuple[tuple, int, Plan]:  # fmt: skip
    """A rotary kernel's constants, its programs for a tile, and the plan; a program computes several of program_heads."""
    at_once = math.gcd(program_heads, plan.heads)
    step = (plan.rows, plan.chunk, at_once, plan.stages, wide(block_size, strides[:-1]))  # the last are the table's lines
    options = (causal, has_lse, per_token, starts_dtype is not None, interleaved, rotate_v)
    return (heads, heads // kv_heads, head_dim, dim, block_size, *step, *options), program_heads // at_once, plan
