"""Pointers: arithmetic, loads and stores."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import pure
from .steps import HINTS, apply, is_tensor

HOW = "( cacheModifier = @cache)?( evictionPolicy = @evict)?"  # the model has no caches


@pure("tt.addptr", "%base, %offset", attributes=HINTS)
def _addptr(op, m):
    size = op.types[0].pointee.itemsize
    if not is_tensor(op.types[0]):
        return apply(op, op.operands, lambda base, offset: base + offset * size)
    return apply(op, op.operands, lambda base, offset: base + np.multiply(offset, size, dtype=np.int64))


@pure("tt.load", f"%address(, %mask(, %other)?)?{HOW}", attributes=f"isVolatile {HINTS}")
def _load(op, m):
    (result,), address, mask, other = op.results, m["address"], m["mask"], m["other"]
    dtype = op.types[0].pointee

    def step(env: dict, task: Any) -> None:
        lanes = None if mask is None else env[mask]
        rest = None if other is None else env[other]
        env[result] = task.program.memory.load(env[address], dtype, lanes, rest, op, task)

    return step


@pure("tt.store", f"%address, %value(, %mask)?{HOW}", attributes=HINTS)
def _store(op, m):
    address, value, mask = m["address"], m["value"], m["mask"]
    dtype = op.types[0].pointee

    def step(env: dict, task: Any) -> None:
        lanes = None if mask is None else env[mask]
        task.program.memory.store(env[address], env[value], dtype, lanes, op, task)

    return step
