"""Memory-efficient attention with a block-diagonal mask: of xformers, and of mslk, into which it moved in 2026."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util

from torch import Tensor

from ..batch import Batch
from . import Prepared, needs_cuda


@dataclasses.dataclass(frozen=True)
class MemoryEfficient:
    """`memory_efficient_attention` of a package, one sequence a block; grouped heads would need another layout."""

    name: str
    module: str
    bias_module: str

    @property
    def about(self) -> str:
        return f"{self.module}.memory_efficient_attention, BlockDiagonalMask with one sequence a block"

    def obstacle(self, batch: Batch) -> str | None:
        if importlib.util.find_spec(self.name) is None:
            return needs_cuda(batch) or f"not installed: pip install {self.name}"
        grouped = batch.workload.q_heads != batch.workload.kv_heads
        return needs_cuda(batch) or ("grouped heads are not compared" if grouped else None)

    def prepare(self, batch: Batch) -> Prepared:
        function = importlib.import_module(self.module).memory_efficient_attention
        bias_class = importlib.import_module(self.bias_module).BlockDiagonalMask
        bias = bias_class.from_seqlens(batch.lengths.tolist())

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return function(q[None], k[None], v[None], attn_bias=bias)[0]

        return Prepared(attend)


PROVIDERS = (
    MemoryEfficient("xformers", "xformers.ops", "xformers.ops.fmha.attn_bias"),
    MemoryEfficient("mslk", "mslk.attention.fmha", "mslk.attention.fmha.attn_bias"),
)
