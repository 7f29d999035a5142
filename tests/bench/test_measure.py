"""Measuring on a CPU: what is timed, and what stands in the table instead of a time."""

import pytest
import torch

from blockattn import TileTable
from blockattn.bench import measure, timer
from blockattn.bench.accuracy import accuracy
from blockattn.bench.batch import make_batch
from blockattn.bench.providers import Prepared, all_providers, chosen, ours, sdpa
from blockattn.bench.result import DIRECTIONS
from blockattn.bench.workloads import Workload

WORKLOAD = Workload("small", given=(64, 70, 3), q_heads=2, kv_heads=2, head_dim=16)
CPU = torch.device("cpu")
TORCH = ours.PROVIDERS[1]


class Planted:
    """The torch backend, but dk comes out 1 % too large."""

    name, about = "planted", ""

    def obstacle(self, batch):
        return None

    def prepare(self, batch):
        right = TORCH.prepare(batch).attend

        def attend(q, k, v):
            return right(q, k + 0.01 * (k - k.detach()), v)

        return Prepared(attend)


class Raising(Planted):
    name = "raising"

    def prepare(self, batch):
        raise RuntimeError("no kernel image\nand a second line")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(measure, "ROUNDS", 2)
    monkeypatch.setattr(timer, "CPU_MS", 1)


def run(*providers, directions=DIRECTIONS, workload=WORKLOAD):
    steps = []
    rows = measure.measure(workload, providers, directions, None, CPU, steps.append)
    return rows, steps


def test_every_direction_is_timed():
    rows, steps = run(TORCH)
    assert [row.direction for row in rows] == list(DIRECTIONS)
    assert len(steps) == 1 + measure.ROUNDS
    for row in rows:
        assert (row.status, row.rows, row.share, row.peak_bytes) == ("timed", 137, None, None)
        assert row.ms_p20 <= row.ms <= row.ms_p80
        assert row.samples >= 2
        tensors = {"forward": 4, "backward": 7, "both": 11}[row.direction]
        assert row.tbs == pytest.approx(tensors * 137 * 2 * 16 * 2 / row.ms * 1e-9)
    table_bytes = TileTable.from_offsets(torch.tensor([0, 64, 134, 137]), total_rows=137).tiles.nbytes
    assert rows[0].kept_bytes == 3 * 137 * 2 * 16 * 2 + table_bytes


def test_one_per_cent_in_dk_is_wrong_and_not_timed():
    rows, _ = run(Planted(), directions=("backward",))
    assert [(row.status, row.ms) for row in rows] == [("wrong", None)]
    assert "too large on average" in rows[0].reason
    assert "dq" not in rows[0].reason


def test_sets_of_inputs_are_leaves_of_their_own():
    batch = make_batch(WORKLOAD, CPU)
    one, other = (measure.enter(TORCH.prepare(batch), batch) for _ in range(2))
    assert all(x.requires_grad and x.is_leaf for x in (*one.inputs, *other.inputs))
    assert len({x.data_ptr() for x in (*one.inputs, one.do, *other.inputs, other.do, batch.q, batch.do)}) == 10


def test_what_raises_is_failed_with_its_first_line():
    rows, _ = run(Raising(), directions=("forward",))
    assert [(row.status, row.reason) for row in rows] == [("failed", "RuntimeError: no kernel image")]


def test_providers_of_full_tiles_count_their_rows():
    rows, _ = run(sdpa.PROVIDERS[0], directions=("forward",))
    assert [(row.status, row.rows) for row in rows] == [("timed", 128)]


def test_no_full_tile():
    rows, _ = run(sdpa.PROVIDERS[0], directions=("forward",), workload=Workload("short", given=(34,), head_dim=16))
    assert [row.status for row in rows] == ["absent"]
    assert "no full block of 64 rows" in rows[0].reason


def test_every_provider_of_a_gpu_says_so_on_a_cpu():
    rows, _ = run(*all_providers(), directions=("forward",))
    timed = {row.provider for row in rows if row.status == "timed"}
    assert timed == {"blockattn-torch", "blockattn-reference", "sdpa-flash", "sdpa-math"}
    assert all("NVIDIA GPU" in row.reason for row in rows if row.status == "absent" and row.provider != "blockattn-triton")


def test_providers_by_name():
    assert [provider.name for provider in chosen(["sdpa-math", "flash2"])] == ["flash2", "sdpa-math"]
    with pytest.raises(ValueError, match=r"provider must be one of blockattn-triton, .*, got 'flash3'"):
        chosen(["flash3"])


def test_accuracy_finds_the_planted_error():
    right, planted, raising = accuracy(WORKLOAD, (TORCH, Planted(), Raising()), 2, CPU, lambda text: None)
    assert raising.reason == "RuntimeError: no kernel image"
    assert raising.rms == {}
    for name in ("o", "dq", "dv"):
        assert planted.rms[name] == right.rms[name]
        assert planted.largest[name] == right.largest[name]
    assert planted.rms["dk"] > 1.5 * right.rms["dk"]
    assert 0 < right.rms["o"] < 0.01
