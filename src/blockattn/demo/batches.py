"""Jagged batches of item sequences: how a sequence is aligned to the blocks, masked, and concatenated.

The row to predict is always the last one. Layers cut a sequence at multiples of a block, and at multiples of a block plus
half of one, so a sequence of any number of rows could leave its last row alone in a block. `aligned_rows` trims the
oldest rows so that this row closes a whole or a half block in every layer.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from blockattn import TileTable


@dataclasses.dataclass(frozen=True)
class JaggedBatch:
    """Concatenated sequences.

    tokens: `[T]` int64, item indices, or the model's mask token.
    offsets: `[B + 1]` int64, sequence b owns rows offsets[b] to offsets[b + 1].
    tables: the tile table of each shift, shared by the layers and by their backward.
    """

    tokens: Tensor
    offsets: Tensor
    tables: dict[int, TileTable]

    @property
    def last_rows(self) -> Tensor:
        """`[B]` the row that ends each sequence."""
        return self.offsets[1:] - 1


def aligned_rows(rows: int, block_size: int) -> int:
    """Rows of a sequence to keep, its newest: a multiple of half a block, or all where it is shorter than that.

    With 2 rows or more, the last one then has company in its block at shift 0 and at shift block_size / 2: half a block
    or more, or the whole sequence.
    """
    half = block_size // 2
    return rows if rows <= half else rows - rows % half


def collate(sequences: list[list[int]], block_size: int, shifts: set[int], device: torch.device) -> JaggedBatch:
    """Concatenate non-empty sequences and cut them into tiles once for each shift."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    total_rows = int(offsets[-1])
    tokens = torch.tensor([token for sequence in sequences for token in sequence])
    offsets = offsets.to(device)
    tables = {
        shift: TileTable.from_offsets(offsets, total_rows=total_rows, block_size=block_size, shift=shift) for shift in shifts
    }
    return JaggedBatch(tokens.to(device), offsets, tables)


def aligned(sequence: list[int], block_size: int) -> list[int]:
    """The newest rows of a sequence, as many as `aligned_rows` says."""
    return sequence[-aligned_rows(len(sequence), block_size) :]


def query(history: list[int], mask_token: int, block_size: int) -> list[int]:
    """The history with the mask token at its end, aligned: what is asked at test time."""
    return aligned([*history, mask_token], block_size)


def longest_query(histories: list[list[int]], block_size: int) -> int:
    """Rows of the longest `query` of the histories, which no other batch of them exceeds."""
    return aligned_rows(max(map(len, histories)) + 1, block_size)
