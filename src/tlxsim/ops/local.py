"""Shared and tensor memory: allocation, views, loads and stores by the task's own threads."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import numpy as np

from ..findings import Code
from ..memory import View, allocate, over
from ..naming import base_name
from ..tasks import Task
from .registry import blocking, pure, refuse


@pure("ttg.local_alloc ttng.tmem_alloc", "(%value)?",
      attributes="allocation.offset alignment tensor_memory_col_offset tensor_memory_row_offset")  # fmt: skip
def _alloc(op, m):
    made, results = op.result_types[0], op.results

    def step(env: dict, task: Task) -> None:
        view = env[results[0]] = allocate(base_name(op), made.space, made.shape, made.dtype)
        for token in results[1:]:
            env[token] = None
        if m["value"] is not None:
            task.program.touch(view, True, task.access(op.loc), "initial value")
            view.array[...] = env[m["value"]]

    return step


@pure("tlx.local_alias ttg.memdesc_reinterpret ttg.memdesc_reshape", "%source", attributes="allocation.offset")
def _over(op, m):
    made, (result,) = op.result_types[0], op.results
    alias = op.name == "tlx.local_alias"

    def step(env: dict, task: Task) -> None:
        source: View = env[m["source"]]
        view = over(source, made.shape, made.dtype, base_name(op) if alias else source.name)
        if not view.fits():
            message = f"{view.name} {made.shape} reaches past the end of {source.name}"
            raise task.program.stop(Code.OUT_OF_BOUNDS, message, op.loc)
        env[result] = view

    return step


@pure("ttg.memdesc_index", "%source[%place]")
def _index(op, m):
    rank, (result,) = len(op.result_types[0].shape), op.results

    def step(env: dict, task: Task) -> None:
        source, place = env[m["source"]], int(env[m["place"]])
        view = source.index(place).padded(rank)
        if not 0 <= place < source.shape[0] and view.outside is None:
            buffers = "buffer" if source.shape[0] == 1 else "buffers"
            message = f"{task.name} takes {source.name}[{place}], which has {source.shape[0]} {buffers}"
            view.outside = (message, op.loc)
        env[result] = view

    return step


@pure("ttg.memdesc_subslice")
def _subslice(op, m):
    found = re.fullmatch(r"(\S+?)\s*\[([\d, ]+)\]", op.text.strip())
    if found is None:
        raise refuse(op, "this form of a slice is not modelled")
    starts = tuple(int(x) for x in found[2].split(","))
    return _box(op, found[1], starts)


@pure("ttng.tmem_subslice", "%source", attributes="N offset offsets")
def _columns(op, m):
    (text,) = op.attributes.values()
    return _box(op, m["source"], (0, int(re.match(r"\d+", text)[0])))


def _box(op: Any, source: str, starts: tuple) -> Any:
    shape, (result,) = op.result_types[0].shape, op.results

    def step(env: dict, task: Task) -> None:
        view = env[source].slice(starts, shape)
        if not view.fits():
            message = f"{view.name} reaches past the end of {env[source].name}"
            raise task.program.stop(Code.OUT_OF_BOUNDS, message, op.loc)
        env[result] = view

    return step


@pure("ttg.memdesc_trans", "%source", attributes="order")
def _trans(op, m):
    order = tuple(int(x) for x in re.findall(r"\d+", op.attributes["order"].split(":")[1]))
    (result,) = op.results

    def step(env: dict, task: Task) -> None:
        env[result] = env[m["source"]].permuted(order)

    return step


@pure("ttg.local_dealloc", "%source")
def _dealloc(op, m):
    return lambda env, task: None


@blocking("ttg.local_load", "%source( token %token)?")
def _local_load(op, m):
    return _load(op, m)


@blocking("ttng.tmem_load", "%source([%token?])?")
def _tmem_load(op, m):
    return _load(op, m)


def _load(op: Any, m: dict) -> Any:
    result, tokens = op.results[0], op.results[1:]

    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        yield None
        view: View = env[m["source"]]
        task.program.touch(view, False, task.access(op.loc), op.name.split(".")[1])
        env[result] = view.array.copy()
        for token in tokens:
            env[token] = None

    return step


@blocking("ttg.local_store", "%value, %target")
def _local_store(op, m):
    return _store(op, m["value"], m["target"], None)


@blocking("ttng.tmem_store", "%value, %target([%token?])?, %predicate")
def _tmem_store(op, m):
    return _store(op, m["value"], m["target"], m["predicate"])


def _store(op: Any, value: str, target: str, predicate: str | None) -> Any:
    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        yield None
        if predicate is None or env[predicate]:
            view: View = env[target]
            task.program.touch(view, True, task.access(op.loc), op.name.split(".")[1])
            view.array[...] = env[value]
        for token in op.results:
            env[token] = None

    return step


@blocking("ttg.local_gather", "%source[%places]", attributes="axis")
def _gather(op, m):
    axis, (result,) = int(op.attributes["axis"].split(":")[0]), op.results

    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        yield None
        view: View = env[m["source"]]
        task.program.touch(view, False, task.access(op.loc), "local_gather")
        env[result] = np.take_along_axis(view.array, env[m["places"]], axis)

    return step


@blocking("ttg.local_scatter", "%target[%places], %value", attributes="axis")
def _scatter(op, m):
    axis = int(op.attributes["axis"].split(":")[0])

    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        yield None
        view: View = env[m["target"]]
        task.program.touch(view, True, task.access(op.loc), "local_scatter")
        np.put_along_axis(view.array, env[m["places"]], env[m["value"]], axis)

    return step
