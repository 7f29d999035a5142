"""Alignment to the blocks, and jagged batches."""

import pytest
import torch

from blockattn.demo.batches import aligned_rows, collate, query
from blockattn.demo.model import ModelSettings


def last_tile_rows(table, last_row):
    """Rows of the tile that holds the last row."""
    (found,) = [(start, length) for start, length, _ in table.tiles.tolist() if start <= last_row < start + length]
    assert sum(found) == last_row + 1, "the last row closes its tile"
    return found[1]


@pytest.mark.parametrize("block_size", [16, 64])
def test_the_row_to_predict_has_context_in_every_layer_for_every_length(block_size):
    settings = ModelSettings(items=300, block_size=block_size)
    for length in range(1, 201):
        sequence = query(list(range(length)), settings.mask_token, block_size)
        batch = collate([[7, 8, 9], sequence], block_size, set(settings.shifts), torch.device("cpu"))
        for shift in settings.shifts:
            rows = last_tile_rows(batch.tables[shift], int(batch.last_rows[1]))
            assert rows >= min(length + 1, block_size // 2), f"{length} items, shift {shift}"


def test_layers_alternate_between_two_shifts():
    assert ModelSettings(items=3, block_size=64, layers=4).shifts == [32, 0, 32, 0]


def test_alignment_drops_the_oldest_items_and_less_than_half_a_block():
    assert query(list(range(70)), -1, 64) == [*range(7, 70), -1]
    assert query(list(range(5)), -1, 64) == [0, 1, 2, 3, 4, -1]
    for rows in range(1, 400):
        assert rows - 32 < aligned_rows(rows, 64) <= rows


def test_collate_counts_positions_from_the_end_of_each_sequence():
    batch = collate([[4, 5, 6], list(range(18)), [9]], 16, {0, 8}, torch.device("cpu"))
    assert batch.tokens.tolist() == [4, 5, 6, *range(18), 9]
    assert batch.offsets.tolist() == [0, 3, 21, 22]
    assert batch.last_rows.tolist() == [2, 20, 21]
    assert batch.positions.tolist() == [2, 1, 0, 1, 0, *range(15, -1, -1), 0]
    assert {shift: table.shift for shift, table in batch.tables.items()} == {0: 0, 8: 8}
