"""Tensors as such: making, reshaping, splitting and joining them, and taking elements by index."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..findings import Code
from ..global_memory import poison
from .registry import VALUE, pure, refuse
from .steps import HINTS, apply, integer, is_tensor, scalar


@pure("tt.make_range", "", attributes=f"start end {HINTS}")
def _range(op, m):
    values, (result,) = np.arange(integer(op, "start"), integer(op, "end"), dtype=np.int32), op.results

    def step(env: dict, task: Any) -> None:
        env[result] = values

    return step


@pure("tt.splat", "%x", attributes=HINTS)
def _splat(op, m):
    made = op.result_types[0]
    shape, dtype, strides, full = made.shape, made.dtype, (0,) * len(made.shape), np.ndarray
    return apply(op, op.operands, lambda x: full(shape, dtype, np.array(x, dtype), 0, strides))


@pure("tt.unsplat", "%x", attributes=HINTS)
def _unsplat(op, m):
    dtype = op.types[0].dtype
    return apply(op, op.operands, lambda x: scalar(x, dtype))


@pure("tt.expand_dims", "%x", attributes=f"axis {HINTS}")
def _expand(op, m):
    shape = op.result_types[0].shape
    return apply(op, op.operands, lambda x: x.reshape(shape))


@pure("tt.broadcast", "%x", attributes=HINTS)
def _broadcast(op, m):
    (old,), (new,) = op.types, op.result_types
    shape = new.shape
    axes = [axis for axis, (a, b) in enumerate(zip(old.shape, shape)) if a != b]
    if len(axes) == 1:  # a copy, which later operations go through faster than through a view
        (axis,) = axes
        count = shape[axis]
        return apply(op, op.operands, lambda x: x.repeat(count, axis))
    return apply(op, op.operands, lambda x: np.broadcast_to(x, shape))


@pure("tt.reshape", "%x( allow_reorder)?( efficient_layout)?", attributes=f"allow_reorder efficient_layout {HINTS}")
def _reshape(op, m):
    """Where the order is left to the compiler, it stays as it is."""
    shape = op.result_types[0].shape
    return apply(op, op.operands, lambda x: x.reshape(shape))


@pure("tt.trans", "%x", attributes=f"order {HINTS}")
def _trans(op, m):
    order = tuple(int(n) for n in re.findall(r"\d+", op.attributes["order"].split(":")[1]))
    return apply(op, op.operands, lambda x: x.transpose(order))


@pure("tt.join", "%a, %b", attributes=HINTS)
def _join(op, m):
    made = op.result_types[0]

    def join(a: Any, b: Any) -> np.ndarray:
        found = np.empty(made.shape, made.dtype)
        found[..., 0], found[..., 1] = a, b
        return found

    return apply(op, op.operands, join)


@pure("tt.split", "%x", attributes=HINTS)
def _split(op, m):
    first, second = op.results
    dtype, tensors = op.types[0].dtype, is_tensor(op.result_types[0])

    def step(env: dict, task: Any) -> None:
        x = env[m["x"]]
        a, b = x[..., 0], x[..., 1]
        env[first], env[second] = (a, b) if tensors else (scalar(a, dtype), scalar(b, dtype))

    return step


@pure("tt.cat", "%a, %b", attributes=HINTS)
def _cat(op, m):
    """The order is left to the compiler; here a comes first."""
    return apply(op, op.operands, lambda a, b: np.concatenate([a, b]))


@pure("ttg.convert_layout tlx.require_layout tlx.release_layout", "%x", attributes=HINTS)
def _layout(op, m):
    """Layouts, of registers and of buffers, are not modelled."""
    return apply(op, op.operands, lambda x: x)


@pure("tt.gather", "%source[%places]", attributes=f"axis efficient_layout {HINTS}")
def _gather(op, m):
    axis, (result,) = integer(op, "axis"), op.results
    length, dtype = op.types[0].shape[axis], op.types[0].dtype

    def step(env: dict, task: Any) -> None:
        source, places = env[m["source"]], env[m["places"]]
        outside = (places < 0) | (places >= length)
        if not outside.any():
            env[result] = np.take_along_axis(source, places, axis)
            return
        details = (f"index {places[outside][0]}, along an axis of {length}, in {np.count_nonzero(outside)} lanes",)
        task.program.report(Code.OUT_OF_BOUNDS, "gather takes an element that is not there", op.loc, details=details)
        found = np.take_along_axis(source, np.where(outside, 0, places), axis)
        env[result] = np.where(outside, poison(dtype), found)

    return step


@pure("tt.histogram", "%x(, %mask)?", attributes=HINTS)
def _histogram(op, m):
    (result,), (count,) = op.results, op.result_types[0].shape

    def step(env: dict, task: Any) -> None:
        values = env[m["x"]]
        if m["mask"] is not None:
            values = values[env[m["mask"]]]
        outside = (values < 0) | (values >= count)
        if outside.any():
            details = (f"value {values[outside][0]}, of {count} bins, in {np.count_nonzero(outside)} lanes",)
            task.program.report(Code.OUT_OF_BOUNDS, "histogram gets a value that has no bin", op.loc, details=details)
            values = values[~outside]
        env[result] = np.bincount(values.ravel(), minlength=count).astype(np.int32)

    return step


@pure("ub.poison", "", attributes=HINTS)
def _poison(op, m):
    """A value that no path may use."""
    (result,), (made,) = op.results, op.result_types
    value = None
    if made.dtype is not None and made.kind in ("tensor", "scalar", "pointer"):
        value = np.full(made.shape, poison(made.dtype), made.dtype)
        value = value if is_tensor(made) else scalar(value, made.dtype)

    def step(env: dict, task: Any) -> None:
        env[result] = value

    return step


@pure("tt.get_program_id tt.get_num_programs", "@axis", attributes=HINTS)
def _program(op, m):
    if m["axis"] not in ("x", "y", "z"):
        raise refuse(op, f"the axis {m['axis']} is not modelled")
    axis, (result,) = "xyz".index(m["axis"]), op.results
    own = op.name == "tt.get_program_id"

    def step(env: dict, task: Any) -> None:
        program = task.program
        env[result] = (program.pid if own else program.grid)[axis]

    return step


@pure("nvg.cluster_id", "", attributes=HINTS)
def _cluster_rank(op, m):
    """A launch with clusters of several programs is refused."""
    (result,) = op.results

    def step(env: dict, task: Any) -> None:
        env[result] = 0

    return step


# -- what checks or shows values -----------------------------------------------------------------------------------------


@pure("tt.assert", None, attributes=HINTS)
def _assert(op, m):
    found = re.fullmatch(rf'({VALUE}), ("(?:[^"\\]|\\.)*")', op.text.strip())
    if found is None:
        raise refuse(op, "this form of it is not modelled")
    condition, message = found[1], found[2].strip('"') or "device_assert"
    return _checking(op, condition, f"device_assert fails: {message}")


@pure("llvm.intr.assume", "%condition")
def _assume(op, m):
    return _checking(op, m["condition"], "what tl.assume says does not hold")


def _checking(op: Any, condition: str, message: str) -> Any:
    def step(env: dict, task: Any) -> None:
        holds = np.asarray(env[condition])
        if not holds.all():
            details = (f"in {np.count_nonzero(~holds)} of {holds.size} lanes, in program {task.program.pid}",)
            task.program.report(Code.ASSERT, message, op.loc, details=details)

    return step


@pure("tt.print", None, attributes="hex isSigned")
def _print(op, m):
    found = re.fullmatch(rf'"((?:[^"\\]|\\.)*)" *(?:: *({VALUE}(?:, {VALUE})*))?', op.text.strip())
    if found is None:
        raise refuse(op, "this form of it is not modelled")
    prefix, names = found[1], re.findall(VALUE, found[2] or "")

    def step(env: dict, task: Any) -> None:
        program = task.program
        shown = ", ".join(str(env[name]) for name in names)
        print(f"pid {program.pid} [{program.launch.schedule}]{prefix}{shown}")

    return step
