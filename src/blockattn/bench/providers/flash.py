"""FlashAttention 2 over jagged sequences, with every block given as a sequence of its own.

Three ways lead to it: torch's own operator, torch's public `varlen_attn`, and the package `flash-attn`.
"""

from __future__ import annotations

import importlib.util
import inspect

import torch
from torch import Tensor

from ..batch import Batch
from . import Prepared, needs_cuda

MAX_SEQUENCES = 65535  # a dimension of its grid


def tile_offsets(batch: Batch) -> Tensor:
    """`[N + 1]` int32 on the batch's device: where each tile starts, and where the last one ends."""
    ends = torch.cat([batch.starts, batch.starts.new_tensor([batch.total_rows])])
    return ends.to(batch.device, torch.int32)


def grid_obstacle(batch: Batch) -> str | None:
    """FlashAttention 2 puts the sequences into a grid dimension that ends at 65,535."""
    if len(batch.lengths) > MAX_SEQUENCES:
        return f"cannot launch: {len(batch.lengths):,} blocks, each a sequence, and its grid ends at {MAX_SEQUENCES:,}"
    return None


class TorchFlash:
    name = "flash2"
    about = "torch.ops.aten._flash_attention_forward (FlashAttention 2), one sequence a block"

    def obstacle(self, batch: Batch) -> str | None:
        return needs_cuda(batch) or grid_obstacle(batch)

    def prepare(self, batch: Batch) -> Prepared:
        offsets, block = tile_offsets(batch), batch.workload.block_size
        scale = batch.workload.head_dim**-0.5

        def attend(q, k, v):
            arguments = (q, k, v, offsets, offsets, block, block, 0.0, False, False)
            return torch.ops.aten._flash_attention_forward(*arguments, scale=scale)[0]

        return Prepared(attend)


class TorchVarlen:
    name = "varlen_attn"
    about = "torch.nn.attention.varlen.varlen_attn, one sequence a block"

    def obstacle(self, batch: Batch) -> str | None:
        return needs_cuda(batch) or grid_obstacle(batch)

    def prepare(self, batch: Batch) -> Prepared:
        from torch.nn.attention.varlen import varlen_attn

        offsets, block = tile_offsets(batch), batch.workload.block_size
        grouped = batch.workload.q_heads != batch.workload.kv_heads
        options = {"enable_gqa": True} if grouped and "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
        return Prepared(lambda q, k, v: varlen_attn(q, k, v, offsets, offsets, block, block, **options))


class FlashAttn:
    name = "flash-attn"
    about = "flash_attn.flash_attn_varlen_func, one sequence a block"

    def obstacle(self, batch: Batch) -> str | None:
        missing = importlib.util.find_spec("flash_attn") is None or importlib.util.find_spec("flash_attn_2_cuda") is None
        return needs_cuda(batch) or ("not installed: pip install flash-attn" if missing else grid_obstacle(batch))

    def prepare(self, batch: Batch) -> Prepared:
        from flash_attn import flash_attn_varlen_func

        offsets, block = tile_offsets(batch), batch.workload.block_size
        return Prepared(lambda q, k, v: flash_attn_varlen_func(q, k, v, offsets, offsets, block, block))


PROVIDERS = (TorchFlash(), TorchVarlen(), FlashAttn())
