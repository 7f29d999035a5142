"""Workloads: names, specs, files of lengths, and how they are cut into tiles."""

import pathlib

import pytest
import torch

from blockattn.bench import batch, workloads
from blockattn.bench.workloads import WORKLOADS, Workload, from_file, parse


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_spec_says_all_of_a_workload(workload):
    again = parse(workload.spec)
    assert again.spec == workload.spec
    assert again.lengths().equal(workload.lengths())


def test_names_are_unique():
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS)
    assert parse("W64") is WORKLOADS[1]


def test_the_spec_of_the_documentation():
    workload = parse("B1152,H4,Hk4,D128,L2048,fill0.7,block64")
    assert workload is workloads.W128
    lengths = workload.lengths()
    assert (int(lengths.min()), int(lengths.max())) == (819, 2047)
    assert float(lengths.double().mean()) == pytest.approx(0.7 * 2048, rel=0.02)


def test_fills_below_one_half_and_kv_heads_by_default():
    workload = parse("B5000,H8,D64,L100,fill0.25")
    assert workload.kv_heads == 8
    lengths = workload.lengths()
    assert (int(lengths.min()), int(lengths.max())) == (0, 50)


def test_one_long_sequence():
    assert parse("B3,L10,long5000").lengths().tolist() == [10, 10, 10, 5000]


WRONG = "W129 B Bx B1.5 B4,Q3 fill1.5 fill0 B0 graph3 B4,,D64 fill1..2 W64,B3 H3,Hk2 D20 D264 block48".split()  # noqa: SIM905 - one line instead of sixteen


@pytest.mark.parametrize("text", ["", *WRONG])
def test_a_wrong_spec_is_named(text):
    with pytest.raises(ValueError, match=r"B1152,H4,Hk4|must"):
        parse(text)


def test_lengths_from_a_file(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("3\n\n70\n0\n")
    workload = from_file(path, Workload("shape", head_dim=32))
    assert (workload.lengths().tolist(), workload.head_dim, workload.name) == ([3, 70, 0], 32, "lengths.txt")


def test_specs_of_different_files_differ():
    one, other = (Workload("file", given=given) for given in ((64, 64), (64, 63)))
    assert one.spec != other.spec
    assert one.spec == Workload("again", given=(64, 64)).spec


@pytest.mark.parametrize("text", ["", "3\nx", "3.5", "-1", "²", "0\n0"])
def test_a_wrong_file_of_lengths_is_named(tmp_path, text):
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"lengths\.txt|must have 1 to"):
        from_file(path, Workload("shape"))


def test_scaling_keeps_the_lengths_and_fits():
    small = workloads.W128.scaled(10_000)
    assert 5_000 < int(small.lengths().sum()) < 20_000
    assert small.longest == 2048
    assert workloads.W128.scaled(10**9) is workloads.W128


def test_cut_is_the_walk_over_blocks():
    lengths = torch.tensor([0, 1, 63, 64, 65, 200, 0])
    expected, first = [], 0
    for length in lengths.tolist():
        expected += [(first + begin, min(64, length - begin)) for begin in range(0, length, 64)]
        first += length
    starts, sizes = batch.cut(lengths, 64)
    assert list(zip(starts.tolist(), sizes.tolist())) == expected


def test_bytes_and_flops_of_one_full_tile():
    workload = Workload("one", 1, 64, q_heads=2, kv_heads=1, head_dim=16)
    tile = 64 * 16 * 2
    assert batch.nbytes(workload, 64, "forward") == (2 + 1 + 1 + 2) * tile
    assert batch.nbytes(workload, 64, "backward") == (2 + 1 + 1 + 2 + 2 + 1 + 1) * tile
    assert batch.nbytes(workload, 64, "both") == 16 * tile
    product = 2 * 64 * 64 * 16 * 2
    assert [batch.flops(workload, torch.tensor([64]), d) / product for d in ("forward", "backward", "both")] == [2, 5, 7]


def test_full_rows():
    made = batch.make_batch(Workload("two", given=(70, 64), head_dim=16), "cpu")
    assert made.full_rows.tolist() == [*range(64), *range(70, 134)]


def test_the_folder_of_lengths_may_be_missing():
    with pytest.raises(OSError, match="nowhere"):
        from_file(pathlib.Path("nowhere.txt"), Workload("shape"))
