"""What the operations on values share: steps that apply a function, and the rules by which integers are held.

A scalar of the IR is a Python number or a numpy scalar, a tensor an array; which of them an operation computes with is known
from its types when its step is built. Arrays are never written into, since they may be views of other values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir import Type

# Hints for the compiler's choice of layouts and instructions, and its own notes: no value depends on them.
HINTS = "tt.divisibility tt.contiguity tt.constancy allocation.offset ttg.partition async_task_id loop.stage loop.cluster"

Function = Callable[..., Any]


def apply(op: Any, operands: tuple[str, ...], function: Function) -> Callable[[dict, Any], None]:
    """A step that gives the op's one result as a function of its operands."""
    (result,) = op.results
    if len(operands) == 1:
        (a,) = operands

        def step(env: dict, task: Any) -> None:
            env[result] = function(env[a])

    elif len(operands) == 2:
        a, b = operands

        def step(env: dict, task: Any) -> None:
            env[result] = function(env[a], env[b])

    else:

        def step(env: dict, task: Any) -> None:
            env[result] = function(*[env[name] for name in operands])

    return step


def is_tensor(kind: Type) -> bool:
    return kind.kind == "tensor"


def bits(dtype: np.dtype) -> int:
    """Width of an integer type; i1 is held as bool."""
    return 1 if dtype.kind == "b" else 8 * dtype.itemsize


def wrapped(dtype: np.dtype) -> Callable[[int], int]:
    """The function that brings a Python integer into the signed range of a type, as the hardware's registers do."""
    width = bits(dtype)
    if width == 1:
        return lambda x: bool(x & 1)
    half, mask = 1 << (width - 1), (1 << width) - 1
    return lambda x: x if -half <= x < half else ((x + half) & mask) - half


def unsigned(dtype: np.dtype) -> np.dtype:
    """The unsigned type of a signed integer's width."""
    return np.dtype(f"u{dtype.itemsize}")


def scalar(value: Any, dtype: np.dtype) -> Any:
    """An array of one element, or a numpy scalar, as the IR's scalars are held."""
    element = np.asarray(value, dtype).reshape(())[()]
    return element.item() if dtype.kind in "ib" else element


def integer(op: Any, name: str, default: int | None = None) -> int:
    """An integer attribute, like `axis = 1 : i32`."""
    text = op.attributes.get(name)
    if text is None and default is not None:
        return default
    return int(text.split(":")[0])
