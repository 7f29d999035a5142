"""Matrix products on tiles in shared and tensor memory: Hopper's wgmma and Blackwell's tcgen05.

Both are asynchronous and run in the order of issue, each task's in a queue of its own; operands are read when the product
completes. A wgmma's result is a register tile that may be used only after a wait.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Generator
from typing import Any

import numpy as np

from ..memory import Access, View
from ..tasks import Queue, Task, Wait
from .registry import VALUE, blocking, refuse
from .sync import arrive, barrier_of

TF32_BITS = np.uint32(0xFFFFE000)  # what tensor cores read of an fp32


@dataclasses.dataclass(slots=True, eq=False)
class Pending:
    """The result of a wgmma in flight, the epoch-th of its task."""

    epoch: int
    array: np.ndarray | None = None


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a b in fp32 (int32 for integers), operands rounded as tensor cores read them; their order of sums is not modelled."""
    if a.dtype.kind in "iu":
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int32)  # exact, and fast
    return _as_read(a) @ _as_read(b)


def _as_read(x: np.ndarray) -> np.ndarray:
    if x.dtype == np.float32:
        return (np.ascontiguousarray(x).view(np.uint32) & TF32_BITS).view(np.float32)
    return x.astype(np.float32)


def _values(x: Any) -> np.ndarray:
    return x.array if isinstance(x, (View, Pending)) else x


@blocking("ttng.warp_group_dot", "%a, %b, %c(, %use)?", attributes="inputPrecision maxNumImpreciseAcc isAsync")
def _wgmma(op, m):
    # tf32 (0) is what the instruction multiplies fp32 in; the precision of accumulation is not modelled.
    if not op.attributes.get("inputPrecision", "0").startswith("0"):
        raise refuse(op, "only products of tensor cores are modelled")
    asynchronous, (result,) = op.attributes.get("isAsync", "false") != "false", op.results

    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        yield None
        a, b, c = env[m["a"]], env[m["b"]], env[m["c"]]
        adds = m["use"] is None or bool(env[m["use"]])
        queue = task.queue("wgmma")
        queue.issued += 1
        epoch = queue.issued
        pending = Pending(epoch)
        access = task.issue(queue.agent, epoch, "wgmma", op.loc)
        for x, name in ((a, "operand A"), (b, "operand B")):
            if isinstance(x, View):
                task.program.touch(x, False, access, f"async_dot {name}")

        def effect() -> None:
            found = product(_values(a), _values(b))
            pending.array = found + _values(c) if adds else found

        task.tick()
        task.program.fly("wgmma", effect, task, op.loc, queue, epoch)
        env[result] = pending
        if not asynchronous:
            yield Wait(lambda: queue.completed >= epoch, "a synchronous dot")
            env[result] = pending.array
            task.clock[queue.agent] = epoch

    return step


@blocking("ttng.warp_group_dot_wait", "%inputs*", attributes="pendings")
def _wgmma_wait(op, m):
    left = int(op.attributes["pendings"].split(":")[0])

    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        queue, since = task.queue("wgmma"), task.program.steps
        need = queue.issued - left
        yield Wait(lambda: queue.completed >= need, f"async_dot_wait({left})")
        if need > task.clock.get(queue.agent, 0):
            task.clock[queue.agent] = need
        for name, result in zip(m["inputs"], op.results):
            value = env[name]
            env[result] = value.array if isinstance(value, Pending) and value.epoch <= need else value
        task.program.mark("wait async_dot", "wait", since, task, op.loc)

    return step


_TCGEN05 = re.compile(
    rf"(?P<a>{VALUE}), (?P<b>{VALUE}), (?P<d>{VALUE})(?:\[(?:{VALUE})?\])?, (?P<use>{VALUE}), (?P<predicate>{VALUE})"
    rf"(?P<barriers>(?:, {VALUE}\[{VALUE}\])*)"
)


@blocking("ttng.tc_gen5_mma", attributes="is_async tt.self_latency")
def _tcgen05(op, m):
    found = _TCGEN05.fullmatch(op.text.strip())
    if found is None:
        raise refuse(op, "this form of an MMA is not modelled")
    names = found.groupdict()
    barriers = re.findall(rf"({VALUE})\[({VALUE})\]", names["barriers"])
    asynchronous = "is_async" in op.attributes

    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        for token in op.results:
            env[token] = None
        if not env[names["predicate"]]:
            return
        a, b, d, adds = env[names["a"]], env[names["b"]], env[names["d"]], bool(env[names["use"]])
        queue = task.queue("tcgen05")
        queue.issued += 1
        epoch = queue.issued
        access = task.issue(queue.agent, epoch, "tcgen05.mma", op.loc)
        touch = task.program.touch
        touch(a, False, access, "async_dot operand A")
        touch(b, False, access, "async_dot operand B")
        if adds:
            touch(d, False, access, "async_dot accumulator")
        touch(d, True, access, "async_dot accumulator")

        def effect() -> None:
            found = product(a.array, b.array)
            d.array[...] = d.array + found if adds else found

        task.tick()
        task.program.fly(f"mma {d.name}", effect, task, op.loc, queue, epoch)
        for barrier, wanted in barriers:
            if env[wanted]:
                commit(barrier_of(env[barrier], op, task), queue, task, op)
        if asynchronous:
            yield None
        else:
            yield Wait(lambda: queue.completed >= epoch, "a synchronous dot")
            task.clock[queue.agent] = epoch

    return step


@blocking("ttng.tc_gen5_commit", "%barrier(, %predicate)?")
def _commit(op, m):
    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        if m["predicate"] is None or env[m["predicate"]]:
            commit(barrier_of(env[m["barrier"]], op, task), task.queue("tcgen05"), task, op)
            task.tick()
        yield None

    return step


@blocking("ttng.tmem_copy", "%source, %target(, %barrier)?")
def _copy(op, m):
    source, target = op.types[:2]
    if source.shape != target.shape or source.dtype != target.dtype:
        raise refuse(op, "only a copy between buffers of one shape and type is modelled")

    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        source, target, queue = env[m["source"]], env[m["target"]], task.queue("tcgen05")
        queue.issued += 1
        access = task.issue(queue.agent, queue.issued, "tcgen05.cp", op.loc)
        task.program.touch(source, False, access, "tmem_copy")
        task.program.touch(target, True, access, "tmem_copy")

        def effect() -> None:
            target.array[...] = source.array

        task.tick()
        task.program.fly(f"copy to {target.name}", effect, task, op.loc, queue, queue.issued)
        if m["barrier"] is not None:
            commit(barrier_of(env[m["barrier"]], op, task), queue, task, op)
        yield None

    return step


def commit(barrier: Any, queue: Queue, task: Task, op: Any) -> None:
    """Arrive once every MMA issued so far has completed: an epoch of its own, since knowing the MMAs is not knowing this."""
    queue.issued += 1
    access: Access = task.issue(queue.agent, queue.issued, "tcgen05.commit", op.loc)
    effect = lambda: arrive(barrier, 1, access, task, "commit")  # noqa: E731
    task.program.fly(f"commit {barrier.name}", effect, task, op.loc, queue, queue.issued)
