"""Barriers and fences: mbarriers (arrive, expect, wait), named barriers, the proxy fence."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..barriers import Completions, Copy, Event, MBarrier, NamedBarrier, Passed
from ..clocks import join
from ..findings import Code
from ..memory import Access, View
from ..tasks import Task, Wait
from .registry import blocking, pure

THREADS = 32  # of a warp


@pure("ttng.init_barrier", "%barrier, #count")
def _init(op, m):
    def step(env: dict, task: Task) -> None:
        view: View = env[m["barrier"]]
        task.program.check_inside(view, op.loc)
        if view.offset in view.storage.barriers:
            task.program.report(Code.BARRIER_USE, f"{view.name} is initialised a second time", op.loc)
        barrier = MBarrier(view.name, m["count"], op.loc)
        view.storage.barriers[view.offset] = barrier
        task.program.barriers.append(barrier)

    return step


@pure("ttng.inval_barrier", "%barrier")
def _invalidate(op, m):
    def step(env: dict, task: Task) -> None:
        view: View = env[m["barrier"]]
        task.program.barriers.remove(barrier_of(view, op, task))
        del view.storage.barriers[view.offset]

    return step


def barrier_of(view: View, op: Any, task: Task) -> MBarrier:
    """The barrier at a place of shared memory."""
    task.program.check_inside(view, op.loc)
    barrier = view.storage.barriers.get(view.offset)
    if barrier is None:
        raise task.program.stop(Code.BARRIER_USE, f"{view.name} is used as an mbarrier before its initialisation", op.loc)
    return barrier


@blocking("ttng.wait_barrier", "%barrier, %phase(, %predicate)?( deps %deps*)?")
def _wait(op, m):
    predicate = m["predicate"]

    def step(env: dict, task: Task) -> Generator:
        if predicate is not None and not env[predicate]:
            return
        barrier, parity = barrier_of(env[m["barrier"]], op, task), int(env[m["phase"]]) & 1
        task.location, since = op.loc, task.program.steps
        yield Wait(lambda: barrier.passes(parity), f"{barrier.name} to complete a phase of parity {parity}", barrier)
        acquire(barrier, parity, op, task)
        task.program.mark(f"wait {barrier.name}", "wait", since, task, op.loc)

    return step


def acquire(barrier: MBarrier, parity: int, op: Any, task: Task) -> None:
    """Let the task know what the wait guarantees, which is the clock of one phase and not of those that came after it."""
    phases, last = barrier.phases, barrier.phase - 1
    known = phases.known(task.agent, task.clock)
    promised = known if known & 1 == parity else known + 1
    if promised < last:
        message = (
            f"{task.name} waits for parity {parity} of {barrier.name} and may pass at phase {promised} already, "
            f"{(last - promised) // 2} lap(s) before phase {last} that it saw in this run: nothing orders it after "
            f"phase {promised + 1}, so it has skipped a phase"
        )
        details = tuple(str(event) for event in list(barrier.events)[-4:])
        task.program.report(Code.EARLY_WAIT, message, op.loc, details=details)
    phase = phases.phase(promised)
    if phase is not None:
        join(task.clock, phase.clock)
        join(task.fenced, phase.fenced)
    if promised == last:
        barrier.waits.append(Passed(promised, task.agent, task.epoch, task.name, op.loc))


def arrive(barrier: MBarrier, count: int, access: Access, task: Task, what: str) -> None:
    """Arrivals by whoever holds the access's clock."""
    barrier.note(what, access.actor, access.location)
    if count > barrier.pending:
        message = (
            f"{access.actor} arrives {count} times on {barrier.name}, of which {barrier.pending} of {barrier.count} "
            f"arrivals are pending in phase {barrier.phase}"
        )
        others = tuple(str(event) for event in list(barrier.events)[-4:-1])
        raise task.program.stop(Code.OVER_ARRIVAL, message, access.location, details=others)
    if barrier.phases.known(access.agent, access.clock) < barrier.phase - 1:
        message = (
            f"{access.actor} may arrive on {barrier.name} in phase {barrier.phase - 1} already, which it is not ordered "
            f"after; in this run it arrives in phase {barrier.phase}"
        )
        others = tuple(str(event) for event in list(barrier.events)[-4:-1])
        task.program.report(Code.OVER_ARRIVAL, message, access.location, details=others)
    barrier.pending -= count
    barrier.phases.add(access.agent, access.epoch, access.clock, access.fenced)
    settle(barrier, task)


def settle(barrier: MBarrier, task: Task) -> None:
    """Complete the phase if it can be; a copy that is still on its way to it has not been expected.

    Whoever waited for the phase before must be known to have passed: once this one is complete, its wait would not end.
    """
    number = barrier.phase
    if not barrier.settle():
        return
    clock = barrier.phases.past[-1].clock
    for wait in barrier.waits:
        if clock.get(wait.agent, 0) < wait.epoch:
            message = (
                f"{wait.actor} waits for phase {wait.phase} of {barrier.name}, and nothing orders phase {number} after that "
                "wait: if it completes first, the wait does not end"
            )
            last = barrier.events[-1]
            details = (f"phase {number} is completed by {last}",)
            task.program.report(Code.LATE_WAIT, message, wait.location, (last.location,), details)
    barrier.waits.clear()
    for copy in [copy for copy in barrier.issued if copy.phase == number]:
        message = (
            f"phase {number} of {barrier.name} completes while {copy.nbytes} bytes of {copy.actor} are on their way to it: "
            "it expects too few bytes"
        )
        task.program.report(Code.BYTES, message, copy.location)


def bring(barrier: MBarrier, copy: Copy, access: Access, task: Task) -> None:
    """Bytes of a copy have come."""
    barrier.note(f"{copy.nbytes} bytes came", copy.actor, copy.location)
    barrier.issued.remove(copy)
    barrier.bytes -= copy.nbytes
    barrier.phases.add(access.agent, access.epoch, access.clock, access.fenced)
    settle(barrier, task)


@blocking("ttng.arrive_barrier", "%barrier, #count(, %predicate)?", attributes="perThread")
def _arrive(op, m):
    return _arrival(op, m, THREADS if "perThread" in op.attributes else 0)


@blocking("tlx.warp_barrier_arrive", "%barrier, #count(, %predicate)?")
def _warp_arrive(op, m):
    return _arrival(op, m, THREADS)


def _arrival(op: Any, m: dict, threads: int) -> Any:
    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        if m["predicate"] is not None and not env[m["predicate"]]:
            return
        count = m["count"] * (threads * task.warps if threads else 1)
        arrive(barrier_of(env[m["barrier"]], op, task), count, task.access(op.loc), task, "arrive")
        task.tick()
        yield None

    return step


@blocking("ttng.barrier_expect", "%barrier, #bytes(, %predicate)?")
def _expect(op, m):
    def step(env: dict, task: Task) -> Generator:
        task.location = op.loc
        if m["predicate"] is not None and not env[m["predicate"]]:
            return
        barrier = barrier_of(env[m["barrier"]], op, task)
        barrier.bytes += m["bytes"]
        arrive(barrier, 1, task.access(op.loc), task, f"expect {m['bytes']} bytes and arrive")
        task.tick()
        yield None

    return step


@blocking("ttng.arrive_barrier_named tlx.named_barrier_arrive", "%number, %threads")
def _named_arrive(op, m):
    def step(env: dict, task: Task) -> Generator:
        _take_part(env, op, m, task)
        yield None

    return step


@blocking("ttng.wait_barrier_named tlx.named_barrier_wait", "%number, %threads")
def _named_wait(op, m):
    def step(env: dict, task: Task) -> Generator:
        barrier = _take_part(env, op, m, task, waits=True)
        phases: Completions = barrier.phases
        mine = phases.done - (0 if barrier.arrived else 1)
        since = task.program.steps
        yield Wait(lambda: phases.done > mine, f"{barrier.name} ({barrier.threads} threads)", barrier)
        phase = phases.phase(mine)
        if phase is not None:
            join(task.clock, phase.clock)
            join(task.fenced, phase.fenced)
        task.program.mark(f"wait {barrier.name}", "wait", since, task, op.loc)

    return step


def _take_part(env: dict, op: Any, m: dict, task: Task, waits: bool = False) -> NamedBarrier:
    """Count the task's threads in; the last ones complete the phase."""
    number, threads, program = int(env[m["number"]]), int(env[m["threads"]]), task.program
    task.location = op.loc
    barrier = program.named.setdefault(number, NamedBarrier(number, threads))
    if not barrier.arrived:
        barrier.threads = threads
    mine = THREADS * task.warps
    barrier.events.append(
        Event(barrier.phases.done, f"{'wait' if waits else 'arrive'} of {mine} threads", task.name, op.loc)
    )
    if threads != barrier.threads or barrier.arrived + mine > threads:
        message = (
            f"{mine} threads of {task.name} meet at {barrier.name} with a count of {threads}; {barrier.arrived} of "
            f"{barrier.threads} threads are there"
        )
        others = tuple(str(event) for event in list(barrier.events)[-4:-1])
        raise program.stop(Code.NAMED_BARRIER, message, op.loc, details=others)
    barrier.arrived += mine
    barrier.phases.add(task.agent, task.epoch, task.clock, task.fenced)
    task.tick()
    if barrier.arrived == threads:
        barrier.arrived = 0
        barrier.phases.complete()
    return barrier


@pure("ttng.fence_async_shared", "", attributes="bCluster")
def _fence(op, m):
    return lambda env, task: task.fence()


# A barrier of the task's own threads orders nothing between tasks; the fence of barrier initialisation is for clusters.
@pure("gpu.barrier ttg.barrier ttng.fence_mbarrier_init_release_cluster")
def _nothing(op, m):
    return lambda env, task: None
