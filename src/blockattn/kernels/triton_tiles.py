"""The tile table on a GPU: two small kernels and no host synchronisation.

`count_kernel` (one program) walks the 2 B + 1 pieces of the batch (gap, sequence, gap, …, gap), writes the running number
of tiles after each piece, and whether offsets and lengths are valid. `expand_kernel` finds the piece of each slot by
bisection and writes its line. Both work in int64; the meaning of the table is in `blockattn.tiles`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import tiles
from .launch import device_of


@triton.jit
def _piece(piece, offsets_ptr, lengths_ptr, sequences, total_rows, LEAD: tl.constexpr, HAS_LENGTHS: tl.constexpr):
    """start, rows, lead, is_gap and valid of pieces `[n]`: piece 2 b + 1 is sequence b, piece 2 b the gap before it."""
    is_gap = piece % 2 == 0
    b = piece // 2
    own = tl.where(is_gap, b - 1, b)  # the sequence that a gap follows, or the sequence itself
    has_own = (own >= 0) & (own < sequences)
    begin = tl.load(offsets_ptr + own, mask=has_own, other=0).to(tl.int64)
    after = tl.load(offsets_ptr + own + 1, mask=own < sequences, other=0).to(tl.int64)
    if HAS_LENGTHS:
        used = tl.load(lengths_ptr + own, mask=has_own, other=0).to(tl.int64)
    else:
        used = tl.where(has_own, after - begin, 0)
    gap_end = tl.where(b < sequences, after, total_rows)
    start = tl.where(is_gap, begin + used, begin)
    rows = tl.where(is_gap, gap_end - start, used)
    valid = tl.where(is_gap, (start >= 0) & (start <= after) & (after <= total_rows), (used >= 0) & (used <= total_rows))
    return start, rows, tl.where(is_gap, 0, LEAD), is_gap, valid


@triton.jit(do_not_specialize=["sequences", "total_rows"])
def count_kernel(
    offsets_ptr, lengths_ptr, ends_ptr, sequences, total_rows,
    BLOCK: tl.constexpr, LEAD: tl.constexpr, HAS_LENGTHS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    pieces = 2 * sequences + 1
    tiles_before = tl.zeros((), tl.int64)
    invalid = tl.zeros((), tl.int32)
    for first in range(0, pieces, STEP):
        piece = first + tl.arange(0, STEP)
        inside = piece < pieces
        _, rows, lead, _, valid = _piece(piece, offsets_ptr, lengths_ptr, sequences, total_rows, LEAD, HAS_LENGTHS)
        count = tl.where(inside & (rows > 0), (rows + (lead + BLOCK - 1)) // BLOCK, 0)
        tl.store(ends_ptr + piece, tiles_before + tl.cumsum(count, 0), mask=inside)
        tiles_before += tl.sum(count, 0)
        invalid += tl.sum((inside & (valid == 0)).to(tl.int32), 0)
    tl.store(ends_ptr + pieces, (invalid == 0).to(tl.int64))


@triton.jit(do_not_specialize=["slots", "sequences", "total_rows", "bisections"])
def expand_kernel(
    offsets_ptr, lengths_ptr, ends_ptr, tiles_ptr, slots, sequences, total_rows, bisections,
    BLOCK: tl.constexpr, LEAD: tl.constexpr, HAS_LENGTHS: tl.constexpr, STEP: tl.constexpr,
    ATTEND: tl.constexpr = tiles.ATTEND, ZERO: tl.constexpr = tiles.ZERO, POISON: tl.constexpr = tiles.POISON,
    COLUMNS: tl.constexpr = tiles.COLUMNS,
):  # fmt: skip
    pieces = 2 * sequences + 1
    slot = tl.program_id(0).to(tl.int64) * STEP + tl.arange(0, STEP)
    valid = tl.load(ends_ptr + pieces) == 1
    low = tl.zeros((STEP,), tl.int32)  # the first piece that ends after the slot is within low and high
    high = tl.full((STEP,), 0, tl.int32) + (pieces - 1)
    for _ in range(bisections):
        middle = (low + high) // 2
        ends_after = tl.load(ends_ptr + middle) > slot
        high = tl.where(ends_after, middle, high)
        low = tl.where(ends_after, low, tl.minimum(middle + 1, high))
    start, rows, lead, is_gap, _ = _piece(low, offsets_ptr, lengths_ptr, sequences, total_rows, LEAD, HAS_LENGTHS)
    before = tl.load(ends_ptr + low - 1, mask=low > 0, other=0)
    first = (slot - before) * BLOCK - lead
    begin = tl.maximum(first, 0)
    length = tl.maximum(tl.minimum(first + BLOCK, rows) - begin, 0)
    start = tl.where(valid, start + begin, slot * BLOCK)
    length = tl.where(valid, length, tl.minimum(tl.maximum(total_rows - slot * BLOCK, 0), BLOCK))
    kind = tl.where(valid, tl.where(is_gap, ZERO, ATTEND), POISON)
    in_sequence = valid & (is_gap == 0)
    line_ptr = tiles_ptr + slot * COLUMNS
    tl.store(line_ptr, start, mask=slot < slots)
    tl.store(line_ptr + 1, length, mask=slot < slots)
    tl.store(line_ptr + 2, kind.to(tl.int64), mask=slot < slots)
    tl.store(line_ptr + 3, tl.where(in_sequence, begin, 0), mask=slot < slots)
    tl.store(line_ptr + 4, tl.where(in_sequence, low // 2, 0).to(tl.int64), mask=slot < slots)


def build(offsets: Tensor, lengths: Tensor | None, total_rows: int, block_size: int, shift: int) -> Tensor:
    """The same table as `blockattn.tiles.build`: `[capacity, 5]` int64 on offsets' device."""
    sequences = offsets.shape[0] - 1
    slots = tiles.capacity(total_rows, sequences, block_size, shift, lengths is not None)
    offsets = offsets.contiguous()
    lengths = None if lengths is None else lengths.contiguous()
    pieces = 2 * sequences + 1
    ends = torch.empty(pieces + 1, dtype=torch.int64, device=offsets.device)
    table = torch.empty((slots, tiles.COLUMNS), dtype=torch.int64, device=offsets.device)
    shape = dict(
        BLOCK=block_size,
        LEAD=tiles.lead_rows(block_size, shift),
        HAS_LENGTHS=lengths is not None,
    )
    with device_of(offsets):
        count_kernel[(1,)](offsets, lengths, ends, sequences, total_rows, **shape, STEP=2048, num_warps=8)
        expand_kernel[(triton.cdiv(slots, 128),)](
            offsets,
            lengths,
            ends,
            table,
            slots,
            sequences,
            total_rows,
            pieces.bit_length(),
            **shape,
            STEP=128,
            num_warps=4,
        )
    return table
