"""What a launch needs of its tensors: their device made current, and channels that lie side by side."""

import contextlib

import torch
from torch import Tensor

_CURRENT = contextlib.nullcontext()


def device_of(tensor: Tensor) -> contextlib.AbstractContextManager:
    """A context in which `tensor`'s GPU is the current one; nothing changes for the CPU or when it is current already."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return _CURRENT
    return torch.cuda.device(tensor.device)


def side_by_side(tensor: Tensor) -> Tensor:
    """The tensor itself when its last stride is 1, else a copy: only an expanded gradient should need one."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
