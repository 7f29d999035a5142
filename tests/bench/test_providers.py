"""What the providers build for a batch, as far as a CPU can tell."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from blockattn.bench import gate
from blockattn.bench.batch import OPERATIONS, make_batch
from blockattn.bench.providers import all_providers, flash, flex
from blockattn.bench.workloads import Workload


@pytest.fixture(scope="module")
def batch():
    return make_batch(Workload("three", given=(64, 70, 0, 128), q_heads=4, kv_heads=2, head_dim=16), "cpu")


def test_each_tile_is_a_sequence_to_flash_attention(batch):
    assert flash.tile_offsets(batch).tolist() == [0, 64, 128, 134, 198, 262]
    assert flash.tile_offsets(batch).dtype == torch.int32


def test_flash_attention_cannot_launch_past_its_grid():
    ones = make_batch(Workload("ones", given=(1,) * 65_536, head_dim=16, q_heads=1, kv_heads=1), "cpu")
    assert "65,536 blocks" in flash.grid_obstacle(ones)
    assert flash.grid_obstacle(make_batch(Workload("few", given=(1,) * 65_535, head_dim=16), "cpu")) is None


@pytest.mark.parametrize("block_size", [16, 64])
def test_the_mask_of_flex_attention_hides_other_blocks(block_size):
    batch = make_batch(Workload("flex", given=(150, 70), head_dim=16, block_size=block_size), "cpu")
    mask = flex.block_diagonal(len(batch.full_rows), block_size, batch.device)
    q, k, v = (flex.to_sequence(x, batch.full_rows) for x in (batch.q, batch.k, batch.v))
    o = flex.from_sequence(flex_attention(q, k, v, block_mask=mask))
    sampled = gate.sample(batch, batch.full_tiles)
    assert sampled.rows.equal(batch.full_rows)
    assert torch.allclose(o.double(), sampled.truth["o"], atol=0.02)


def test_the_mask_of_flex_attention_names_one_block_each():
    for block_size, whole in ((64, False), (128, True)):
        mask = flex.block_diagonal(384, block_size, torch.device("cpu"))
        counts, indices = (mask.full_kv_num_blocks, mask.full_kv_indices) if whole else (mask.kv_num_blocks, mask.kv_indices)
        assert counts.tolist() == [[[1, 1, 1]]]
        assert indices.tolist() == [[[[0], [1], [2]]]]


def test_compiled_providers_are_measured_where_no_graph_is_captured():
    batch = make_batch(Workload("graph", given=(64,), head_dim=16, graph=True), "cpu", operation="layer")
    obstacles = [provider.obstacle(batch) for operation in ("rotary", "layer") for provider in all_providers(operation)]
    assert set(obstacles) == {None, "needs an NVIDIA GPU"}


def test_names_are_unique_and_say_what_is_called():
    providers = [provider for operation in OPERATIONS for provider in all_providers(operation)]
    assert len({provider.name for provider in providers}) == len(providers)
    assert all(provider.about for provider in providers)
