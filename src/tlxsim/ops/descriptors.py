"""TMA descriptors in a kernel: making them, and loads and stores that wait for themselves.

After the compiler a descriptor that a kernel makes is a tensor map in scratch memory (`ttng.tensormap_create`).
"""

from __future__ import annotations

import re
from typing import Any

from ..descriptor import Descriptor
from ..findings import Code, Unsupported
from ..ir import Type
from .registry import pure, refuse
from .steps import HINTS, integer

_PADDINGS = {1: False, 2: True}  # Triton's zero and NaN
_HOW = f"cache evict {HINTS}"


@pure("tt.make_tensor_descriptor", "%base, [%shape*], [%strides*]", attributes=f"padding {HINTS}")
def _make(op, m):
    made, (result,) = op.types[1], op.results
    nan_fill = _PADDINGS.get(integer(op, "padding", 1))
    if nan_fill is None:
        raise refuse(op, "this padding is not modelled")

    def step(env: dict, task: Any) -> None:
        shape, strides = (tuple(int(env[name]) for name in names) for names in (m["shape"], m["strides"]))
        env[result] = _checked(result, env[m["base"]], shape, strides, nan_fill, made, op, task)

    return step


def _checked(
    result: str, base: int, shape: tuple, strides: tuple, nan_fill: bool, made: Type, op: Any, task: Any
) -> Descriptor:
    name = re.sub(r"_\d+$", "", result[1:])
    memory = task.program.memory
    found = Descriptor(name, memory, base, shape, strides, made.shape, made.dtype, made.unsigned, nan_fill)
    for message in found.faults():
        task.program.report(Code.ALIGNMENT, message, op.loc)
    return found


@pure("tt.descriptor_load", "%descriptor[%at*]( cacheModifier = @cache)?( evictionPolicy = @evict)?", attributes=_HOW)
def _load(op, m):
    (result,), (made,) = op.results, op.result_types

    def step(env: dict, task: Any) -> None:
        at = [int(env[name]) for name in m["at"]]
        env[result] = env[m["descriptor"]].read(at, op, task).reshape(made.shape)

    return step


@pure("tt.descriptor_store", "%descriptor[%at*], %value", attributes=_HOW)
def _store(op, m):
    return _storing(op, m, None)


@pure("tt.descriptor_reduce", "@kind, %descriptor[%at*], %value", attributes=_HOW)
def _reduce(op, m):
    return _storing(op, m, m["kind"])


def _storing(op: Any, m: dict, kind: str | None) -> Any:
    def step(env: dict, task: Any) -> None:
        env[m["descriptor"]].write([int(env[name]) for name in m["at"]], env[m["value"]], op, task, kind)

    return step


@pure("tt.descriptor_gather", "%descriptor[%rows, %column]", attributes=_HOW)
def _gather(op, m):
    (result,) = op.results

    def step(env: dict, task: Any) -> None:
        env[result] = env[m["descriptor"]].gather(env[m["rows"]], env[m["column"]], op, task)

    return step


@pure("tt.descriptor_scatter", "%descriptor[%rows, %column], %value", attributes=_HOW)
def _scatter(op, m):
    def step(env: dict, task: Any) -> None:
        env[m["descriptor"]].scatter(env[m["rows"]], env[m["column"]], env[m["value"]], op, task)

    return step


# -- tensor maps ---------------------------------------------------------------------------------------------------------


@pure("ttg.global_scratch_alloc", "", attributes="alignment nbytes ttg.global_scratch_memory_offset backend")
def _scratch(op, m):
    nbytes, (result,) = integer(op, "nbytes"), op.results

    def step(env: dict, task: Any) -> None:
        env[result] = task.program.memory.scratch(nbytes, "global scratch")

    return step


@pure("ttng.tensormap_create", "%map, %base, [%box*], [%shape*], [%steps*], [%every*]",
      attributes=f"elem_type fill_mode interleave_layout swizzle_mode {HINTS}")  # fmt: skip
def _create(op, m):
    """Dimensions come innermost first, strides in bytes and without the innermost; swizzles are not modelled."""
    nan_fill = integer(op, "fill_mode") == 1
    if integer(op, "interleave_layout"):
        raise refuse(op, "interleaved layouts are not modelled")

    def step(env: dict, task: Any) -> None:
        shape, steps, every = (tuple(int(env[name]) for name in reversed(m[key])) for key in ("shape", "steps", "every"))
        if any(n != 1 for n in every):
            raise refuse(op, "element strides other than 1 are not modelled")
        maps = task.program.memory.tensor_maps
        maps[env[m["map"]]] = dict(base=env[m["base"]], shape=shape, steps=steps, nan_fill=nan_fill)

    return step


@pure("ttng.tensormap_fenceproxy_acquire", "%map", attributes=HINTS)
def _acquire(op, m):
    """Who has written a tensor map is not checked."""
    return lambda env, task: None


@pure("ttng.reinterpret_tensor_descriptor", "%map", attributes=HINTS)
def _reinterpret(op, m):
    (result,), (made,) = op.results, op.result_types

    def step(env: dict, task: Any) -> None:
        found = task.program.memory.tensor_maps.get(env[m["map"]])
        if found is None:
            raise Unsupported(f"{op.name} at {op.loc}: the descriptor was not made by this kernel")
        size = made.dtype.itemsize
        strides = (*(step // size for step in found["steps"]), 1)
        env[result] = _checked(
            result, found["base"], found["shape"], strides, found["nan_fill"], made, op, task
        )  # fmt: skip

    return step
