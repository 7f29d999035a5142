"""Pointers: arithmetic, loads and stores."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import pure, refuse
from .steps import HINTS, apply, is_tensor

HOW = "( cacheModifier = @cache)?( evictionPolicy = @evict)?"  # the model has no caches


@pure("tt.addptr", "%base, %offset", attributes=HINTS)
def _addptr(op, m):
    size = op.types[0].pointee.itemsize
    if not is_tensor(op.types[0]):
        return apply(op, op.operands, lambda base, offset: base + offset * size)
    return apply(op, op.operands, lambda base, offset: base + np.multiply(offset, size, dtype=np.int64))


@pure("tt.ptr_to_int", "%pointer", attributes=HINTS)
def _ptr_to_int(op, m):
    return apply(op, op.operands, _same(op))


@pure("tt.int_to_ptr", "%address", attributes=HINTS)
def _int_to_ptr(op, m):
    """Such an address may be that of a tensor that is no argument."""
    _same(op)
    (result,), address = op.results, m["address"]

    def step(env: dict, task: Any) -> None:
        env[result] = env[address]
        task.program.memory.adopt(env[address])

    return step


def _same(op: Any) -> Any:
    """Addresses are integers of 64 bits."""
    if op.types[0].dtype != op.result_types[0].dtype:
        raise refuse(op, "an address in other than 64 bits is not modelled")
    return lambda x: x


@pure("tt.load", f"%address(, %mask(, %other)?)?{HOW}", attributes=f"isVolatile {HINTS}")
def _load(op, m):
    (result,), address, mask, other = op.results, m["address"], m["mask"], m["other"]
    dtype, of_pointers = op.types[0].pointee, "!tt.ptr<!tt.ptr<" in op.signature

    def step(env: dict, task: Any) -> None:
        lanes = None if mask is None else env[mask]
        rest = None if other is None else env[other]
        value = env[result] = task.program.memory.load(env[address], dtype, lanes, rest, op, task)
        if of_pointers:
            task.program.memory.adopt(value)

    return step


@pure("tt.store", f"%address, %value(, %mask)?{HOW}", attributes=HINTS)
def _store(op, m):
    address, value, mask = m["address"], m["value"], m["mask"]
    dtype = op.types[0].pointee

    def step(env: dict, task: Any) -> None:
        lanes = None if mask is None else env[mask]
        task.program.memory.store(env[address], env[value], dtype, lanes, op, task)

    return step
