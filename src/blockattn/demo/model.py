"""The recommender: a small pre-norm transformer over jagged batches whose attention is `block_attention`.

Layers alternate between shift block_size / 2 and 0, so that what a block learns reaches its neighbours; the last layer of
an even number has shift 0. A position is a place inside a block, counted from the end of the sequence, so all blocks share
what is learned. The output layer is the item embedding.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from blockattn import TileTable, block_attention

from .batches import JaggedBatch


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Sizes of the model; `width` is split over `heads`."""

    items: int
    block_size: int = 64
    width: int = 64
    heads: int = 2
    layers: int = 2
    dropout: float = 0.2

    @property
    def mask_token(self) -> int:
        """The token after the last item."""
        return self.items

    @property
    def shifts(self) -> list[int]:
        """The shift of each layer."""
        return [0 if layer % 2 else self.block_size // 2 for layer in range(self.layers)]


class Layer(nn.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`, on rows `[T, width]`."""

    def __init__(self, settings: ModelSettings):
        super().__init__()
        width = settings.width
        self.heads = settings.heads
        self.attention_norm = nn.LayerNorm(width)
        self.project_qkv = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(settings.dropout)

    def qkv(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k and v `[T, heads, width / heads]` of rows `[T, width]`."""
        return self.project_qkv(self.attention_norm(x)).unflatten(1, (3, self.heads, -1)).unbind(1)

    def forward(self, x: Tensor, table: TileTable) -> Tensor:
        attended = block_attention(*self.qkv(x), table).flatten(1)
        x = x + self.dropout(self.project_out(attended))
        return x + self.dropout(self.mlp(x))


class ClozeModel(nn.Module):
    """Scores over the catalogue for chosen rows of a jagged batch."""

    def __init__(self, settings: ModelSettings):
        super().__init__()
        self.settings = settings
        self.tokens = nn.Embedding(settings.items + 1, settings.width)
        self.positions = nn.Embedding(settings.block_size, settings.width)
        self.layers = nn.ModuleList(Layer(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.width)
        self.item_bias = nn.Parameter(torch.zeros(settings.items))
        self.dropout = nn.Dropout(settings.dropout)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=settings.width**-0.5)

    def embed(self, batch: JaggedBatch) -> Tensor:
        """The rows `[T, width]` that enter the first layer."""
        return self.dropout(self.tokens(batch.tokens) + self.positions(batch.positions))

    def forward(self, batch: JaggedBatch, rows: Tensor) -> Tensor:
        """Scores `[N, items]` of the rows `[N]`; the output layer runs for no other row."""
        x = self.embed(batch)
        for layer, shift in zip(self.layers, self.settings.shifts, strict=True):
            x = layer(x, batch.tables[shift])
        return nn.functional.linear(self.norm(x[rows]), self.tokens.weight[:-1], self.item_bias)
