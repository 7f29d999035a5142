"""An attention layer in training: projection, rotary embedding of q, k and v, attention, projection.

Ours is the module; the others are the same as a user would write it around an attention without rotary. They take x `[T, E]`
and both weights as leaves, so that a backward computes the gradients of all three; the gate sees that of x.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import linear

from blockattn.nn import BlockSelfAttention

from ..batch import Batch
from . import Prepared, Provider, flash, graph_obstacle, rotary
from .ours import tile_table


def prepared(layer: Callable[[Tensor, Tensor, Tensor], Tensor], batch: Batch) -> Prepared:
    """A layer of x, the weight to q, k and v, and that of the output; what goes in and comes out is in heads."""

    def in_heads(x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, batch.workload.head_dim))

    def join(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return q.flatten(1), *(weight.clone() for weight in batch.weights)

    def part(dx: Tensor, *of_weights: Tensor) -> tuple[Tensor]:
        return (in_heads(dx),)

    return Prepared(lambda *leaves: in_heads(layer(*leaves)), layout="layer", join=join, part=part)


class Module:
    name = "blockattn-layer"
    about = "blockattn.nn.BlockSelfAttention(..., rotate_v=True)(x, table, rotary)"

    def obstacle(self, batch: Batch) -> str | None:
        return None

    def prepare(self, batch: Batch) -> Prepared:
        table, shape = tile_table(batch), batch.workload
        module = BlockSelfAttention(shape.embed_dim, shape.q_heads, shape.kv_heads, rotate_v=True, device="meta")

        def layer(x: Tensor, qkv_weight: Tensor, out_weight: Tensor) -> Tensor:
            weights = {"qkv_proj.weight": qkv_weight, "out_proj.weight": out_weight}
            return functional_call(module, weights, (x, table, batch.rotary))

        return prepared(layer, batch)


def turned_apart(qkv: Tensor, cos: Tensor, sin: Tensor, heads: Sequence[int]) -> tuple[Tensor, ...]:
    """q, k and v, turned, of `[T, Hq + 2 Hk, D]`: compiled as one, since their gradients are one tensor again."""
    return tuple(rotary.turned(x, cos, sin) for x in qkv.split(heads, 1))


@dataclasses.dataclass(frozen=True)
class Written:
    """The layer as a user would write it around an attention without rotary."""

    name: str
    about: str
    attention: Provider | None

    def obstacle(self, batch: Batch) -> str | None:
        return graph_obstacle(batch) or (self.attention.obstacle(batch) if self.attention else None)

    def prepare(self, batch: Batch) -> Prepared:
        attention, shape = rotary.unrotated(self.attention, batch), batch.workload
        rotate = torch.compile(turned_apart, dynamic=False)
        heads = (shape.q_heads, shape.kv_heads, shape.kv_heads)

        def layer(x: Tensor, qkv_weight: Tensor, out_weight: Tensor) -> Tensor:
            qkv = linear(x, qkv_weight).unflatten(1, (-1, shape.head_dim))
            q, k, v = rotate(qkv, batch.rotary.cos, batch.rotary.sin, heads)
            return linear(attention(q, k, v).flatten(1), out_weight)

        return prepared(layer, batch)


PROVIDERS = (
    Module(),
    Written("blockattn-compiled-layer", "linear, torch.compile of the rotation, block_attention, linear", None),
    Written("flash2-compiled-layer", "linear, torch.compile of the rotation, FlashAttention 2, linear", flash.TorchFlash()),
)
