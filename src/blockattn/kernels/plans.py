"""How a portable kernel is cut for a block size, head dim, dtype and GPU: rows and channels a step, warps, registers.

A plan is a fixed function of those, never tuned at run time, so that two processes give the same bits. On Hopper and
data-centre Blackwell (compute capability 9 and 10) products are wgmma and tcgen05, whose operands lie in shared memory; on
the other GPUs they are mma, whose operands take registers too, so the same block needs smaller steps there. The tables hold
the exceptions to the usual plan, a whole tile at once. `blockattn.kernels.compile` shows that each plan fits: no more shared
memory than the chip has (99 KB on sm_86, sm_89 and sm_120), and no spills but those that its `EXPLAINED` lists.
"""

from __future__ import annotations

import dataclasses
import functools

import torch

_MIN_CHANNELS = 16  # tl.dot multiplies at least 16 channels


@dataclasses.dataclass(frozen=True)
class Plan:
    """rows: queries a step; chunk: channels a step, pairs of them in a rotary kernel (a power of two); warps: of a program;
    registers: the most that a thread may take (None: the compiler's choice); stages: how far the loop over heads loads
    ahead; held: a rotary program keeps all chunks of a block at once, otherwise it computes scores again for each."""

    rows: int
    chunk: int
    warps: int
    registers: int | None = None
    stages: int = 1
    held: bool = True

    def options(self) -> dict[str, int]:
        """The plan's launch options; a cap on registers exists on NVIDIA GPUs only."""
        cap = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": 1, **cap}


# By block size and head dim (padded to a power of two).
_Table = dict[tuple[int, int], Plan]

_WGMMA_FORWARD: _Table = {
    # With a cap that leaves room, ptxas issues all loads of a tile before the first use; left alone it saves registers.
    (64, 64): Plan(64, 64, 4, registers=80),
    (64, 128): Plan(64, 128, 4, registers=112),
    (16, 128): Plan(16, 128, 1, registers=128),
    (32, 128): Plan(32, 128, 2, registers=128),
    (16, 256): Plan(16, 128, 2),
    (64, 256): Plan(64, 128, 4),
    (128, 256): Plan(64, 128, 4),
}
_WGMMA_BACKWARD: _Table = {
    # 96 registers let five programs share an SM instead of four, for which ptxas spills a few bytes.
    (64, 64): Plan(64, 64, 4, registers=96),
    (16, 128): Plan(16, 128, 2, registers=168),
    (32, 128): Plan(32, 128, 2, registers=168),
    (16, 256): Plan(16, 256, 4),
    (32, 256): Plan(32, 256, 4),
    (64, 256): Plan(64, 256, 8),
    (128, 256): Plan(64, 64, 8),
}
_WGMMA_BACKWARD_GROUPED: _Table = {
    (64, 64): Plan(64, 64, 4, stages=3),
    (64, 128): Plan(64, 128, 8, stages=3),
    (16, 256): Plan(16, 256, 4),
    (32, 128): Plan(32, 128, 4),
    (32, 256): Plan(16, 256, 4),
    (64, 256): Plan(64, 128, 8),
    (128, 64): Plan(32, 64, 8),
    (128, 128): Plan(64, 64, 8),
    (128, 256): Plan(64, 64, 8),
}
_MMA_FORWARD: _Table = {
    (16, 256): Plan(16, 128, 2),
    (64, 128): Plan(64, 128, 8),
    (64, 256): Plan(64, 128, 4),
    (128, 128): Plan(32, 64, 4),
    (128, 256): Plan(32, 64, 4),
}
_MMA_BACKWARD: _Table = {
    (16, 256): Plan(16, 256, 4),
    (32, 128): Plan(32, 128, 4),
    (32, 256): Plan(32, 128, 4),
    (64, 128): Plan(64, 128, 8),
    (64, 256): Plan(64, 128, 8),
    (128, 64): Plan(32, 32, 8),
    (128, 128): Plan(64, 64, 8),
    (128, 256): Plan(32, 64, 8),
}
# float32 takes twice the room, and one table serves every GPU.
_FORWARD_FP32: _Table = {
    (16, 256): Plan(16, 128, 2),
    (32, 256): Plan(32, 128, 2),
    (64, 64): Plan(64, 64, 8),
    (64, 128): Plan(64, 64, 8),
    (64, 256): Plan(64, 64, 8),
    (128, 64): Plan(32, 64, 8),
    (128, 128): Plan(32, 64, 8),
    (128, 256): Plan(32, 64, 8),
}
_BACKWARD_FP32: _Table = {
    (16, 256): Plan(16, 128, 2),
    (32, 128): Plan(32, 128, 4),
    (32, 256): Plan(32, 128, 4),
    (64, 64): Plan(32, 64, 4),
    (64, 128): Plan(32, 64, 4),
    (64, 256): Plan(64, 32, 8),
    (128, 64): Plan(32, 32, 8),
    (128, 128): Plan(32, 16, 8),
    (128, 256): Plan(32, 32, 8),
}


# Rotary kernels, whose chunks are pairs of channels.
_ROTARY_WGMMA_FORWARD: _Table = {
    # Chunks of 32 pairs take few registers, and as many programs share an SM as the caps leave room for.
    (16, 256): Plan(16, 64, 2, held=False),
    (32, 256): Plan(32, 64, 4, held=False),
    (64, 64): Plan(64, 32, 4, registers=80),
    (64, 128): Plan(64, 32, 4, registers=128),
    (64, 256): Plan(64, 32, 4),
    (128, 256): Plan(128, 32, 8, held=False),
}
_ROTARY_WGMMA_BACKWARD: _Table = {
    (16, 256): Plan(16, 32, 2, held=False),
    (32, 128): Plan(32, 64, 4),
    (32, 256): Plan(16, 16, 8, held=False),
    (64, 64): Plan(64, 32, 4, registers=128),
    (64, 128): Plan(64, 32, 4, registers=168),
    (64, 256): Plan(64, 32, 4),
    (128, 64): Plan(128, 16, 8, held=False),
    (128, 256): Plan(32, 16, 8, held=False),
}
_ROTARY_WGMMA_BACKWARD_GROUPED: _Table = {
    **_ROTARY_WGMMA_BACKWARD,
    (16, 256): Plan(16, 32, 4, held=False),
    (64, 64): Plan(64, 32, 4),
    (64, 128): Plan(64, 32, 4),  # it spills, and takes 8.3 ms where 8 warps, which do not, take 10.4
    (64, 256): Plan(64, 32, 8, held=False),
    (128, 64): Plan(32, 16, 8, held=False),
    (128, 128): Plan(32, 16, 8, held=False),
}
_ROTARY_MMA_FORWARD: _Table = {
    (16, 256): Plan(16, 32, 4, held=False),
    (32, 256): Plan(32, 32, 4, held=False),
    (64, 256): Plan(64, 32, 8, held=False),
    (128, 64): Plan(128, 16, 8, held=False),
    (128, 128): Plan(32, 16, 8, held=False),
    (128, 256): Plan(32, 16, 8, held=False),
}
_ROTARY_MMA_BACKWARD: _Table = {
    (16, 256): Plan(16, 16, 8, held=False),
    (32, 256): Plan(32, 16, 8, held=False),
    (64, 256): Plan(32, 16, 8, held=False),
    (128, 64): Plan(32, 16, 8, held=False),
    (128, 128): Plan(32, 16, 8, held=False),
    (128, 256): Plan(16, 16, 8, held=False),
}
_ROTARY_MMA_BACKWARD_GROUPED: _Table = {
    **_ROTARY_MMA_BACKWARD,
    (32, 128): Plan(32, 64, 4),
    (32, 256): Plan(16, 16, 8, held=False),
    (64, 128): Plan(32, 16, 4, held=False),
    (128, 256): Plan(32, 16, 8, held=False),
}
_ROTARY_FORWARD_FP32: _Table = {
    (16, 256): Plan(16, 32, 4, held=False),
    (32, 256): Plan(32, 16, 4, held=False),
    (64, 256): Plan(32, 16, 8, held=False),
    (128, 64): Plan(16, 16, 8, held=False),
    (128, 128): Plan(32, 16, 8, held=False),
    (128, 256): Plan(32, 16, 8, held=False),
}
_ROTARY_BACKWARD_FP32: _Table = {
    (16, 64): Plan(16, 32, 4),
    (16, 256): Plan(16, 16, 8, held=False),
    (32, 128): Plan(16, 16, 4, held=False),
    (32, 256): Plan(16, 16, 4, held=False),
    (64, 64): Plan(16, 16, 8, held=False),
    (64, 128): Plan(16, 16, 8, held=False),
    (64, 256): Plan(16, 16, 4, held=False),
    (128, 64): Plan(16, 16, 8, held=False),
    (128, 128): Plan(16, 16, 8, held=False),
    (128, 256): Plan(16, 16, 8, held=False),
}

# Of a whole tile, by block size.
_FORWARD_WARPS = {16: 1, 32: 2, 64: 4, 128: 8}
_BACKWARD_WARPS = {16: 2, 32: 2, 64: 4, 128: 8}


@functools.cache
def forward(block_size: int, head_dim: int, dtype: torch.dtype, capability: tuple[int, int]) -> Plan:
    """The forward's plan; capability is (0, 0) for anything but an NVIDIA GPU."""
    sixteen_bits = _WGMMA_FORWARD if _has_wgmma(capability) else _MMA_FORWARD
    table = _FORWARD_FP32 if dtype == torch.float32 else sixteen_bits
    return _plan(table, block_size, head_dim, capability, _FORWARD_WARPS)


@functools.cache
def backward(block_size: int, head_dim: int, dtype: torch.dtype, group: int, capability: tuple[int, int]) -> Plan:
    """The backward's plan for `group` query heads a kv head."""
    if dtype == torch.float32:
        table = _BACKWARD_FP32
    elif _has_wgmma(capability):
        table = _WGMMA_BACKWARD if group == 1 else _WGMMA_BACKWARD_GROUPED
    else:
        table = _MMA_BACKWARD
    return _plan(table, block_size, head_dim, capability, _BACKWARD_WARPS)


@functools.cache
def rotary_forward(block_size: int, head_dim: int, dtype: torch.dtype, capability: tuple[int, int]) -> Plan:
    """The rotary forward's plan."""
    sixteen_bits = _ROTARY_WGMMA_FORWARD if _has_wgmma(capability) else _ROTARY_MMA_FORWARD
    table = _ROTARY_FORWARD_FP32 if dtype == torch.float32 else sixteen_bits
    return _plan(table, block_size, head_dim, capability, _FORWARD_WARPS, pairs=True)


@functools.cache
def rotary_backward(block_size: int, head_dim: int, dtype: torch.dtype, group: int, capability: tuple[int, int]) -> Plan:
    """The rotary backward's plan for `group` query heads a kv head."""
    if dtype == torch.float32:
        table = _ROTARY_BACKWARD_FP32
    elif _has_wgmma(capability):
        table = _ROTARY_WGMMA_BACKWARD if group == 1 else _ROTARY_WGMMA_BACKWARD_GROUPED
    else:
        table = _ROTARY_MMA_BACKWARD if group == 1 else _ROTARY_MMA_BACKWARD_GROUPED
    return _plan(table, block_size, head_dim, capability, _BACKWARD_WARPS, pairs=True)


def _has_wgmma(capability: tuple[int, int]) -> bool:
    return capability[0] in (9, 10)


def _plan(
    table: _Table, block_size: int, head_dim: int, capability: tuple[int, int], warps: dict[int, int], pairs: bool = False
) -> Plan:
    """The exception for the shape, or the usual plan: the whole tile at once, with warps by block size."""
    width = _width(head_dim)
    most = max(_MIN_CHANNELS, width // 2) if pairs else width
    plan = table.get((block_size, max(width, 64))) or Plan(block_size, most, warps[block_size])
    cap = None
    if plan.registers and head_dim == width:  # measured on Hopper; on Blackwell any number keeps ptxas from saving registers
        cap = {9: plan.registers, 10: 255}.get(capability[0])
    return dataclasses.replace(plan, chunk=min(plan.chunk, most), registers=cap)


def _width(head_dim: int) -> int:
    """The head dim, padded to a power of two that tl.dot multiplies."""
    return max(_MIN_CHANNELS, 1 << (head_dim - 1).bit_length())
