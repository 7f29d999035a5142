"""How sequences are cut into tiles: the tile table, its capacity, and the check of offsets and lengths.

Every row of a jagged batch belongs to one piece: the used rows of a sequence, or the gap before, between and after them.
Each piece is cut into tiles of at most `block_size` rows, in row order, and the table holds one line a tile:
`(start, length, kind, position, sequence)`. The last two are the place of the first row in its sequence and the sequence's
number, 0 outside sequences. ATTEND tiles are computed, ZERO tiles (rows that no sequence uses) are filled with zeros. A
table made from invalid contents holds POISON tiles that cover every row, so that a kernel fills everything with NaN and
never follows a wrong offset. Slots past the last tile have length 0. `build` is the torch form, `kernels/triton_tiles.py`
the same table by two kernels.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from .checks import check_index, integer

ATTEND, ZERO, POISON = 0, 1, 2
COLUMNS = 5
BLOCK_SIZES = (16, 32, 64, 128)


def capacity(total_rows: int, sequences: int, block_size: int, shift: int, has_lengths: bool) -> int:
    """Slots of a table: the most tiles that contents of these shapes can need, at most T // block + 2 B + 2 (3 B + 2)."""
    gaps = sequences + 2 if has_lengths else 2
    padding = (sequences + gaps) * (block_size - 1) + sequences * lead_rows(block_size, shift)
    return (total_rows + padding) // block_size


def lead_rows(block_size: int, shift: int) -> int:
    """Rows that the first block of a sequence lacks: a shifted sequence starts inside a block."""
    return (block_size - shift) % block_size


def cut_sizes(block_size: int, shift: int) -> tuple[int, int]:
    """block_size and shift, once they are integers that fit; a TypeError or ValueError names the wrong one."""
    block_size, shift = integer("block_size", block_size), integer("shift", shift)
    if block_size not in BLOCK_SIZES:
        raise ValueError(f"block_size must be one of {BLOCK_SIZES}, got {block_size!r}")
    if not 0 <= shift < block_size:
        raise ValueError(f"shift must be within 0 and block_size - 1 = {block_size - 1}, got {shift}")
    return block_size, shift


def build(offsets: Tensor, lengths: Tensor | None, total_rows: int, block_size: int, shift: int) -> Tensor:
    """The tile table `[capacity, 5]` int64, a line for each tile, with torch operations on offsets' device."""
    offsets = offsets.long()
    begins = offsets[:-1]
    used = offsets.diff() if lengths is None else lengths.long()
    gap_starts = torch.cat([offsets.new_zeros(1), begins + used])
    gap_ends = torch.cat([begins, offsets.new_full((1,), total_rows)])
    valid = ((gap_starts >= 0) & (gap_starts <= offsets) & (offsets <= total_rows)).all()
    valid &= ((used >= 0) & (used <= total_rows)).all()

    def interleave(gaps: Tensor, sequences: Tensor) -> Tensor:
        return torch.cat([torch.stack([gaps[:-1], sequences], 1).flatten(), gaps[-1:]])

    starts = interleave(gap_starts, begins)
    rows = interleave(gap_ends - gap_starts, used)
    leads = interleave(torch.zeros_like(gap_starts), torch.full_like(begins, lead_rows(block_size, shift)))
    kinds = interleave(torch.full_like(gap_starts, ZERO), torch.full_like(begins, ATTEND))
    counts = torch.where(rows > 0, (rows + leads + block_size - 1) // block_size, 0)
    ends = counts.cumsum(0)

    slots = torch.arange(
        capacity(total_rows, begins.shape[0], block_size, shift, lengths is not None), device=offsets.device
    )
    piece = torch.searchsorted(ends, slots, right=True).clamp(max=ends.shape[0] - 1)
    first = (slots - ends[piece] + counts[piece]) * block_size - leads[piece]
    low = first.clamp(min=0)
    high = torch.minimum(first + block_size, rows[piece])
    in_sequence = kinds[piece] == ATTEND
    place = [low.where(in_sequence, 0), (piece // 2).where(in_sequence, 0)]
    attend = torch.stack([starts[piece] + low, (high - low).clamp(min=0), kinds[piece], *place], 1)
    low, none = slots * block_size, torch.zeros_like(slots)
    poison = torch.stack([low, (total_rows - low).clamp(0, block_size), torch.full_like(low, POISON), none, none], 1)
    return torch.where(valid, attend, poison)


def check_contents(offsets: Tensor, lengths: Tensor | None, total_rows: int) -> None:
    """Raise a ValueError that names the first wrong entry of offsets or lengths; reads them on the host."""
    values = offsets.tolist()
    for i, value in enumerate(values):
        if not 0 <= value <= total_rows:
            raise ValueError(f"offsets[{i}] must be within 0 and the {total_rows} rows of q, got {value}")
        if i and value < values[i - 1]:
            raise ValueError(f"offsets must not decrease, got offsets[{i - 1}] = {values[i - 1]} and offsets[{i}] = {value}")
    for i, length in enumerate([] if lengths is None else lengths.tolist()):
        span = values[i + 1] - values[i]
        if not 0 <= length <= span:
            raise ValueError(f"lengths[{i}] must be within 0 and the {span} rows of sequence {i}, got {length}")


@dataclasses.dataclass(frozen=True, eq=False)
class TileTable:
    """A batch cut into tiles, made once on its device and used by every layer and by the backward in place of offsets.

    Make it with `from_offsets`. `tiles` is `[N, 5]` int64 (see this module); the other fields are the
    arguments that it was made from, kept and not copied. One made under inference_mode serves inference only.
    """

    tiles: Tensor
    offsets: Tensor
    lengths: Tensor | None
    total_rows: int
    block_size: int
    shift: int

    @classmethod
    def from_offsets(
        cls,
        offsets: Tensor,
        *,
        total_rows: int,
        block_size: int = 64,
        shift: int = 0,
        lengths: Tensor | None = None,
        check_offsets: bool | None = None,
    ) -> TileTable:
        """Cut a jagged batch into tiles without a host synchronisation.

        Args:
            offsets: `[B + 1]` int32 or int64, non-decreasing: sequence b owns rows `offsets[b]` to `offsets[b + 1]`.
            total_rows: T, the rows of q.
            block_size: rows of a block: 16, 32, 64 or 128.
            shift: rows of each sequence's first block, when it is not 0; below block_size.
            lengths: `[B]` int32 or int64: the rows of each sequence that are used (default: all).
            check_offsets: read the contents and raise on wrong ones. Default: on the CPU only. Unchecked wrong contents
                make every output and gradient NaN.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a wrong dtype, shape, device, block_size or shift, or (where they are checked) wrong contents.

        >>> table = TileTable.from_offsets(torch.tensor([0, 3, 70]), total_rows=70)
        >>> table.tiles[:3].tolist()
        [[0, 3, 0, 0, 0], [3, 64, 0, 0, 1], [67, 3, 0, 64, 1]]
        """
        check_index("offsets", offsets, "B + 1")
        if offsets.shape[0] < 1:
            raise ValueError("offsets must hold B + 1 entries, so at least one, got none")
        if lengths is not None:
            check_index("lengths", lengths, "B")
            if lengths.shape[0] != offsets.shape[0] - 1:
                raise ValueError(
                    f"lengths must hold B = {offsets.shape[0] - 1} entries, one less than offsets, got {lengths.shape[0]}"
                )
            if lengths.device != offsets.device:
                raise ValueError(f"lengths must be on offsets' device {offsets.device}, got {lengths.device}")
        block_size, shift = cut_sizes(block_size, shift)
        total_rows = integer("total_rows", total_rows)
        if not 0 <= total_rows < 1 << 62:
            raise ValueError(f"total_rows must be within 0 and 2**62, got {total_rows}")
        if check_offsets is not None and not isinstance(check_offsets, bool):
            raise TypeError(f"check_offsets must be True, False or None, got {type(check_offsets).__name__}")
        check = offsets.device.type == "cpu" if check_offsets is None else check_offsets
        tiles = torch.ops.blockattn.build_tiles(offsets, lengths, total_rows, block_size, shift, check)
        return cls(tiles, offsets, lengths, total_rows, block_size, shift)

    def check(self) -> None:
        """Raise a ValueError when the contents of offsets or lengths are wrong; reads them on the host."""
        torch.ops.blockattn.build_tiles(self.offsets, self.lengths, self.total_rows, self.block_size, self.shift, True)
