"""The walk over the tile table, and the masked loads and stores of a tile's rows.

A tile has `start` (its first row in the tensor), `length` (its rows) and `kind`; the table is data (see blockattn.tiles),
so a program only loads its line. Rows outside a tile are never read: masked loads give 0 there. Constants are defaults of
parameters, since Triton compares every global that a kernel uses at each launch.
"""

import triton
import triton.language as tl

from .. import tiles


@triton.jit
def program_line(tiles_ptr, HEADS: tl.constexpr, COLUMNS: tl.constexpr = tiles.COLUMNS):
    """Where the line of this program's tile stands, and its head: programs of one tile stand side by side, one a head."""
    program = tl.program_id(0)
    return tiles_ptr + (program // HEADS).to(tl.int64) * COLUMNS, program % HEADS


@triton.jit
def load_tile(line_ptr):
    """The tile's start, length and kind."""
    return tl.load(line_ptr), tl.load(line_ptr + 1).to(tl.int32), tl.load(line_ptr + 2)


@triton.jit
def load_position(line_ptr):
    """The place of the tile's first row in its sequence."""
    return tl.load(line_ptr + 3)


@triton.jit
def load_sequence(line_ptr):
    """The number of the tile's sequence."""
    return tl.load(line_ptr + 4)


@triton.jit
def rows_from(first, COUNT: tl.constexpr, WIDE: tl.constexpr):
    """Row numbers inside a tile, `[COUNT]`: 64 bits wide where a row's offset from its tile's start needs them."""
    rows = first + tl.arange(0, COUNT)
    return rows.to(tl.int64) if WIDE else rows


@triton.jit
def attends(kind, ATTEND: tl.constexpr = tiles.ATTEND):
    return kind == ATTEND


@triton.jit
def fill_value(kind, unused, POISON: tl.constexpr = tiles.POISON):
    """What a tile that does not attend holds: `unused` in rows that no sequence uses, NaN where the table is poisoned."""
    return tl.where(kind == POISON, float("nan"), unused)


@triton.jit
def load_rows(ptr, row_stride, rows, length, first, D: tl.constexpr, CHUNK: tl.constexpr):
    """`[rows, CHUNK]` of one head of a tile, from channel `first` on; 0 past the tile's length and past head dim D.

    Each value is read once by a program, so loads pass by the first-level cache.
    """
    channels = first + tl.arange(0, CHUNK)
    mask = _inside(rows, length, channels, D, CHUNK)
    return tl.load(ptr + rows[:, None] * row_stride + channels[None, :], mask=mask, other=0.0, cache_modifier=".cg")


@triton.jit
def store_rows(ptr, row_stride, rows, length, first, value, D: tl.constexpr, CHUNK: tl.constexpr):
    """Store `[rows, CHUNK]` in the output's dtype, from channel `first` on, only inside the tile and head dim D."""
    channels = first + tl.arange(0, CHUNK)
    mask = _inside(rows, length, channels, D, CHUNK)
    tl.store(ptr + rows[:, None] * row_stride + channels[None, :], value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def fill_rows(ptr, row_stride, length, value, BLOCK: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr):
    """Fill all rows and channels of one head of a tile with `value`."""
    rows = tl.arange(0, BLOCK)
    for first in range(0, D, CHUNK):
        store_rows(ptr, row_stride, rows, length, first, tl.zeros((BLOCK, CHUNK), tl.float32) + value, D, CHUNK)


@triton.jit
def _inside(rows, length, channels, D: tl.constexpr, CHUNK: tl.constexpr):
    mask = (rows < length)[:, None]
    if D % CHUNK != 0:
        mask = mask & (channels < D)[None, :]
    return mask
