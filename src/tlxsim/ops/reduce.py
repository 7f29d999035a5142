"""Reductions, scans and maps by a combine region.

A region of one known operation is numpy's own reduction. Any other is run on whole arrays, its operations taken as those of
tensors: a reduction halves its axis step by step, neighbours combined in order, and a scan doubles its distance.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir import Block
from .control import Body
from .registry import VALUE, pure, refuse, run_straight
from .steps import HINTS, integer, is_tensor, scalar, unsigned

_ADD = {"arith.addf": np.add, "arith.mulf": np.multiply}
_EXACT = {
    "arith.maxnumf": np.fmax, "arith.minnumf": np.fmin, "arith.maximumf": np.maximum, "arith.minimumf": np.minimum,
}  # fmt: skip
_INTEGERS = {
    "arith.addi": np.add, "arith.muli": np.multiply, "arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor, "arith.maxsi": np.maximum, "arith.minsi": np.minimum, "arith.maxui": np.maximum,
    "arith.minui": np.minimum,
}  # fmt: skip
Arrays = tuple[np.ndarray, ...]


def _inputs(op: Any) -> tuple[str, ...]:
    if re.fullmatch(rf"\({VALUE}(?:, {VALUE})*\)", op.text.strip()) is None or len(op.regions) != 1:
        raise refuse(op, "this form of it is not modelled")
    return op.operands


@pure("tt.reduce", None, attributes=f"axis reduction_ordering {HINTS}")
def _reduce(op, m):
    """In which order is not modelled."""
    inputs, axis, results = _inputs(op), integer(op, "axis"), op.results
    kinds = op.result_types
    known = _known_reduction(op, axis)
    if known is not None:
        (name,), (result,), dtype = inputs, results, kinds[0].dtype
        if is_tensor(kinds[0]):

            def step(env: dict, task: Any) -> None:
                env[result] = known(env[name])

        else:

            def step(env: dict, task: Any) -> None:
                env[result] = scalar(known(env[name]), dtype)

        return step
    combine = _combine(op)

    def step(env: dict, task: Any) -> None:
        found = _halved(tuple(np.moveaxis(env[name], axis, -1) for name in inputs), lambda a, b: combine(a, b, env, task))
        for result, value, kind in zip(results, found, kinds):
            env[result] = value if is_tensor(kind) else scalar(value, kind.dtype)

    return step


def _only(op: Any) -> Any:
    """The one operation of a combine region `(a, b) -> a op b`; None of any other."""
    (block,) = op.regions[0] if len(op.regions[0]) == 1 else (None,)
    if block is None or len(block.ops) != 2 or len(block.args) != 2:
        return None
    single, last = block.ops
    plain = sorted(single.operands) == sorted(block.args) and last.operands == single.results
    return single if plain and not single.attributes and single.text == ", ".join(single.operands) else None


def _known_reduction(op: Any, axis: int) -> Callable[[np.ndarray], np.ndarray] | None:
    single = _only(op)
    if single is None:
        return None
    name, dtype = single.name, op.types[0].dtype
    if dtype.kind in "ib" and name in _INTEGERS:
        if dtype.kind == "b" and name not in ("arith.andi", "arith.ori", "arith.xori"):
            return None
        reduce = _INTEGERS[name].reduce
        if name.endswith("ui"):
            wide = unsigned(dtype)
            return lambda x: reduce(x.view(wide), axis=axis).view(dtype)
        return lambda x: reduce(x, axis=axis, dtype=dtype)
    if name in _ADD and dtype.itemsize >= 4:
        reduce = _ADD[name].reduce
        return lambda x: reduce(x, axis=axis)
    if name in _EXACT:
        return _extreme(_EXACT[name], dtype, axis)
    return None


def _extreme(ufunc: np.ufunc, dtype: np.dtype, axis: int) -> Callable[[np.ndarray], np.ndarray]:
    """The largest or smallest; 16-bit floats by way of fp32, which is faster and as exact."""
    reduce, narrow, greatest = ufunc.reduce, dtype.itemsize < 4, ufunc in (np.fmax, np.maximum)

    def of(x: np.ndarray) -> np.ndarray:
        wide = x.astype(np.float32) if narrow else x
        found = reduce(wide, axis=axis)
        if not found.all():  # of zeros, the positive one is the larger
            zeros = (wide == 0) & (np.signbit(wide) != greatest)
            wanted = wide.dtype.type(0.0 if greatest else -0.0)
            found = np.where((found == 0) & zeros.any(axis=axis), wanted, found)
        return found.astype(dtype) if narrow else found

    return of


def _combine(op: Any) -> Callable[[Arrays, Arrays, dict, Any], Arrays]:
    """The region as a function of arrays."""
    if len(op.regions[0]) != 1:
        raise refuse(op, "a combine region with control flow is not modelled")
    block = lifted(op, op.regions[0][0])
    *body, last = block.ops

    def combine(a: Arrays, b: Arrays, env: dict, task: Any) -> Arrays:
        env.update(zip(block.args, a + b))
        run_straight(body, env, task)
        return tuple(env[name] for name in last.operands)

    return combine


def lifted(op: Any, block: Block) -> Block:
    """The block with operations on arrays in place of those on scalars."""
    for inner in block.ops:
        if inner.regions or inner.name == "tt.call":
            raise refuse(op, f"a combine region with {inner.name} is not modelled")

    def as_tensors(kinds: tuple) -> tuple:
        return tuple(dataclasses.replace(kind, kind="tensor") if kind.kind == "scalar" else kind for kind in kinds)

    ops = [
        dataclasses.replace(inner, types=as_tensors(inner.types), result_types=as_tensors(inner.result_types), step=None)
        for inner in block.ops
    ]
    return dataclasses.replace(block, ops=ops)


def _halved(arrays: Arrays, combine: Callable[[Arrays, Arrays], Arrays]) -> Arrays:
    """Combine along the last axis, neighbours in order."""
    while (length := arrays[0].shape[-1]) > 1:
        even = length - length % 2
        found = combine(tuple(x[..., 0:even:2] for x in arrays), tuple(x[..., 1:even:2] for x in arrays))
        if length % 2:
            found = tuple(np.concatenate([y, x[..., -1:]], -1) for x, y in zip(arrays, found))
        arrays = tuple(found)
    return tuple(x[..., 0] for x in arrays)


@pure("tt.scan", None, attributes=f"axis reverse {HINTS}")
def _scan(op, m):
    inputs, axis = _inputs(op), integer(op, "axis")
    reverse = op.attributes.get("reverse", "false").startswith("true")
    accumulate = _known_scan(op, axis)
    combine = None if accumulate is not None else _combine(op)

    def step(env: dict, task: Any) -> None:
        arrays = tuple(env[name] for name in inputs)
        if reverse:
            arrays = tuple(np.flip(x, axis) for x in arrays)
        if accumulate is not None:
            found: Arrays = (accumulate(arrays[0]),)
        else:
            found = _doubled(tuple(np.moveaxis(x, axis, -1) for x in arrays), lambda a, b: combine(a, b, env, task))
            found = tuple(np.moveaxis(x, -1, axis) for x in found)
        for result, value in zip(op.results, found):
            env[result] = np.flip(value, axis) if reverse else value

    return step


def _known_scan(op: Any, axis: int) -> Callable[[np.ndarray], np.ndarray] | None:
    single, dtype = _only(op), op.types[0].dtype
    if single is None:
        return None
    if dtype.kind == "i" and single.name in _INTEGERS and not single.name.endswith("ui"):
        accumulate = _INTEGERS[single.name].accumulate
    elif single.name in _ADD and dtype.itemsize >= 4:
        accumulate = _ADD[single.name].accumulate
    else:
        return None
    return lambda x: accumulate(x, axis=axis, dtype=dtype)


def _doubled(arrays: Arrays, combine: Callable[[Arrays, Arrays], Arrays]) -> Arrays:
    """An inclusive scan along the last axis in steps of 1, 2, 4, ..."""
    distance, length = 1, arrays[0].shape[-1]
    while distance < length:
        found = combine(tuple(x[..., :-distance] for x in arrays), tuple(x[..., distance:] for x in arrays))
        arrays = tuple(np.concatenate([x[..., :distance], y], -1) for x, y in zip(arrays, found))
        distance *= 2
    return arrays


@pure("tt.map_elementwise", None, attributes=f"pack {HINTS}")
def _map(op, m):
    inputs = _inputs(op)
    if integer(op, "pack", 1) != 1:
        raise refuse(op, "a map of several elements at once is not modelled")
    region = op.regions[0]
    if len(region) == 1 and not any(inner.regions or inner.name == "tt.call" for inner in region[0].ops):
        return _map_arrays(op, inputs, lifted(op, region[0]))
    return _map_each(op, inputs, Body(region))


def _map_arrays(op: Any, inputs: tuple[str, ...], block: Block) -> Callable[[dict, Any], None]:
    *body, last = block.ops
    shapes = [(kind.shape, kind.dtype) for kind in op.result_types]

    def step(env: dict, task: Any) -> None:
        env.update(zip(block.args, [env[name] for name in inputs]))
        run_straight(body, env, task)
        for result, name, (shape, dtype) in zip(op.results, last.operands, shapes):
            env[result] = np.broadcast_to(np.asarray(env[name], dtype), shape)

    return step


def _map_each(op: Any, inputs: tuple[str, ...], body: Body) -> Callable[[dict, Any], None]:
    """With control flow of its own each element has to be run by itself."""
    kinds = [kind.dtype for kind in op.types]

    def step(env: dict, task: Any) -> None:
        columns = [env[name].ravel() for name in inputs]
        rows = [[scalar(x, kind) for x, kind in zip(row, kinds)] for row in zip(*columns)]
        found = [body.run_now(dict(env), task, row) for row in rows]
        for result, kind, values in zip(op.results, op.result_types, zip(*found)):
            env[result] = np.array(values, kind.dtype).reshape(kind.shape)

    return step
