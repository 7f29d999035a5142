"""The gate: it passes what rounds like a kernel, and stops small wrongs everywhere and large ones in one place."""

import re

import pytest
import torch

from blockattn.bench import gate, measure
from blockattn.bench.batch import make_batch
from blockattn.bench.providers import ours, sdpa
from blockattn.bench.workloads import Workload
from blockattn.nn import BlockSelfAttention


@pytest.fixture(scope="module")
def batch():
    return make_batch(Workload("small", given=(64, 1, 130, 0, 3, 64), q_heads=4, kv_heads=2, head_dim=32), "cpu")


@pytest.fixture(scope="module")
def sampled(batch):
    return gate.sample(batch, measure.sampled_tiles(batch))


def results_of(provider, batch):
    prepared = provider.prepare(batch)
    return prepared, measure.run_once(prepared, measure.enter(prepared, batch))


@pytest.mark.parametrize("provider", [*ours.PROVIDERS[1:], sdpa.PROVIDERS[0], sdpa.PROVIDERS[-1]], ids=lambda p: p.name)
def test_right_providers_pass(provider, batch, sampled):
    assert gate.faults(*measure.restrict(sampled, *results_of(provider, batch))) == []


@pytest.mark.parametrize("name", gate.RESULTS)
@pytest.mark.parametrize("factor", [1.01, 0.99, 0.0])
def test_one_per_cent_in_any_result_is_stopped(name, factor, batch, sampled):
    restricted, results = measure.restrict(sampled, *results_of(ours.PROVIDERS[1], batch))
    results[name] = results[name] * factor
    (line,) = gate.faults(restricted, results)[-1:]
    assert line.startswith(f"{name}: ")
    found = re.search(r"(\d\.\d+|\d+\.\d+)% too (large|small) on average", line)
    assert float(found[1]) == pytest.approx(100 * abs(factor - 1), abs=0.05)
    assert found[2] == ("large" if factor > 1 else "small")


@pytest.mark.parametrize("part", ["short tiles", "last rows", "a head", "channels", "one tile"])
def test_faults_in_a_part_are_stopped(part, batch, sampled):
    restricted, results = measure.restrict(sampled, *results_of(ours.PROVIDERS[1], batch))
    dk = results["dk"] = results["dk"].clone()
    first = torch.tensor(restricted.lengths).cumsum(0) - torch.tensor(restricted.lengths)
    if part == "short tiles":
        for begin, length in zip(first.tolist(), restricted.lengths):
            if length < 64:
                dk[begin : begin + length] *= 1.05
    elif part == "last rows":
        dk[torch.tensor(restricted.lengths).cumsum(0) - 1] *= 1.05
    elif part == "a head":
        dk[:, 1] *= 1.01
    elif part == "channels":
        dk[..., 16:] *= 1.01
    else:
        dk[-64:] *= 1.05
    assert any(line.startswith("dk") for line in gate.faults(restricted, results)), part


@pytest.mark.parametrize("operation", ["attention", "rotary", "layer"])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 64])
def test_the_yardstick_itself_passes(rows, operation):
    """Few rows are no reason to call rounding a bias."""
    workload = Workload("few", given=(rows,), q_heads=1, kv_heads=1, head_dim=16)
    for seed in range(20):
        batch = make_batch(workload, "cpu", seed=seed, operation=operation)
        sampled = gate.sample(batch, torch.arange(1))
        assert gate.faults(sampled, sampled.loop) == []


def test_the_truth_of_a_layer_is_the_layer_in_fp64():
    """The module's own forward and autograd's dx, on all tiles and on some."""
    workload = Workload("grouped", given=(64, 1, 130, 0, 3), q_heads=4, kv_heads=2, head_dim=16)
    batch = make_batch(workload, "cpu", operation="layer")
    layer = BlockSelfAttention(64, 4, 2, rotate_v=True, dtype=torch.float64)
    qkv_weight, out_weight = batch.weights
    layer.load_state_dict({"qkv_proj.weight": qkv_weight, "out_proj.weight": out_weight})
    x = batch.q.flatten(1).double().requires_grad_()
    y = layer(x, batch.offsets, batch.rotary, backend="reference")
    (dx,) = torch.autograd.grad(y, x, batch.do.flatten(1).double())
    for tiles in (torch.arange(len(batch.lengths)), torch.tensor([1, 4])):
        sampled = gate.sample(batch, tiles)
        assert set(sampled.truth) == set(sampled.loop) == {"o", "dx"}
        for name, want in (("o", y), ("dx", dx)):
            torch.testing.assert_close(sampled.truth[name].flatten(1), want[sampled.rows], rtol=1e-9, atol=1e-9)
            assert sampled.loop[name].dtype == torch.bfloat16


def test_one_wrong_tile_is_stopped(batch, sampled):
    restricted, results = measure.restrict(sampled, *results_of(ours.PROVIDERS[1], batch))
    results["dk"] = results["dk"].clone()
    results["dk"][-64:] *= 1.1
    assert any(line.startswith("dk") for line in gate.faults(restricted, results))


def test_one_nan_is_stopped(batch, sampled):
    restricted, results = measure.restrict(sampled, *results_of(ours.PROVIDERS[1], batch))
    results["o"] = results["o"].detach().clone()
    results["o"][5, 1, 3] = torch.nan
    assert gate.faults(restricted, results) == [f"o: 1 of {results['o'].numel()} values are not finite"]


def test_rows_of_one_have_gradients_of_nothing():
    batch = make_batch(Workload("ones", given=(1,) * 9, head_dim=16), "cpu")
    sampled = gate.sample(batch, torch.arange(9))
    assert gate.faults(*measure.restrict(sampled, *results_of(ours.PROVIDERS[1], batch))) == []


def test_full_tile_providers_are_compared_on_their_rows(batch, sampled):
    restricted, results = measure.restrict(sampled, *results_of(sdpa.PROVIDERS[0], batch))
    assert restricted.lengths == (64, 64, 64, 64)
    assert results["dq"].shape[0] == 256


def test_a_sample_is_spread(batch):
    assert gate.spread(torch.arange(100), 5).tolist() == [0, 25, 50, 74, 99]
    assert gate.spread(torch.arange(2), 5).tolist() == [0, 1]
