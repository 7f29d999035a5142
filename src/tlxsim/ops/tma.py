"""TMA: tiles between global and shared memory, each copy in flight until the scheduler completes it.

A load is an agent of its own that brings its bytes to an mbarrier; its destination is poisoned while it is on its way.
Stores of a task complete in the order of issue. Waiting for them tells that shared memory has been read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from ..barriers import Copy
from ..findings import Code
from ..memory import View
from ..tasks import Task, Wait
from .registry import blocking, pure, refuse
from .sync import barrier_of, bring


def coordinates(env: dict, names: tuple) -> list[int]:
    return [int(env[name]) for name in names]


@blocking("ttng.async_tma_copy_global_to_local", "%descriptor[%at*] %target, %barrier, %predicate",
          attributes="cache evict isVolatile")  # fmt: skip
def _load(op, m):
    def read(env: dict, task: Task) -> Callable[[], Any]:
        source, at = env[m["descriptor"]], coordinates(env, m["at"])
        _check_size(op, source, env[m["target"]], task)
        return lambda: source.read(at, op, task)

    return _loading(op, m, read)


@blocking("ttng.async_tma_gather", "%descriptor[%rows, %column] %target, %barrier, %predicate")
def _gather(op, m):
    def read(env: dict, task: Task) -> Callable[[], Any]:
        source, rows, column = env[m["descriptor"]], env[m["rows"]], int(env[m["column"]])
        return lambda: source.gather(rows, column, op, task)

    return _loading(op, m, read)


def _loading(op: Any, m: dict, reading: Callable[[dict, Task], Callable[[], Any]]) -> Any:
    """A load of what `reading(env, task)()` reads once the copy completes."""

    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        if not env[m["predicate"]]:
            return
        program, view, read = task.program, env[m["target"]], reading(env, task)
        barrier = barrier_of(env[m["barrier"]], op, task)
        agent, epoch = task.agents.take(task.clock)
        access = task.issue(agent, epoch, "TMA load", op.loc)
        program.touch(view, True, access, "async_descriptor_load")
        view.poison()
        copy = Copy(view.nbytes, barrier.phase, access.actor, op.loc)
        barrier.issued.append(copy)

        def effect() -> None:
            view.array[...] = read().reshape(view.shape)
            bring(barrier, copy, access, task)

        task.tick()
        program.fly(f"load {view.name}", effect, task, op.loc)
        program.launched(agent, epoch, f"{access.actor} into {view.name}", op.loc)
        yield None

    return step


@blocking("ttng.async_tma_copy_local_to_global", "%descriptor[%at*] %source", attributes="cache evict")
def _store(op, m):
    return _storing(op, m, _writing(op, m, None))


@blocking("ttng.async_tma_reduce", "@kind, %descriptor[%at*] %source", attributes="cache evict")
def _reduce(op, m):
    return _storing(op, m, _writing(op, m, m["kind"]))


@blocking("ttng.async_tma_scatter", "%descriptor[%rows, %column] %source")
def _scatter(op, m):
    def write(env: dict, task: Task) -> Callable[[], None]:
        target, view = env[m["descriptor"]], env[m["source"]]
        rows, column = env[m["rows"]], int(env[m["column"]])
        return lambda: target.scatter(rows, column, view.array, op, task)

    return _storing(op, m, write)


def _writing(op: Any, m: dict, kind: str | None) -> Callable[[dict, Task], Callable[[], None]]:
    def write(env: dict, task: Task) -> Callable[[], None]:
        target, view, at = env[m["descriptor"]], env[m["source"]], coordinates(env, m["at"])
        _check_size(op, target, view, task)
        return lambda: target.write(at, view.array, op, task, kind)

    return write


def _storing(op: Any, m: dict, writing: Callable[[dict, Task], Callable[[], None]]) -> Any:
    """A store by `writing(env, task)()` once the copy completes."""

    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        program, view, effect = task.program, env[m["source"]], writing(env, task)
        queue = task.queue("TMA store")
        queue.issued += 1
        epoch = queue.issued
        access = task.issue(queue.agent, epoch, "TMA store", op.loc)
        program.touch(view, False, access, "async_descriptor_store")
        task.tick()
        program.fly(f"store {view.name}", effect, task, op.loc, queue, epoch)
        program.launched(queue.agent, epoch, f"{access.actor} from {view.name}", op.loc)
        for token in op.results:
            env[token] = epoch
        yield None

    return step


def _check_size(op: Any, descriptor: Any, view: View, task: Task) -> None:
    """A copy moves the descriptor's block, so the buffer must have as many elements."""
    count = 1
    for n in descriptor.block:
        count *= n
    if count * descriptor.dtype.itemsize != view.nbytes:
        block = "x".join(map(str, descriptor.block))
        message = f"the block of {descriptor.name} is {block} {descriptor.dtype}, {view.name} holds {view.nbytes} bytes"
        raise task.program.stop(Code.OUT_OF_BOUNDS, message, op.loc)
    if view.nbytes % 16:
        task.program.report(Code.ALIGNMENT, f"a copy of {view.nbytes} bytes is no multiple of 16 bytes", op.loc)


# `read_only` waits for the source to be read, else for the write too; the model takes both to happen at once.
@blocking("ttng.async_tma_store_wait", "", attributes="pendings read_only")
def _store_wait(op, m):
    return _waiting(op, int(op.attributes.get("pendings", "0").split(":")[0]), None)


@blocking("ttng.async_tma_store_token_wait", "%token(, %more*)?")
def _store_token_wait(op, m):
    if m["more"]:
        raise refuse(op, "a store token with barriers is not modelled")
    return _waiting(op, 0, m["token"])


def _waiting(op: Any, left: int, token: str | None) -> Any:
    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        queue, since = task.queue("TMA store"), task.program.steps
        need = queue.issued - left if token is None else env[token]
        yield Wait(lambda: queue.completed >= need, f"async_descriptor_store_wait({left})")
        if need > task.clock.get(queue.agent, 0):
            task.clock[queue.agent] = need
        task.program.mark("wait stores", "wait", since, task, op.loc)

    return step


@pure("ttng.async_tma_prefetch ttng.prefetch tlx.prefetch tt.prefetch", None, attributes="cache evict isVolatile")
def _prefetch(op, m):
    """It fills a cache, which the model has none of."""
    return lambda env, task: None
