"""cp.async: elements from global to shared memory by the task's threads, in groups that are waited for."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from ..tasks import Task, Wait
from .registry import blocking, pure, refuse
from .sync import arrive, barrier_of


@blocking(
    "ttg.async_copy_global_to_local",
    "%source, %target( mask %mask)?( other %other)?( cacheModifier = @cache)?( evictionPolicy = @evict)?",
    attributes="isVolatile contiguity cacheModifier evictionPolicy",
)
def _copy(op, m):
    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        yield None
        program, view, addresses = task.program, env[m["target"]], env[m["source"]]
        mask = None if m["mask"] is None else env[m["mask"]]
        other = None if m["other"] is None else env[m["other"]]
        queue = task.queue("cp.async")
        queue.issued += 1
        epoch = queue.issued
        access = task.issue(queue.agent, epoch, "cp.async", op.loc, proxy="generic")
        program.touch(view, True, access, "async_load")
        values = program.memory.load(addresses, view.dtype, mask, other, op, task)
        view.poison()

        def effect() -> None:
            view.array[...] = values.reshape(view.shape)

        task.tick()
        program.fly(f"cp.async {view.name}", effect, task, op.loc, queue, epoch)
        if mask is None or np.any(mask):
            program.launched(queue.agent, epoch, f"{access.actor} into {view.name}", op.loc)
        for token in op.results:
            env[token] = None

    return step


@pure("ttg.async_commit_group", "(tokens )?%tokens*")
def _group(op, m):
    def step(env: dict, task: Task) -> None:
        task.copy_groups.append(task.queue("cp.async").issued)
        for token in op.results:
            env[token] = None

    return step


@blocking("ttg.async_wait", "%tokens*", attributes="num")
def _wait(op, m):
    left = int(op.attributes["num"].split(":")[0])

    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        queue, groups = task.queue("cp.async"), task.copy_groups
        need = groups[-1 - left] if len(groups) > left else 0
        yield Wait(lambda: queue.completed >= need, f"async_load_wait_group({left})")
        if need > task.clock.get(queue.agent, 0):
            task.clock[queue.agent] = need
        for token in op.results:
            env[token] = None

    return step


@blocking("ttng.async_copy_mbarrier_arrive", "%barrier", attributes="noIncrement")
def _arrive(op, m):
    if "noIncrement" not in op.attributes:
        raise refuse(op, "an arrive that counts itself in is not modelled")

    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        barrier, queue = barrier_of(env[m["barrier"]], op, task), task.queue("cp.async")
        queue.issued += 1
        access = task.issue(queue.agent, queue.issued, "cp.async", op.loc, proxy="generic")
        count = 32 * task.warps
        task.tick()
        effect = lambda: arrive(barrier, count, access, task, "arrive after cp.async")  # noqa: E731
        task.program.fly(f"arrive {barrier.name}", effect, task, op.loc, queue, queue.issued)
        yield None

    return step
