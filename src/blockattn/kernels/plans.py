"""How a portable kernel is cut for a block size, head dim and dtype: rows and channels a step, and warps.

A plan is a fixed function of the shapes, never tuned at run time, so that two processes give the same bits. It keeps every
kernel free of spills and within the shared memory of the smallest supported GPU (99 KB: sm_86, sm_89, sm_120), which
`tests/test_compile.py` checks by compiling.
"""

from __future__ import annotations

import dataclasses
import functools

import torch

_MIN_CHANNELS = 16  # tl.dot multiplies at least 16 channels


@dataclasses.dataclass(frozen=True)
class Plan:
    """rows: queries a step; chunk: channels a step (a power of two); warps: of a program; registers: the most that a thread
    may take (None: the compiler's choice); stages: how far the backward's loop over query heads loads ahead."""

    rows: int
    chunk: int
    warps: int
    registers: int | None = None
    stages: int = 1

    def options(self) -> dict[str, int]:
        """The plan's launch options; a cap on registers exists on NVIDIA GPUs only."""
        cap = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": 1, **cap}


def _padded(head_dim: int) -> int:
    return max(_MIN_CHANNELS, 1 << (head_dim - 1).bit_length())


@functools.cache
def forward(block_size: int, head_dim: int, dtype: torch.dtype, capability: tuple[int, int]) -> Plan:
    """The forward's plan; capability is (0, 0) for anything but an NVIDIA GPU."""
    return Plan(
        block_size, _padded(head_dim), 1 if block_size <= 16 else 2 if block_size == 32 else 4 if block_size == 64 else 8
    )


@functools.cache
def backward(block_size: int, head_dim: int, dtype: torch.dtype, group: int, capability: tuple[int, int]) -> Plan:
    """The backward's plan for `group` query heads a kv head."""
    return Plan(
        block_size, _padded(head_dim), 1 if block_size <= 16 else 2 if block_size == 32 else 4 if block_size == 64 else 8
    )
