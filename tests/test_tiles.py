"""The tile table: every row once, in order, within its capacity, the same from torch and from the GPU kernels."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import HAS_TRITON
from blockattn import TileTable
from blockattn import tiles as tiles_module
from blockattn.tiles import ATTEND, BLOCK_SIZES, POISON, ZERO


def expected(offsets, lengths, total_rows, block_size, shift):
    """The lines of a valid table, by walking the rows one sequence at a time."""
    lines, done = [], 0

    def cut(start, stop, first, kind, sequence=None):
        begin = start
        while start < stop:
            end = min(start + first, stop)
            lines.append([start, end - start, kind, *((0, 0) if sequence is None else (start - begin, sequence))])
            start, first = end, block_size

    for b, begin in enumerate(offsets[:-1]):
        end = begin + (offsets[b + 1] - begin if lengths is None else lengths[b])
        cut(done, begin, block_size, ZERO)
        cut(begin, end, shift or block_size, ATTEND, b)
        done = end
    cut(done, total_rows, block_size, ZERO)
    return lines


@st.composite
def batches(draw):
    block_size = draw(st.sampled_from(BLOCK_SIZES))
    near = st.sampled_from([0, 1, block_size - 1, block_size, block_size + 1, 3 * block_size + 7])
    spans = draw(st.lists(near | st.integers(0, 300), max_size=12))
    before, after = draw(st.integers(0, 150)), draw(st.integers(0, 150))
    offsets = [*itertools.accumulate(spans, initial=before)]
    lengths = [draw(st.integers(0, span)) for span in spans] if draw(st.booleans()) else None
    return offsets, lengths, offsets[-1] + after, block_size, draw(st.integers(0, block_size - 1))


def builders():
    yield pytest.param("tiles", id="torch")
    if HAS_TRITON:
        yield pytest.param("kernels.triton_tiles", id="triton")


def build(builder, device, offsets, lengths, total_rows, block_size, shift):
    import importlib

    module = importlib.import_module(f"blockattn.{builder}")
    lengths = None if lengths is None else torch.tensor(lengths, device=device)
    return module.build(torch.tensor(offsets, device=device), lengths, total_rows, block_size, shift).cpu()


@pytest.mark.parametrize("builder", list(builders()))
@settings(max_examples=60, deadline=None)
@given(batch=batches())
def test_table_holds_every_row_once_in_order(builder, batch):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    offsets, lengths, total_rows, block_size, shift = batch
    table = build(builder, device, *batch)
    lines = expected(*batch)
    assert table[: len(lines)].tolist() == lines
    assert (table[len(lines) :, 1] == 0).all()
    sequences = len(offsets) - 1
    assert table.shape == (tiles_module.capacity(total_rows, sequences, block_size, shift, lengths is not None), 5)
    assert table.shape[0] <= total_rows // block_size + (3 if shift else 2) * sequences + 2


INVALID = [
    ([0, 100, 50, 200], None, 200),
    ([5, 64], None, 63),
    ([-1, 64], None, 64),
    ([0, 2**40], None, 64),
    ([0, 2**62, 2**63 - 1], None, 64),
    ([-(2**63), 2**62], None, 64),
    ([65], None, 64),
    ([0, 64], [65], 64),
    ([0, 64], [-1], 64),
    ([10, 64], [-1], 64),
    ([0, 32, 64], [2**62, 2**62], 64),
    ([0, 32, 64], [32, 33], 70),
    ([3], None, 0),
]


@pytest.mark.parametrize("builder", list(builders()))
@pytest.mark.parametrize(("offsets", "lengths", "total_rows"), INVALID)
def test_invalid_contents_poison_every_row(builder, offsets, lengths, total_rows, device):
    table = build(builder, device, offsets, lengths, total_rows, 16, 3)
    assert (table[:, 2] == POISON).all()
    assert (table[:, 1] >= 0).all()
    rows = [row for start, length, *_ in table.tolist() for row in range(start, start + length)]
    assert rows == list(range(total_rows))


@pytest.mark.parametrize(("offsets", "lengths", "total_rows"), INVALID)
def test_invalid_contents_are_named_where_they_are_checked(offsets, lengths, total_rows, device):
    lengths = None if lengths is None else torch.tensor(lengths, device=device)
    with pytest.raises(ValueError, match=r"offsets\[?|lengths\["):
        TileTable.from_offsets(
            torch.tensor(offsets, device=device), total_rows=total_rows, lengths=lengths, check_offsets=True
        )


@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
def test_many_sequences_take_several_steps_of_the_scan(device):
    """More pieces than one step of count_kernel holds (2048), with int32 offsets."""
    generator = torch.Generator().manual_seed(0)
    spans = torch.randint(0, 40, (3000,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), spans.cumsum(0)]).int()
    arguments = (None, int(offsets[-1]), 16, 5)
    from blockattn.kernels import triton_tiles

    assert triton_tiles.build(offsets.to(device), *arguments).cpu().equal(tiles_module.build(offsets, *arguments))


def test_memory_is_linear_in_tiles(device):
    offsets = torch.arange(0, 1024 * 4096, 1024, device=device)
    table = TileTable.from_offsets(offsets, total_rows=1024 * 4095)
    assert table.tiles.nbytes <= 40 * (1024 * 4095 // 64 + 2 * 4095 + 2)
