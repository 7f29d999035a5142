"""One program (CTA) of a launch: its tasks, what is in flight, and the scheduler that picks who goes on.

One thing happens at a time, so a schedule is the sequence of picks: `eager` completes asynchronous operations at once,
`late` as late as possible, `random:N` picks by seed, every other seed with priorities that keep some tasks back for long.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from .barriers import NamedBarrier
from .clocks import Agents, join
from .deadlock import explain
from .findings import Code, Finding, Severity, place
from .memory import Access, Conflict, View, record
from .tasks import AsyncOp, Queue, Task, Wait

WORDS = {"race": Code.RACE, "fence": Code.MISSING_FENCE, "unwritten": Code.UNINITIALISED}


class Stop(Exception):
    """A fault after which the program's state means nothing; its finding has been reported."""


@dataclasses.dataclass(slots=True, eq=False)
class Launch:
    """What the programs of a launch share."""

    kernel: str
    grid: tuple[int, int, int]
    memory: Any  # GlobalMemory
    add: Callable[[Finding], None]
    schedule: str
    seed: int
    strict_fences: bool
    trace: list[tuple] | None = None
    arrive_sites: Callable[[str], list[Any]] = lambda name: []
    functions: Callable[[str], tuple] = lambda name: ()


class Program:
    """One program, run to its end by `run`."""

    def __init__(self, launch: Launch, pid: tuple[int, int, int]):
        self.launch, self.pid, self.grid, self.memory = launch, pid, launch.grid, launch.memory
        self.agents = Agents()
        self.tasks: list[Task] = []
        self.free: list[AsyncOp] = []  # in flight, in no queue
        self.queues: list[Queue] = []
        self.named: dict[int, NamedBarrier] = {}
        self.barriers: list[Any] = []
        self.steps = 0
        self.last_launched: dict[int, tuple[int, str, Any]] = {}
        self.random = random.Random(hash((launch.seed, *pid)))
        self._pick = self._policy(launch.schedule)

    # -- findings ----------------------------------------------------------------------------------------------------

    def report(
        self, code: Code, message: str, location: Any, related: tuple = (), details: tuple = (),
        severity: Severity = Severity.ERROR,
    ) -> None:  # fmt: skip
        """Add a finding at a line of the kernel; related lines follow it."""
        places = tuple(place(x) for x in (location, *related) if x is not None)
        launch = self.launch
        launch.add(Finding(code, message, places, launch.kernel, self.pid, launch.schedule, tuple(details), severity))

    def stop(self, code: Code, message: str, location: Any, related: tuple = (), details: tuple = ()) -> Stop:
        """Report, and return what to raise."""
        self.report(code, message, location, related, details)
        return Stop(message)

    def touch(self, view: View, write: bool, access: Access, what: str, reads_old: bool = True) -> None:
        """Note an access to shared or tensor memory and report what it conflicts with."""
        self.check_inside(view, access.location)
        strict = self.launch.strict_fences
        for conflict in record(view, write, access, what, strict_fences=strict, reads_old=reads_old):
            self._conflict(conflict, view, write, access, what)

    def check_inside(self, view: View, location: Any) -> None:
        """Stop at the use of a view that an index has taken out of its ring."""
        if view.outside is not None:
            message, index = view.outside
            raise self.stop(Code.OUT_OF_BOUNDS, message, index, (location,))

    def _conflict(self, conflict: Conflict, view: View, write: bool, access: Access, what: str) -> None:
        verb, old = "write" if write else "read", conflict.earlier
        mine = f"{verb} of {view} ({what}) by {access.actor}"
        if old is None:
            of_registers = view.storage.space == "tmem" and access.proxy == "generic"
            severity = Severity.WARNING if of_registers else Severity.ERROR
            message = f"{mine} finds memory that was never written"
            self.report(Code.UNINITIALISED, message, access.location, severity=severity)
            return
        other = f"{'write' if old.write else 'read'} ({old.what}) by {old.actor}"
        if conflict.kind == "race":
            message = f"{mine} is not ordered after the {other}"
        else:
            message = f"async-proxy {mine} sees the generic {other} with no fence_async_shared in between"
        self.report(WORDS[conflict.kind], message, access.location, (old.location,))

    # -- scheduling --------------------------------------------------------------------------------------------------

    def add_task(self, task: Task) -> None:
        self.tasks.append(task)

    def fly(
        self, label: str, effect: Callable[[], None], task: Task, location: Any, queue: Queue | None = None, epoch: int = 0
    ) -> None:
        """Put an asynchronous operation in flight, behind the others of its queue."""
        op = AsyncOp(label, effect, location, task, queue, epoch, self.steps)
        if queue is None:
            self.free.append(op)
            return
        if not queue.pending:
            self.queues.append(queue)
        queue.pending.append(op)

    def run(self) -> None:
        """Until every task has ended and nothing is in flight; a deadlock is reported."""
        try:
            while True:
                ready = [task for task in self.tasks if not task.done and (task.wait is None or task.wait.ready())]
                flying = [queue.pending[0] for queue in self.queues] + self.free
                if not ready and not flying:
                    break
                self.steps += 1
                picked = self._pick(ready, flying)
                if isinstance(picked, AsyncOp):
                    self._complete(picked)
                else:
                    self._advance(picked)
            if all(task.done for task in self.tasks):
                self._check_exit()
            else:
                explain(self)
        except Stop:
            pass

    def launched(self, agent: int, epoch: int, what: str, location: Any) -> None:
        """Remember a copy, which somebody has to wait for before the program ends."""
        self.last_launched[agent] = (epoch, what, location)

    def _check_exit(self) -> None:
        """What is still open when the last task has ended."""
        knows = self.tasks[0].clock
        for agent, (epoch, what, location) in self.last_launched.items():
            if knows.get(agent, 0) < epoch:
                # in practice a store's source outlives its program: what takes the place needs longer to come
                severity = Severity.WARNING if "TMA store" in what else Severity.ERROR
                self.report(Code.IN_FLIGHT, f"{what} may be in flight when the kernel ends", location, severity=severity)
        for barrier in self.barriers:
            if barrier.pending != barrier.count or barrier.bytes:
                message = f"{barrier.name} ends in {barrier.state()}"
                self.report(Code.PENDING, message, barrier.location, details=tuple(map(str, list(barrier.events)[-3:])))

    def _advance(self, task: Task) -> None:
        task.wait = None
        try:
            task.wait = next(task.generator)
        except StopIteration:
            task.done = True

    def _complete(self, op: AsyncOp) -> None:
        queue = op.queue
        if queue is None:
            self.free.remove(op)
        else:
            queue.pending.popleft()
            if not queue.pending:
                self.queues.remove(queue)
            queue.completed = max(queue.completed, op.epoch)
        op.effect()
        self.mark(op.label, "async", op.issued_at, op.task, op.location)

    def mark(self, label: str, kind: str, since: int, task: Task, location: Any) -> None:
        """A span from a scheduler step to now, for the trace."""
        if self.launch.trace is not None:
            self.launch.trace.append((self.pid, task.name, kind, label, since, self.steps, str(location)))

    def _policy(self, schedule: str) -> Callable[[list[Task], list[AsyncOp]], Any]:
        choice = self.random.choice
        if schedule == "eager":
            return lambda ready, flying: flying[0] if flying else choice(ready)
        if schedule == "late":
            return lambda ready, flying: choice(ready or flying)
        if self.launch.seed % 2 == 0:
            return lambda ready, flying: choice(ready + flying)
        return self._by_priority

    def _by_priority(self, ready: list[Task], flying: list[AsyncOp]) -> Any:
        """The same one again and again while it can go on; now and then priorities are drawn anew."""
        if self.steps % 32 == 1 or not hasattr(self, "_priorities"):
            self._priorities: dict[Any, float] = {}
        draw, known = self.random.random, self._priorities
        return max(ready + flying, key=lambda x: known.setdefault(x, draw()))


def spawn(program: Program, parent: Task, name: str, warps: int, location: Any, site: int) -> Task:
    """A task that knows what its parent knows."""
    task = Task(program, name, warps, program.agents, location, site)
    join(task.clock, parent.clock)
    join(task.fenced, parent.fenced)
    program.add_task(task)
    return task


__all__ = ["Launch", "Program", "Stop", "Wait", "spawn"]
