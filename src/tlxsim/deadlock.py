"""Why no task can go on: the barrier that nobody can complete, or the cycle of tasks that wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .barriers import MBarrier
from .findings import Code

if TYPE_CHECKING:
    from .machine import Program
    from .tasks import Task


def explain(program: Program) -> None:
    """Report the deadlock of a program in which nothing can happen any more."""
    blocked = [task for task in program.tasks if not task.done]
    root, reason = _root(program, blocked)
    missing = _missing_bytes(root)
    if missing:
        barrier = root.wait.barrier
        than = f"{missing} bytes more than" if missing > 0 else f"{-missing} bytes less than"
        message = f"{barrier.name} expects {than} the copies of phase {barrier.phase} bring"
        program.report(Code.BYTES, message, root.location, details=_events(barrier))
    details = [line for task in program.tasks for line in _state(program, task)]
    program.report(Code.DEADLOCK, f"no task can go on: {reason}", root.location, details=tuple(details))


def _root(program: Program, blocked: list[Task]) -> tuple[Task, str]:
    """The task to name first, and why it can never go on."""
    waits_for = {}
    for task in blocked:
        barrier = task.wait.barrier if task.wait else None
        if isinstance(barrier, MBarrier):
            missing = _missing_bytes(task)
            if missing:
                return task, f"{barrier.name} misses {missing} bytes, and no copy to it is in flight"
            sites = program.launch.arrive_sites(barrier.name.split("[")[0])
            if not sites:
                return task, f"nothing in the kernel ever arrives on {barrier.name}"
            waits_for[task] = [other for other in program.tasks if other.site in {site.task for site in sites}]
            if all(other.done for other in waits_for[task]):
                names = ", ".join(other.name for other in waits_for[task]) or "tasks that never started"
                return task, f"whoever arrives on {barrier.name} has ended ({names})"
        else:
            waits_for[task] = [other for other in blocked if other is not task]
    cycle = _cycle(waits_for)
    if cycle:
        return cycle[0], "a cycle: " + ", ".join(
            f"{task.name} waits for {task.wait.text}" + (f", which {after.name} would complete" if after else "")
            for task, after in zip(cycle, [*cycle[1:], cycle[0]])
        )
    return blocked[0], f"{blocked[0].name} waits for {blocked[0].wait.text if blocked[0].wait else 'nothing'}"


def _cycle(waits_for: dict[Task, list[Task]]) -> list[Task]:
    """Tasks that wait for one another, each for the next."""
    for start in waits_for:
        path, task = [start], start
        while True:
            after = next((t for t in waits_for.get(task, ()) if not t.done and t in waits_for), None)
            if after is None:
                break
            if after in path:
                return path[path.index(after) :]
            path.append(after)
            task = after
    return []


def _missing_bytes(task: Task) -> int:
    """Transaction bytes that a barrier still expects, or has too many of, although nothing that brings any is in flight."""
    barrier = task.wait.barrier if task.wait else None
    if not isinstance(barrier, MBarrier) or barrier.pending:
        return 0
    return barrier.bytes


def _state(program: Program, task: Task) -> list[str]:
    if task.done:
        return [f"{task.name}: ended"]
    lines = [f"{task.name}: blocked at {task.location}: {task.wait.text if task.wait else ''}"]
    barrier: Any = task.wait.barrier if task.wait else None
    if barrier is None:
        return lines
    lines.append(f"    {barrier.name}: {barrier.state()}")
    lines += [f"    {event}" for event in _events(barrier)] or ["    nobody ever arrived on it"]
    if isinstance(barrier, MBarrier):
        sites = program.launch.arrive_sites(barrier.name.split("[")[0])
        lines.append("    arrivals in the kernel: " + (", ".join(str(site.location) for site in sites) or "none"))
    return lines


def _events(barrier: Any) -> tuple[str, ...]:
    return tuple(str(event) for event in list(barrier.events)[-3:])
