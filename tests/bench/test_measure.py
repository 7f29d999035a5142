"""Measuring on a CPU: what is timed, and what stands in the table instead of a time."""

import dataclasses
import re

import pytest
import torch
from torch._functorch import config as functorch_config

from blockattn import TileTable, block_attention
from blockattn.bench import measure, timer
from blockattn.bench.accuracy import accuracy
from blockattn.bench.batch import OPERATIONS, make_batch
from blockattn.bench.providers import Prepared, all_providers, chosen, layer, ours, rotary, sdpa
from blockattn.bench.result import DIRECTIONS
from blockattn.bench.workloads import Workload
from blockattn.rotary import turn

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


def run(*providers, directions=DIRECTIONS, workload=WORKLOAD, operation="attention"):
    steps = []
    rows = measure.measure(workload, providers, directions, None, CPU, lambda text, some: steps.append(text), operation)
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
    workload = Workload("nearly full", given=(64, 64, 64, 64, 3), q_heads=2, kv_heads=2, head_dim=16)
    rows, _ = run(sdpa.PROVIDERS[0], directions=("forward",), workload=workload)
    assert [(row.status, row.rows) for row in rows] == [("timed", 256)]


def test_no_full_tile():
    rows, _ = run(sdpa.PROVIDERS[0], directions=("forward",), workload=Workload("short", given=(34,), head_dim=16))
    assert [row.status for row in rows] == ["absent"]
    assert rows[0].reason == "it takes full blocks only, and they hold 0% of the rows"


def test_every_provider_of_a_gpu_says_so_on_a_cpu():
    workload = Workload("full", given=(64, 128), q_heads=2, kv_heads=2, head_dim=16)
    rows, _ = run(*all_providers(), directions=("forward",), workload=workload)
    timed = {row.provider for row in rows if row.status == "timed"}
    assert timed == {"blockattn-torch", "blockattn-reference", "sdpa-flash", "sdpa-math"}
    assert all("NVIDIA GPU" in row.reason for row in rows if row.status == "absent" and row.provider != "blockattn-triton")


def test_providers_by_name():
    def names(asked, operations=OPERATIONS):
        return {operation: [provider.name for provider in some] for operation, some in chosen(asked, operations).items()}

    assert names(["sdpa-math", "flash2"]) == {"attention": ["flash2", "sdpa-math"]}
    some = ["blockattn-layer", "flash2-compiled", "blockattn-fused"]
    assert names(some) == {"rotary": ["blockattn-fused", "flash2-compiled"], "layer": ["blockattn-layer"]}
    assert names([*some, "flash2"], ("attention",)) == {"attention": ["flash2"]}
    assert set(names(None)) == set(OPERATIONS)
    with pytest.raises(ValueError, match=r"must be one of blockattn-triton, .*, flash2-compiled-layer, got 'flash3'"):
        chosen(["flash2", "flash3"])
    with pytest.raises(ValueError, match="provider must be one that computes attention or rotary, got blockattn-layer"):
        chosen(["blockattn-layer"], ("attention", "rotary"))


class SlowlyBroken(Planted):
    """Right at the gate, and raises when it has been called a few times."""

    name = "slowly broken"
    most = 4

    def prepare(self, batch):
        right, self.calls = TORCH.prepare(batch).attend, 0

        def attend(q, k, v):
            self.calls += 1
            if self.calls > self.most:
                raise MemoryError("no more")
            return right(q, k, v)

        return Prepared(attend)


class Unwritten(Planted):
    """The last row is never written."""

    name = "unwritten"

    def prepare(self, batch):
        right = TORCH.prepare(batch).attend

        def attend(q, k, v):
            o = right(q, k, v)
            return torch.cat([o[:-1], o[-1:] * torch.nan])

        return Prepared(attend)


def test_a_provider_that_breaks_late_has_failed_alone():
    rows, _ = run(SlowlyBroken(), TORCH, directions=("forward",))
    assert [(row.status, row.reason) for row in rows] == [("failed", "MemoryError: no more"), ("timed", "")]


@pytest.mark.parametrize("most", [0, 4])
def test_a_provider_that_breaks_the_gpu_is_named(monkeypatch, most):
    """Whether it breaks it while it enters or in its turn, nothing is measured after it."""
    monkeypatch.setattr(measure, "lost", lambda device: True)
    monkeypatch.setattr(SlowlyBroken, "most", most)
    with pytest.raises(measure.LostDevice, match=r"^slowly broken: MemoryError: no more$"):
        run(SlowlyBroken(), TORCH, directions=("forward",))


def test_rows_that_are_not_written_are_wrong():
    rows, _ = run(Unwritten(), directions=("forward",))
    assert rows[0].status == "wrong"
    assert "o: 32 of 4384 values are not finite" in rows[0].reason


def test_numbers_of_a_row_follow_from_times_bytes_and_the_limit(monkeypatch):
    """Known times and a known limit: median, percentiles, TB/s, share, TFLOP/s."""
    monkeypatch.setattr(timer, "samples", lambda call, device: [5.0, 1.0, 2.0, 4.0, 3.0, 9.0])

    class Limit:
        def ms(self, nbytes, direction):
            return nbytes * {"forward": 1e-6, "backward": 2e-6}[direction]

    rows = measure.measure(WORKLOAD, [TORCH], DIRECTIONS, Limit(), CPU, lambda text, some: None)
    tensor = 137 * 2 * 16 * 2
    for row, tensors, least, products in zip(rows, (4, 7, 11), (4, 14, 18), (2, 5, 7), strict=True):
        assert (row.ms, row.ms_p20, row.ms_p80, row.samples) == (3.5, 2.0, 5.0, 12)
        assert row.tbs == pytest.approx(tensors * tensor / 3.5e-3 * 1e-12)
        assert row.share == pytest.approx(least * tensor * 1e-6 / 3.5)
        assert row.tflops == pytest.approx(products * 2 * (64**2 + 64**2 + 6**2 + 3**2) * 16 * 2 / 3.5e-3 * 1e-12)


def test_the_forward_is_timed_without_a_graph_and_the_others_with_one(monkeypatch):
    seen = []

    class Watching(Planted):
        name = "watching"

        def prepare(self, batch):
            right = TORCH.prepare(batch).attend
            return Prepared(lambda q, k, v: seen.append(torch.is_grad_enabled()) or right(q, k, v))

    monkeypatch.setattr(timer, "samples", lambda call, device: (seen.clear(), call(), [1.0])[-1])
    for direction, graph in (("forward", [False]), ("backward", []), ("both", [True])):
        run(Watching(), directions=(direction,))
        assert seen == graph


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
def test_on_a_gpu(graph):
    """Peers pass the gate, memory is measured, and a graph rotates through more inputs than the L2 cache holds."""
    workload = Workload("gpu", given=(64, 640, 6400), head_dim=64, graph=graph)
    device = torch.device("cuda", 0)
    rows = measure.measure(workload, all_providers(), DIRECTIONS, None, device, lambda text, some: None)
    timed = {row.provider for row in rows if row.status == "timed"}
    assert {"blockattn-triton", "flash2", "sdpa-flash", "sdpa-cudnn"} <= timed
    assert ("flex" in timed) == (not graph)
    for row in rows:
        if row.status == "timed":
            assert row.ms > 0
            assert row.peak_bytes >= row.rows * 4 * 64 * 2
            assert row.kept_bytes >= 3 * row.rows * 4 * 64 * 2
    batch = make_batch(workload, device)
    sizes = sum(x.nbytes for x in (batch.q, batch.k, batch.v, batch.do))
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    assert measure._copies(batch) * sizes >= 3 * l2 if graph else measure._copies(batch) == 1


def test_rotary_providers_equal_the_oracle_and_count_the_table(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(timer, "samples", lambda call, device: [1.0])
    providers = all_providers("rotary")
    rows = measure.measure(WORKLOAD, providers, DIRECTIONS, None, CPU, lambda text, some: None, "rotary")
    assert {row.provider: row.status for row in rows} == {
        "blockattn-fused": "timed", "blockattn-compiled": "timed", "blockattn-eager": "timed", "flash2-compiled": "absent",
    }  # fmt: skip
    assert {row.operation for row in rows} == {"rotary"}
    tensor = 137 * 16 * 2
    assert rows[0].tbs == pytest.approx((2 * 4 + 1) * tensor / 1e-3 * 1e-12)
    assert rows[1].tbs == pytest.approx((2 * 7 + 1) * tensor / 1e-3 * 1e-12)


def test_a_wrong_rotation_is_wrong(monkeypatch):
    monkeypatch.setattr(rotary, "turned", lambda x, cos, sin: turn(x.float(), cos[:, None], -sin[:, None], True).to(x.dtype))
    eager = rotary.PROVIDERS[2:3]
    (row,) = measure.measure(WORKLOAD, eager, ("forward",), None, CPU, lambda text, some: None, "rotary")
    assert row.status == "wrong"


def test_layers_equal_the_oracle_and_count_their_products(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(timer, "samples", lambda call, device: [1.0])
    workload = Workload("grouped", given=(64, 70, 3), q_heads=4, kv_heads=2, head_dim=16)
    rows, _ = run(*all_providers("layer"), workload=workload, operation="layer")
    assert {row.provider: row.status for row in rows} == {
        "blockattn-layer": "timed", "blockattn-compiled-layer": "timed", "flash2-compiled-layer": "absent",
    }  # fmt: skip
    assert {(row.operation, row.tbs, row.share) for row in rows} == {("layer", None, None)}
    forward = 2 * 137 * 64 * (4 + 2 * 2) * 16 + 2 * 137 * 4 * 16 * 64
    for row, passes, products in zip(rows, (1, 2, 3), (2, 5, 7)):
        attention = products * 2 * (64**2 + 64**2 + 6**2 + 3**2) * 16 * 4
        assert row.tflops == pytest.approx((passes * forward + attention) / 1e-3 * 1e-12)


def test_a_backward_of_a_layer_gives_three_gradients():
    """Those of x and both weights, leaves of their own, are what is timed; the gate sees the first."""
    batch = make_batch(WORKLOAD, CPU, operation="layer")
    prepared = layer.PROVIDERS[0].prepare(batch)
    leaves = measure.enter(prepared, batch)
    assert [tuple(x.shape) for x in leaves.inputs] == [(137, 32), (96, 32), (32, 32)]
    assert len({x.data_ptr() for x in (*leaves.inputs, leaves.do, batch.q, batch.do, *batch.weights)}) == 8
    gradients = measure._call(prepared, leaves, "both")()
    assert [x.shape for x in gradients] == [x.shape for x in leaves.inputs]
    results = measure.run_once(prepared, leaves, ("o", "dx"))
    assert results["o"].shape == results["dx"].shape == batch.q.shape
    assert results["dx"].flatten(1).equal(gradients[0])


class PlantedInLayer(Planted):
    """The layer, but dx comes out 1 % too large."""

    def prepare(self, batch):
        prepared = layer.PROVIDERS[0].prepare(batch)

        def attend(x, *weights):
            return prepared.attend(x + 0.01 * (x - x.detach()), *weights)

        return dataclasses.replace(prepared, attend=attend)


def test_one_per_cent_in_dx_is_wrong_and_not_timed():
    rows, _ = run(PlantedInLayer(), directions=("both",), operation="layer")
    assert [(row.status, row.ms) for row in rows] == [("wrong", None)]
    assert re.fullmatch(r"dx: (0\.9|1\.0)\d% too large on average", rows[0].reason)


def test_a_layer_with_a_wrong_rotation_is_wrong(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(rotary, "turned", lambda x, cos, sin: turn(x.float(), cos[:, None], -sin[:, None], True).to(x.dtype))
    rows, _ = run(layer.PROVIDERS[1], directions=("forward",), operation="layer")
    assert [row.status for row in rows] == ["wrong"]


class Compiled(Planted):
    """A compiled step, whose backward would take exp's output for its own once it has run without retain_graph."""

    name = "compiled"

    def prepare(self, batch):
        right = TORCH.prepare(batch).attend
        same = torch.compile(lambda x: x.float().exp().log().to(x.dtype), backend="aot_eager", dynamic=False)
        return Prepared(lambda q, k, v: right(same(q), k, v))


def test_a_compiled_backward_is_repeated():
    before = functorch_config.donated_buffer
    rows, _ = run(Compiled(), directions=("backward",))
    assert [(row.status, row.reason) for row in rows] == [("timed", "")]
    assert functorch_config.donated_buffer == before


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
def test_layers_on_a_gpu(graph):
    """All three pass the gate and are timed, without a graph, and the speed-up is over FlashAttention's."""
    workload = Workload("gpu", given=(64, 640, 6400), head_dim=64, graph=graph)
    device = torch.device("cuda", 0)
    rows = measure.measure(workload, all_providers("layer"), DIRECTIONS, None, device, lambda text, some: None, "layer")
    if graph:  # what torch compiled cannot be replayed
        rows, others = rows[:3], rows[3:]
        assert {row.status for row in others} == {"absent"}
    assert {(row.status, row.reason) for row in rows} == {("timed", "")}
    for row in rows:
        assert row.ms > 0
        assert row.speedup == 1 or row.provider != "flash2-compiled-layer"
        assert row.peak_bytes >= row.rows * 4 * 64 * 2
        assert row.kept_bytes >= 5 * row.rows * 4 * 64 * 2  # x, q, k, v and the output of the attention


def test_accuracy_leaves_out_what_is_not_finite():
    (error,) = accuracy(WORKLOAD, (Unwritten(),), 2, CPU, lambda text, some: None)
    assert (error.rms, error.largest) == ({}, {})
    assert "not finite" in error.reason


def test_accuracy_is_the_error_against_fp64():
    (error,) = accuracy(WORKLOAD, (TORCH,), 1, CPU, lambda text, some: None)
    batch = make_batch(WORKLOAD, CPU)
    q, k, v = (x.double().requires_grad_() for x in (batch.q, batch.k, batch.v))
    want = block_attention(q, k, v, batch.offsets, backend="reference")
    results = [want, *torch.autograd.grad(want, (q, k, v), batch.do.double())]
    got = measure.run_once(TORCH.prepare(batch), measure.enter(TORCH.prepare(batch), batch))
    for name, truth in zip(("o", "dq", "dk", "dv"), results, strict=True):
        difference = got[name].double() - truth
        assert error.rms[name] == pytest.approx(float(difference.square().mean().sqrt()), rel=1e-6)
        assert error.largest[name] == pytest.approx(float(difference.abs().max()), rel=1e-6)


def test_accuracy_finds_the_planted_error():
    right, planted, raising = accuracy(WORKLOAD, (TORCH, Planted(), Raising()), 2, CPU, lambda text, some: None)
    assert raising.reason == "RuntimeError: no kernel image"
    assert raising.rms == {}
    for name in ("o", "dq", "dv"):
        assert planted.rms[name] == right.rms[name]
        assert planted.largest[name] == right.largest[name]
    assert planted.rms["dk"] > 1.5 * right.rms["dk"]
    assert 0 < right.rms["o"] < 0.01
