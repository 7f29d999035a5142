"""What the attention of a training step costs, beside the same attention on a padded batch with a dense mask.

Both are run on one batch, forward and backward, for all layers. Memory is what autograd keeps between the two.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from blockattn import TileTable, block_attention

from .batches import JaggedBatch
from .model import ClozeModel
from .train import ClozeBatch, TrainSettings, make_optimizer, train_step

REPEATS = 3
Attention = Callable[[Tensor, Tensor, Tensor, TileTable], Tensor]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds of forward plus backward, and bytes kept for the backward."""

    seconds: float
    kept_bytes: int


@dataclasses.dataclass(frozen=True)
class AttentionCost:
    """One training step, its block attention, and the dense attention that gives the same; of one batch."""

    sequences: int
    rows: int
    longest: int
    step_seconds: float
    block: Cost
    dense: Cost


def dense_attention(q: Tensor, k: Tensor, v: Tensor, table: TileTable) -> Tensor:
    """`[T, H, D]`, as block_attention gives: pad to the longest sequence, and mask what is outside the row's block."""
    lengths = table.offsets.diff()
    place = torch.arange(int(lengths.max()), device=q.device)
    inside = place < lengths[:, None]
    block = (place - table.shift).div(table.block_size, rounding_mode="floor")
    # Padding sees padding, so that no row of the softmax is empty.
    visible = (block[:, None] == block) & (inside[:, :, None] == inside[:, None, :])
    padded = []
    for x in (q, k, v):
        rows = x.new_zeros(*inside.shape, *x.shape[1:])
        rows[inside] = x
        padded.append(rows.transpose(1, 2))
    o = torch.nn.functional.scaled_dot_product_attention(*padded, attn_mask=visible[:, None])
    return o.transpose(1, 2)[inside]


def measure(model: ClozeModel, batch: ClozeBatch, settings: TrainSettings) -> AttentionCost:
    """Time a training step of a copy of the model, and each attention alone on rows of the same shape."""
    model = copy.deepcopy(model).train()
    optimizer = make_optimizer(model, settings)
    device = batch.answers.device
    lengths = batch.batch.offsets.diff()
    return AttentionCost(
        sequences=len(lengths),
        rows=len(batch.batch.tokens),
        longest=int(lengths.max()),
        step_seconds=_seconds(lambda: train_step(model, optimizer, batch), device),
        block=_cost(block_attention, model, batch.batch),
        dense=_cost(dense_attention, model, batch.batch),
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


def _cost(attention: Attention, model: ClozeModel, batch: JaggedBatch) -> Cost:
    """The cost of `attention` in all layers of the model."""
    with torch.no_grad():
        qkv = model.layers[0].qkv(model.embed(batch))
    inputs = [x.contiguous().requires_grad_() for x in qkv]
    grad_o = torch.ones_like(inputs[0])
    tables = [batch.tables[shift] for shift in model.settings.shifts]

    def forward_backward() -> None:
        for table in tables:
            torch.autograd.grad(attention(*inputs, table), inputs, grad_o)

    kept = sum(kept_bytes(lambda table=table: attention(*inputs, table)) for table in tables)
    return Cost(_seconds(forward_backward, grad_o.device), kept)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """The median time of `call`, after one call to warm up."""

    def timed() -> float:
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    timed()
    return statistics.median(timed() for _ in range(REPEATS))
