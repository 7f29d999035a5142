"""Two pictures: which rows of one user attend to which, and the loss of the training."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from blockattn import RotaryTable, TileTable, block_attention

from .batches import JaggedBatch
from .model import ClozeModel

SMOOTHING = 0.97


def attention_weights(q: Tensor, k: Tensor, table: TileTable, rotary: RotaryTable, first: int) -> Tensor:
    """`[H, T - first, T - first]` the weights by which each row from `first` on takes each such row, read out of the op.

    Attention is linear in its values: where v is 1 in one row and one column and 0 elsewhere, that column of the output
    is every row's weight of that row. D columns serve D rows a call.
    """
    total_rows, _, head_dim = q.shape
    columns = []
    for start in range(first, total_rows, head_dim):
        count = min(head_dim, total_rows - start)
        v = torch.zeros_like(k)
        place = torch.arange(count, device=k.device)
        v[start + place, :, place] = 1
        columns.append(block_attention(q, k, v, table, rotary=rotary)[first:, :, :count])
    return torch.cat(columns, 2).transpose(0, 1)


@torch.no_grad()
def layer_weights(model: ClozeModel, batch: JaggedBatch, first: int) -> list[Tensor]:
    """`attention_weights` of every layer, averaged over the heads: `[T - first, T - first]` each."""
    model.eval()
    x = model.embed(batch)
    weights = []
    for layer in model.layers:
        q, k, _ = layer.qkv(x).unbind(1)
        weights.append(attention_weights(q, k, layer.table(batch), layer.attention.rotary, first).mean(0))
        x = layer(x, batch)
    return weights


def draw_attention(model: ClozeModel, batch: JaggedBatch, path: Path) -> None:
    """Heat maps of the last rows of a batch of one sequence, a panel for each of the last two layers."""
    total_rows = len(batch.tokens)
    first = max(0, total_rows - model.settings.block_size * 5 // 2)
    panels = list(enumerate(zip(layer_weights(model, batch, first), model.settings.shifts, strict=True), start=1))[-2:]
    figure = Figure(figsize=(6 * len(panels) + 1, 6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)
    norm = PowerNorm(0.5, 0, max(float(weights.max()) for _, (weights, _) in panels))
    for axis, (number, (weights, shift)) in zip(axes[0], panels, strict=True):
        image = axis.imshow(
            weights.where(weights > 0, math.nan).tolist(), cmap="viridis", norm=norm, interpolation="nearest",
            extent=(first, total_rows, total_rows, first),
        )  # fmt: skip
        axis.set_facecolor("0.93")
        for start, length, *_ in batch.tables[shift].tiles.tolist():
            axis.add_patch(Rectangle((start, start), length, length, fill=False, edgecolor="crimson", linewidth=1.5))
        axis.set_xlim(first, total_rows)
        axis.set_ylim(total_rows, first)
        axis.set_title(f"layer {number}: blocks of {model.settings.block_size}, shift {shift}")
        axis.set_xlabel("attended row")
        axis.set_ylabel("attending row")
    figure.colorbar(image, ax=axes[0], label="weight, mean of the heads", shrink=0.8)
    figure.suptitle(f"One user's last {total_rows - first} of {total_rows} rows; the last one is the [mask] to predict")
    figure.savefig(path, dpi=120)


def draw_loss(losses: list[float], items: int, path: Path) -> None:
    """The loss of every step, its moving average, and the loss of a uniform guess."""
    smooth, weight = [], 0.0
    for loss in losses:
        weight = SMOOTHING * weight + 1 - SMOOTHING
        share = (1 - SMOOTHING) / weight  # Unbiased from the first step on.
        smooth.append(loss if not smooth else smooth[-1] + share * (loss - smooth[-1]))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    steps = range(1, len(losses) + 1)
    axis.plot(steps, losses, color="0.75", linewidth=0.8, label="step")
    axis.plot(steps, smooth, color="tab:blue", label="moving average")
    axis.axhline(math.log(items), color="0.4", linestyle="--", linewidth=1, label=f"uniform guess, ln {items}")
    axis.set_xlabel("training step")
    axis.set_ylabel("cross entropy of masked rows (nats)")
    axis.set_title("Cloze training")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=120)
