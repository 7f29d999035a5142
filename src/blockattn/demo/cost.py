"""What the attention of a training step costs, beside the same attention on a padded batch with a dense mask.

Both are run on the same batches, forward and backward, for all layers, from the projection's output to the input of the
next projection, rotation and its gradient included. Memory is what autograd keeps between the two.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from blockattn import RotaryTable, TileTable, block_attention_packed
from blockattn.rotary import turn

from .batches import JaggedBatch
from .model import ClozeModel
from .train import ClozeBatch, TrainSettings, make_optimizer, train_step

REPEATS = 3
Item = TypeVar("Item")
Attention = Callable[[Tensor, TileTable, RotaryTable], Tensor]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one training step: seconds of forward plus backward on average, and bytes kept for the backward at most."""

    seconds: float
    kept_bytes: int


@dataclasses.dataclass(frozen=True)
class AttentionCost:
    """A training step, its block attention, and the dense attention that gives the same; over `steps` batches."""

    steps: int
    rows: int
    longest: int
    step_seconds: float
    block: Cost
    dense: Cost


def block_attention(qkv: Tensor, table: TileTable, rotary: RotaryTable) -> Tensor:
    """`[T, H, D]` of qkv `[T, 3, H, D]`: the call that a layer makes."""
    return block_attention_packed(qkv, table, num_heads=qkv.shape[2], rotary=rotary)


def dense_attention(qkv: Tensor, table: TileTable, rotary: RotaryTable) -> Tensor:
    """The same: turn q and k, pad to the longest sequence, and mask what is outside the row's block."""
    q, k, v = qkv.unbind(1)
    lengths = table.offsets.diff()
    place = torch.arange(int(lengths.max()), device=q.device)
    inside = place < lengths[:, None]
    block = (place - table.shift).div(table.block_size, rounding_mode="floor")
    # Padding sees padding, so that no row of the softmax is empty.
    visible = (block[:, None] == block) & (inside[:, :, None] == inside[:, None, :])
    position = inside.nonzero()[:, 1]
    cos, sin = rotary.cos[position, None], rotary.sin[position, None]
    padded = []
    for x in (turn(q, cos, sin, interleaved=True), turn(k, cos, sin, interleaved=True), v):
        rows = x.new_zeros(*inside.shape, *x.shape[1:])
        rows[inside] = x
        padded.append(rows.transpose(1, 2))
    o = torch.nn.functional.scaled_dot_product_attention(*padded, attn_mask=visible[:, None])
    return o.transpose(1, 2)[inside]


def measure(model: ClozeModel, batches: list[ClozeBatch], settings: TrainSettings) -> AttentionCost:
    """Time the training steps of a copy of the model, and each attention alone on its rows."""
    model = copy.deepcopy(model).train()
    optimizer = make_optimizer(model, settings)
    jagged = [batch.batch for batch in batches]
    return AttentionCost(
        steps=len(batches),
        rows=sum(len(batch.tokens) for batch in jagged),
        longest=max(int(batch.offsets.diff().max()) for batch in jagged),
        step_seconds=_seconds(lambda batch: train_step(model, optimizer, batch), batches),
        block=_cost(block_attention, model, jagged),
        dense=_cost(dense_attention, model, jagged),
    )


def kept_bytes(forward: Callable[[], Tensor]) -> int:
    """Bytes of the distinct storages that autograd keeps for the backward of `forward`."""
    storages: dict[int, int] = {}
    alive = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)  # A freed storage's address could come again.
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(storages.values())


def _cost(attention: Attention, model: ClozeModel, batches: list[JaggedBatch]) -> Cost:
    """The cost of `attention` in all layers of the model."""

    def calls(batch: JaggedBatch) -> tuple[Tensor, list[Callable[[], Tensor]]]:
        """qkv of the first layer, and a forward call of it for each layer."""
        with torch.no_grad():
            qkv = model.layers[0].qkv(model.embed(batch))
        qkv.requires_grad_()
        return qkv, [functools.partial(attention, qkv, layer.table(batch), layer.attention.rotary) for layer in model.layers]

    def forward_backward(call: tuple[Tensor, list[Callable[[], Tensor]]]) -> None:
        qkv, forwards = call
        for forward in forwards:
            o = forward()
            torch.autograd.grad(o, qkv, torch.ones_like(o))

    prepared = [calls(batch) for batch in batches]
    kept = max(sum(map(kept_bytes, forwards)) for _, forwards in prepared)
    return Cost(_seconds(forward_backward, prepared), kept)


def _seconds(call: Callable[[Item], object], items: list[Item]) -> float:
    """The median time of `call` over all items, after a first round to warm up, per item."""

    def timed() -> float:
        begin = time.perf_counter()
        for item in items:
            call(item)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    timed()
    return statistics.median(timed() for _ in range(REPEATS)) / len(items)
