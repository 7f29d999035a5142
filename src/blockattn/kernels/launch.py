"""Launching a kernel at little host time, on the device of its tensors, and what it needs of their strides."""

from __future__ import annotations

import contextlib
import functools

import torch
from torch import Tensor

from .plans import Plan

_CURRENT = contextlib.nullcontext()


class Launcher:
    """Launches a Triton kernel, and passes by Triton's processing of arguments for a call like an earlier one.

    Calls are alike when everything that Triton compiles for agrees: the device, dtypes, constants (with the plan, which
    follows from them), the alignment of the tensors and the values of the integers. Kernel parameters come in this order:
    tensors, integers, floats, constants.
    """

    def __init__(self, kernel, most_compiled: int = 1024):
        self.kernel = kernel
        self._compiled = {}
        self._most_compiled = most_compiled  # integers such as strides may take any number of values

    def __call__(
        self,
        programs: int,
        tensors: tuple[Tensor | None, ...],
        integers: tuple[int, ...],
        floats: tuple[float, ...],
        constants: tuple,
        plan: Plan,
    ) -> None:
        device, dtype = tensors[0].device, tensors[0].dtype
        alignments = [x is not None and x.data_ptr() & 15 for x in tensors]
        key = (device, dtype, constants, integers, *alignments)
        compiled = self._compiled.get(key)
        arguments = (*tensors, *integers, *floats, *constants)
        with device_of(tensors[0]):
            if compiled is not None:
                compiled[(programs, 1, 1)](*arguments)
                return
            compiled = self.kernel[(programs,)](*arguments, **plan.options())
        if compiled is not None:  # Triton's interpreter compiles nothing
            if len(self._compiled) >= self._most_compiled:
                self._compiled.clear()
            self._compiled[key] = compiled


def device_of(tensor: Tensor) -> contextlib.AbstractContextManager:
    """A context in which `tensor`'s GPU is the current one; nothing changes for the CPU or when it is current already."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return _CURRENT
    return torch.cuda.device(tensor.device)


@functools.cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of an NVIDIA GPU; (0, 0) for anything else."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" and not torch.version.hip else (0, 0)


def side_by_side(tensor: Tensor) -> Tensor:
    """The tensor itself when its last stride is 1, else a copy: only an expanded gradient should need one."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def strides(*tensors: Tensor) -> tuple[int, ...]:
    """Row and head stride of each tensor, in a row."""
    found = ()
    for tensor in tensors:
        found += tensor.stride()[:2]
    return found


def wide(block_size: int, row_and_head_strides: tuple[int, ...]) -> bool:
    """Whether a row of a tile can lie 2³¹ or more elements after the tile's first."""
    return max(row_and_head_strides) * block_size >= 1 << 31
