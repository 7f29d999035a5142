"""Benchmark shapes as data: how many sequences, how long, how many heads of what size, cut how."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Workload:
    """A jagged batch: `batch` sequences with lengths uniform in [shortest, longest]."""

    name: str
    batch: int
    shortest: int
    longest: int
    head_dim: int
    q_heads: int = 4
    kv_heads: int = 4
    block_size: int = 64

    def lengths(self, seed: int = 0) -> Tensor:
        """`[batch]` int64 on the CPU, the same for a seed on every machine."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.shortest, self.longest + 1, (self.batch,), generator=generator)

    def offsets(self, seed: int = 0) -> Tensor:
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths(seed).cumsum(0)])

    def forward_bytes(self, total_rows: int, itemsize: int = 2) -> int:
        """Each tensor once: q, k, v read, o written."""
        return total_rows * (2 * self.q_heads + 2 * self.kv_heads) * self.head_dim * itemsize

    def backward_bytes(self, total_rows: int, itemsize: int = 2) -> int:
        """Each tensor once: q, k, v, do read, dq, dk, dv written."""
        return total_rows * (3 * self.q_heads + 4 * self.kv_heads) * self.head_dim * itemsize


# Lengths uniform in [0.4, 1.0] of the longest: a mean fill of 70 %.
WORKLOADS = (
    Workload("W128", 1152, 819, 2048, 128),
    Workload("W64", 1152, 1638, 4096, 64),
    Workload("block16-D128", 1024, 1024, 1024, 128, block_size=16),
    Workload("block32-D128", 1024, 1024, 1024, 128, block_size=32),
    Workload("block128-D128", 1024, 1024, 1024, 128, block_size=128),
    Workload("block128-D64", 1024, 1024, 1024, 64, block_size=128),
    Workload("32768x64", 32768, 64, 64, 64),
    Workload("32768x34", 32768, 34, 34, 64),
    Workload("1to64", 32768, 1, 64, 64),
    Workload("D256", 512, 819, 2048, 256),
    Workload("GQA-8-2", 1152, 819, 2048, 128, q_heads=8, kv_heads=2),
)
