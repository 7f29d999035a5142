"""Launching a kernel at little host time, on the device of its tensors, and what it needs of their strides."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch
import triton
from torch import Tensor

from .plans import Plan

_CURRENT = contextlib.nullcontext()


class Launcher:
    """Launches a Triton kernel, and passes by Triton's processing of arguments for a call like an earlier one.

    Calls are alike when everything that Triton compiles for agrees: the device, dtypes, shape (from which `configure` gives
    the kernel's constants, its programs a tile and its plan), the values of the integers and the alignment of the tensors.
    Kernel parameters come in this order: tensors, integers, floats, constants.
    """

    def __init__(self, kernel, configure: Callable[..., tuple[tuple, int, Plan]], most_compiled: int = 1024):
        self.kernel = kernel
        self.configure = configure
        self._compiled = {}
        self._most_compiled = most_compiled  # integers such as strides may take any number of values

    def __call__(
        self,
        tiles: int,
        tensors: tuple[Tensor | None, ...],
        integers: tuple[int, ...],
        floats: tuple[float, ...],
        shape: tuple,
    ) -> None:
        device, dtype = tensors[0].device, tensors[0].dtype
        key = (device, dtype, shape, integers, *[x is not None and x.data_ptr() & 15 for x in tensors])
        found = self._compiled.get(key)
        with device_of(tensors[0]):
            if found is not None:
                compiled, constants, programs = found
                _run(compiled, (tiles * programs, 1, 1), (*tensors, *integers, *floats, *constants))
                return
            configured = self.configure(*shape, strides=integers, dtype=dtype, capability=capability(device))
            constants, programs, plan = configured
            compiled = self.kernel[(tiles * programs,)](*tensors, *integers, *floats, *constants, **plan.options())
        if compiled is not None:  # Triton's interpreter compiles nothing
            if len(self._compiled) >= self._most_compiled:
                self._compiled.clear()
            self._compiled[key] = compiled, constants, programs


def _run(compiled, grid: tuple[int, int, int], arguments: tuple) -> None:
    """What `compiled[grid](*arguments)` does, in half of its time while no profiler listens to Triton's launches."""
    runtime, driver = triton.knobs.runtime, triton.runtime.driver.active
    if _listens(runtime.launch_enter_hook) or _listens(runtime.launch_exit_hook):
        compiled[grid](*arguments)
        return
    stream = driver.get_current_stream(driver.get_current_device())
    compiled.run(*grid, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments)


def _listens(hook) -> bool:
    return bool(getattr(hook, "calls", hook))  # an empty chain of hooks is true too


def device_of(tensor: Tensor) -> contextlib.AbstractContextManager:
    """A context in which `tensor`'s GPU is the current one; nothing changes for the CPU or when it is current already."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return _CURRENT
    return torch.cuda.device(tensor.device)


@functools.cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of an NVIDIA GPU; (0, 0) for anything else."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" and not torch.version.hip else (0, 0)


def side_by_side(*tensors: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """`[T, heads, D]` tensors, copied where D's stride is not 1 (an expanded gradient), and row and head stride of each."""
    strides = ()
    for tensor in tensors:
        row, head, last = tensor.stride()
        if last != 1:
            return side_by_side(*(x if x.stride(2) == 1 else x.contiguous() for x in tensors))
        strides += (row, head)
    return tensors, strides


def wide(block_size: int, row_and_head_strides: tuple[int, ...]) -> bool:
    """Whether a row of a tile can lie 2³¹ or more elements after the tile's first."""
    return max(row_and_head_strides) * block_size >= 1 << 31
