"""Atomic operations on global memory.

Programs run one after another, so memory orders and scopes change no value. They matter for write conflicts: a scalar
compare-and-swap or exchange is taken for a lock, which orders the programs that hold it in turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..updates import combine
from .registry import pure, refuse
from .steps import HINTS, is_tensor

_ORDERS = {"relaxed": (False, False), "acquire": (True, False), "release": (False, True), "acq_rel": (True, True)}
_KINDS = {"add": "add", "fadd": "add", "max": "max", "min": "min", "umax": "max", "umin": "min", "exch": "exch"}
_KINDS |= {kind: kind for kind in ("and", "or", "xor")}


@pure("tt.atomic_rmw", "@kind, @order, @scope, %address, %value(, %mask)?", attributes=HINTS)
def _rmw(op, m):
    kind, dtype = m["kind"], op.types[0].pointee
    update = combine(_KINDS[kind], dtype, kind.startswith("u")) if kind in _KINDS else None
    if update is None:
        raise refuse(op, f"the atomic {kind} of {dtype} is not modelled")
    return _atomic(op, m, dtype, update, ("value",), m["mask"], locks=kind == "exch")


@pure("tt.atomic_cas", "@order, @scope, %address, %expected, %value", attributes=HINTS)
def _cas(op, m):
    dtype = op.types[0].pointee
    pattern = np.dtype(f"i{dtype.itemsize}")

    def update(old: np.ndarray, expected: np.ndarray, value: np.ndarray) -> np.ndarray:
        return np.where(old.view(pattern) == expected.view(pattern), value, old)

    return _atomic(op, m, dtype, update, ("expected", "value"), None, locks=True)


def _atomic(op: Any, m: dict, dtype: np.dtype, update: Any, values: tuple, mask: str | None, *, locks: bool) -> Any:
    if m["order"] not in _ORDERS:
        raise refuse(op, f"the order {m['order']} is not modelled")
    acquires, releases = _ORDERS[m["order"]]
    locks = locks and not is_tensor(op.types[0]) and (acquires or releases)
    results, address = op.results, m["address"]
    names = tuple(m[name] for name in values)

    def step(env: dict, task: Any) -> None:
        memory, at = task.program.memory, env[address]
        lanes = None if mask is None else env[mask]
        if locks and (lanes is None or lanes):
            memory.log.synchronise(at, acquires, releases, task)
        old = memory.atomic(at, update, tuple(env[name] for name in names), dtype, lanes, op, task)
        for result in results:
            env[result] = old

    return step
