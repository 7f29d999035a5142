"""The dense attention that block attention is compared with, and what is counted as kept memory."""

import pytest
import torch

from blockattn import RotaryTable, TileTable
from blockattn.demo.batches import collate
from blockattn.demo.cost import block_attention, dense_attention, kept_bytes, measure
from blockattn.demo.model import ClozeModel, ModelSettings
from blockattn.demo.train import TrainSettings, cloze


@pytest.mark.parametrize("shift", [0, 8])
def test_dense_attention_gives_what_block_attention_gives(shift):
    torch.manual_seed(0)
    offsets = torch.tensor([0, 5, 5, 37, 70, 71])
    table = TileTable.from_offsets(offsets, total_rows=71, block_size=16, shift=shift)
    qkv = torch.randn(71, 3, 2, 16, dtype=torch.float64, requires_grad=True)
    rotary = RotaryTable.from_theta(16, 33)
    block, dense = block_attention(qkv, table, rotary), dense_attention(qkv, table, rotary)
    torch.testing.assert_close(dense, block)
    weight = torch.randn_like(block)
    gradients = [torch.autograd.grad(o, qkv, weight) for o in (dense, block)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("attention", [block_attention, dense_attention])
def test_both_give_what_the_layer_projects(attention):
    torch.manual_seed(0)
    settings = ModelSettings(items=30, longest=40, block_size=16, width=32)
    batch = collate([list(range(30)), [1, 2]], 16, set(settings.shifts), torch.device("cpu"))
    model = ClozeModel(settings).eval()
    for layer in model.layers:
        x = model.embed(batch)
        o = attention(layer.qkv(x), layer.table(batch), layer.attention.rotary)
        expected = layer.attention(layer.attention_norm(x), layer.table(batch))
        torch.testing.assert_close(layer.attention.out_proj(o.flatten(1)), expected)


def test_kept_bytes_count_each_storage_once():
    x = torch.randn(100, requires_grad=True)
    assert kept_bytes(lambda: x[:50] * x[50:]) == 100 * x.element_size()
    assert kept_bytes(lambda: x + 1) == 0


def test_measure_leaves_the_model_alone_and_finds_the_dense_attention_larger():
    torch.manual_seed(0)
    settings = ModelSettings(items=30, longest=240, block_size=16, width=32)
    model = ClozeModel(settings)
    before = [parameter.clone() for parameter in model.parameters()]
    batch = collate([list(range(30)) * 8, [1, 2]], 16, set(settings.shifts), torch.device("cpu"))
    masked = cloze(batch, settings.mask_token, 0.2, torch.Generator().manual_seed(0))
    cost = measure(model, [masked, masked], TrainSettings())
    assert (cost.steps, cost.rows, cost.longest) == (2, 2 * 242, 240)
    assert cost.dense.kept_bytes > 2 * cost.block.kept_bytes > 0
    assert cost.step_seconds > 0
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
