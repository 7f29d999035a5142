"""Alignment to the blocks, and jagged batches."""

import pytest
import torch

from blockattn.demo.batches import aligned, aligned_rows, collate, longest_query, query
from blockattn.demo.model import ModelSettings


def last_tile_rows(table, last_row):
    """Rows of the tile that holds the last row."""
    (found,) = [(start, length) for start, length, *_ in table.tiles.tolist() if start <= last_row < start + length]
    assert sum(found) == last_row + 1, "the last row closes its tile"
    return found[1]


@pytest.mark.parametrize("block_size", [16, 64])
def test_the_row_to_predict_has_context_in_every_layer_for_every_length(block_size):
    settings = ModelSettings(items=300, longest=208, block_size=block_size)
    for length in range(1, 201):
        sequence = query(list(range(length)), settings.mask_token, block_size)
        batch = collate([[7, 8, 9], sequence], block_size, set(settings.shifts), torch.device("cpu"))
        for shift in settings.shifts:
            rows = last_tile_rows(batch.tables[shift], int(batch.last_rows[1]))
            assert rows >= min(length + 1, block_size // 2), f"{length} items, shift {shift}"


def test_layers_alternate_between_two_shifts():
    assert ModelSettings(items=3, longest=64, block_size=64, layers=4).shifts == [32, 0, 32, 0]


def test_alignment_drops_the_oldest_items_and_less_than_half_a_block():
    assert query(list(range(70)), -1, 64) == [*range(7, 70), -1]
    assert query(list(range(5)), -1, 64) == [0, 1, 2, 3, 4, -1]
    for rows in range(1, 400):
        assert rows - 32 < aligned_rows(rows, 64) <= rows


@pytest.mark.parametrize("lengths", [[1], [3, 30], [31], [32, 5], [62], [63, 1], [64], [200, 190]])
def test_the_longest_query_is_the_longest_sequence_of_any_batch(lengths):
    histories = [list(range(length)) for length in lengths]
    asked = [len(query(history, -1, 64)) for history in histories]
    assert longest_query(histories, 64) == max(asked)
    assert max(len(aligned(history, 64)) for history in histories) <= max(asked)


def test_collate_concatenates_and_cuts_at_each_shift():
    batch = collate([[4, 5, 6], list(range(18)), [9]], 16, {0, 8}, torch.device("cpu"))
    assert batch.tokens.tolist() == [4, 5, 6, *range(18), 9]
    assert batch.offsets.tolist() == [0, 3, 21, 22]
    assert batch.last_rows.tolist() == [2, 20, 21]
    assert {shift: table.shift for shift, table in batch.tables.items()} == {0: 0, 8: 8}
