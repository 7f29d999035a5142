"""The dense attention that block attention is compared with, and what is counted as kept memory."""

import pytest
import torch

from blockattn import TileTable, block_attention
from blockattn.demo.batches import collate
from blockattn.demo.cost import dense_attention, kept_bytes, measure
from blockattn.demo.model import ClozeModel, ModelSettings
from blockattn.demo.train import TrainSettings, cloze


@pytest.mark.parametrize("shift", [0, 8])
def test_dense_attention_gives_what_block_attention_gives(shift):
    torch.manual_seed(0)
    offsets = torch.tensor([0, 5, 5, 37, 70, 71])
    table = TileTable.from_offsets(offsets, total_rows=71, block_size=16, shift=shift)
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 71, 2, 16, dtype=torch.float64).unbind())
    block, dense = block_attention(q, k, v, table), dense_attention(q, k, v, table)
    torch.testing.assert_close(dense, block)
    weight = torch.randn_like(block)
    gradients = [torch.autograd.grad(o, (q, k, v), weight) for o in (dense, block)]
    torch.testing.assert_close(*gradients)


def test_kept_bytes_count_each_storage_once():
    x = torch.randn(100, requires_grad=True)
    assert kept_bytes(lambda: x[:50] * x[50:]) == 100 * x.element_size()
    assert kept_bytes(lambda: x + 1) == 0


def test_measure_leaves_the_model_alone_and_finds_the_dense_attention_larger():
    torch.manual_seed(0)
    settings = ModelSettings(items=30, block_size=16, width=32)
    model = ClozeModel(settings)
    before = [parameter.clone() for parameter in model.parameters()]
    batch = collate([list(range(30)) * 8, [1, 2]], 16, set(settings.shifts), torch.device("cpu"))
    masked = cloze(batch, settings.mask_token, 0.2, torch.Generator().manual_seed(0))
    cost = measure(model, [masked, masked], TrainSettings())
    assert (cost.steps, cost.rows, cost.longest) == (2, 2 * 242, 240)
    assert cost.dense.kept_bytes > 2 * cost.block.kept_bytes > 0
    assert cost.step_seconds > 0
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
