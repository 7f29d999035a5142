"""Checks of single arguments that several modules share; every error names the argument.

`integer` gives its argument back, as Python's own type where it was another library's.
"""

from __future__ import annotations

import numbers

import torch
from torch import Tensor


def check_tensor(name: str, value: object) -> None:
    """Raise a TypeError for what is no tensor, and a ValueError for a sparse or nested one."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor, got layout {value.layout}")


def check_index(name: str, value: object, shape: str) -> None:
    """Raise unless the value is an int32 or int64 tensor of one dimension, which `shape` puts into words."""
    check_tensor(name, value)
    if value.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} must be int32 or int64, got {value.dtype}")
    if value.dim() != 1:
        raise ValueError(f"{name} must have shape [{shape}], got {tuple(value.shape)}")


def check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")


def integer(name: str, value: object) -> int | torch.SymInt:
    """The value, which may also be numpy's; a TypeError when it is no integer (a tensor is none: reading it would wait)."""
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    return int(value)


def positive(name: str, value: object) -> int | torch.SymInt:
    """An integer of 1 or more."""
    value = integer(name, value)
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value
