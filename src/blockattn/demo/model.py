"""The recommender: a small pre-norm transformer over jagged batches whose attention is `BlockSelfAttention`.

Layers alternate between shift block_size / 2 and 0, so that what a block learns reaches its neighbours; the last layer of
an even number has shift 0. Rotary embedding is all that tells places apart, so a score depends on how far apart two rows
stand and not on where. The output layer is the item embedding.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from blockattn import RotaryTable, TileTable
from blockattn.nn import BlockSelfAttention

from .batches import JaggedBatch


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Sizes of the model; `width` is split over `heads`, and no sequence has more rows than `longest`."""

    items: int
    longest: int
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

    def __init__(self, settings: ModelSettings, shift: int, rotary: RotaryTable):
        super().__init__()
        width = settings.width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = BlockSelfAttention(
            width, settings.heads, block_size=settings.block_size, shift=shift, rotary=rotary, qkv_bias=True, out_bias=True
        )
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(settings.dropout)

    def table(self, batch: JaggedBatch) -> TileTable:
        """The batch cut at this layer's shift."""
        return batch.tables[self.attention.shift]

    def qkv(self, x: Tensor) -> Tensor:
        """What the attention takes of rows `[T, width]`, before rotation: `[T, 3, heads, width / heads]`."""
        return self.attention.qkv_proj(self.attention_norm(x)).unflatten(1, (3, self.attention.num_heads, -1))

    def forward(self, x: Tensor, batch: JaggedBatch) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), self.table(batch)))
        return x + self.dropout(self.mlp(x))


class ClozeModel(nn.Module):
    """Scores over the catalogue for chosen rows of a jagged batch."""

    def __init__(self, settings: ModelSettings):
        super().__init__()
        self.settings = settings
        self.tokens = nn.Embedding(settings.items + 1, settings.width)
        rotary = RotaryTable.from_theta(settings.width // settings.heads, settings.longest)
        self.layers = nn.ModuleList(Layer(settings, shift, rotary) for shift in settings.shifts)
        self.norm = nn.LayerNorm(settings.width)
        self.item_bias = nn.Parameter(torch.zeros(settings.items))
        self.dropout = nn.Dropout(settings.dropout)
        nn.init.normal_(self.tokens.weight, std=settings.width**-0.5)

    def embed(self, batch: JaggedBatch) -> Tensor:
        """The rows `[T, width]` that enter the first layer."""
        return self.dropout(self.tokens(batch.tokens))

    def forward(self, batch: JaggedBatch, rows: Tensor) -> Tensor:
        """Scores `[N, items]` of the rows `[N]`; the output layer runs for no other row."""
        x = self.embed(batch)
        for layer in self.layers:
            x = layer(x, batch)
        return nn.functional.linear(self.norm(x[rows]), self.tokens.weight[:-1], self.item_bias)
