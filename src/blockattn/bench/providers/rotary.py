"""Rotary embedding of q, k and v before the attention: fused, and as a user would write it around another attention."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from blockattn import block_attention, block_attention_packed
from blockattn.rotary import turn

from ..batch import Batch
from . import Prepared, Provider, flash, graph_obstacle
from .ours import tile_table


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x `[T, H, D]` turned in fp32 and rounded once."""
    return turn(x.float(), cos[:, None], sin[:, None], interleaved=True).to(x.dtype)


def unrotated(attention: Provider | None, batch: Batch) -> Callable[..., Tensor]:
    """A provider's attention of q, k and v as they are; ours for None."""
    if attention is None:
        return functools.partial(block_attention, offsets=tile_table(batch))
    return attention.prepare(batch).attend


class Fused:
    name = "blockattn-fused"
    about = "block_attention_packed(qkv, table, rotary=..., rotate_v=True)"

    def obstacle(self, batch: Batch) -> str | None:
        return None

    def prepare(self, batch: Batch) -> Prepared:
        table, heads, kv_heads = tile_table(batch), batch.workload.q_heads, batch.workload.kv_heads

        def attend(qkv: Tensor) -> Tensor:
            return block_attention_packed(
                qkv, table, num_heads=heads, num_kv_heads=kv_heads, rotary=batch.rotary, rotate_v=True
            )

        def join(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
            return (torch.cat([q, k, v], 1),)

        def part(gradient: Tensor) -> tuple[Tensor, ...]:
            return gradient.split([heads, kv_heads, kv_heads], 1)

        return Prepared(attend, layout="packed", join=join, part=part)


@dataclasses.dataclass(frozen=True)
class Around:
    """An attention without rotary, of q, k and v that plain torch turned before, eager or compiled."""

    name: str
    about: str
    attention: Provider | None
    compiled: bool

    def obstacle(self, batch: Batch) -> str | None:
        obstacle = graph_obstacle(batch) if self.compiled else None
        return obstacle or (self.attention.obstacle(batch) if self.attention else None)

    def prepare(self, batch: Batch) -> Prepared:
        rotate = torch.compile(turned, dynamic=False) if self.compiled else turned
        cos, sin = batch.rotary.cos, batch.rotary.sin
        attention = unrotated(self.attention, batch)
        return Prepared(lambda *qkv: attention(*(rotate(x, cos, sin) for x in qkv)))


PROVIDERS = (
    Fused(),
    Around("blockattn-compiled", "torch.compile of the rotation, then block_attention", None, True),
    Around("blockattn-eager", "the rotation in eager torch, then block_attention", None, False),
    Around("flash2-compiled", "torch.compile of the rotation, then FlashAttention 2", flash.TorchFlash(), True),
)
