"""The weights that are drawn are those of the softmax, and the pictures are written."""

import pytest
import torch

from blockattn import RotaryTable, TileTable

pytest.importorskip("matplotlib")

from blockattn.demo.batches import collate
from blockattn.demo.model import ClozeModel, ModelSettings
from blockattn.demo.pictures import attention_weights, draw_attention, draw_loss, layer_weights
from blockattn.rotary import turn

PNG = b"\x89PNG"


@pytest.mark.parametrize("first", [0, 16, 24])
def test_weights_are_the_softmax_of_each_block_of_turned_rows(first):
    torch.manual_seed(0)
    q, k = torch.randn(2, 44, 2, 16)
    table = TileTable.from_offsets(torch.tensor([0, 44]), total_rows=44, block_size=16, shift=8)
    rotary = RotaryTable.from_theta(16, 44)
    turned = [turn(x, rotary.cos[:, None], rotary.sin[:, None], interleaved=True) for x in (q, k)]
    expected = torch.zeros(2, 44, 44)
    for start, end in ((0, 8), (8, 24), (24, 40), (40, 44)):
        scores = torch.einsum("ihd,jhd->hij", *(x[start:end] for x in turned)) / 4
        expected[:, start:end, start:end] = scores.softmax(2)
    torch.testing.assert_close(attention_weights(q, k, table, rotary, first), expected[:, first:, first:])


def test_pictures_are_written(tmp_path):
    settings = ModelSettings(items=30, longest=64, block_size=16, width=32)
    model = ClozeModel(settings)
    batch = collate([list(range(30)) * 2 + [30] * 4], 16, set(settings.shifts), torch.device("cpu"))
    shifted, plain = layer_weights(model, batch, 0)
    torch.testing.assert_close(shifted.sum(1), torch.ones(64))
    assert shifted[7, 8] == 0 < plain[7, 8]
    draw_attention(model, batch, tmp_path / "attention.png")
    draw_loss([3.0, 2.0, 1.5], 30, tmp_path / "loss.png")
    for name in ("attention.png", "loss.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)
