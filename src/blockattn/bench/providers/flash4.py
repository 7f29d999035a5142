"""FlashAttention 4, written in CuTe DSL, with every block given as a sequence of its own."""

from __future__ import annotations

import importlib.util

from ..batch import Batch
from . import Prepared, needs_cuda
from .flash import tile_offsets


class Flash4:
    name = "flash4"
    about = "flash_attn.cute.flash_attn_varlen_func (FlashAttention 4), one sequence a block"

    def obstacle(self, batch: Batch) -> str | None:
        obstacle = needs_cuda(batch)
        if obstacle:
            return obstacle
        installed = importlib.util.find_spec("flash_attn") and importlib.util.find_spec("flash_attn.cute")
        return None if installed else "not installed: pip install --pre flash-attn-4"

    def prepare(self, batch: Batch) -> Prepared:
        from flash_attn.cute import flash_attn_varlen_func

        offsets, block = tile_offsets(batch), batch.workload.block_size
        lengths = dict(cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=block, max_seqlen_k=block)

        def attend(q, k, v):
            out = flash_attn_varlen_func(q, k, v, **lengths)
            return out[0] if isinstance(out, tuple) else out

        return Prepared(attend)


PROVIDERS = (Flash4(),)
