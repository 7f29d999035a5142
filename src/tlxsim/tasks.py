"""Tasks, the queues of asynchronous operations that they feed, and what they wait for."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Generator
from typing import Any

from .clocks import Agents, Clock
from .memory import Access


@dataclasses.dataclass(slots=True, eq=False)
class Wait:
    """Yielded by a step that may not go on before `ready()`; text and barrier are for messages."""

    ready: Callable[[], bool]
    text: str
    barrier: Any = None


class Queue:
    """Operations of one kind that complete in order: an agent whose epochs are the operations."""

    def __init__(self, agent: int, kind: str):
        self.agent, self.kind = agent, kind
        self.issued = 0  # epoch of the last operation
        self.completed = 0
        self.pending: collections.deque[AsyncOp] = collections.deque()


@dataclasses.dataclass(slots=True, eq=False)
class AsyncOp:
    """Something in flight: `effect` happens when the scheduler says so."""

    label: str
    effect: Callable[[], None]
    location: Any
    task: Task
    queue: Queue | None
    epoch: int
    issued_at: int


class Task:
    """An `async_task`, or the kernel outside of them: a generator with its clocks."""

    def __init__(self, program: Any, name: str, warps: int, agents: Agents, location: Any = None, site: int = 0):
        self.program, self.name, self.warps = program, name, warps
        self.agents, self.agent = agents, agents.new()
        self.clock: Clock = {self.agent: 1}
        self.fenced: Clock = {}
        self.generator: Generator | None = None
        self.wait: Wait | None = None
        self.location = location
        self.site = site  # its number in the kernel: 0 for the default task, then the partitions
        self.done = False
        self.queues: dict[str, Queue] = {}
        self.copy_groups: list[int] = []  # for each cp.async group the last copy in it
        self._actors: dict[str, str] = {}

    def __str__(self) -> str:
        return self.name

    @property
    def epoch(self) -> int:
        return self.clock[self.agent]

    def tick(self) -> None:
        """Later accesses are new to whoever has the clock as it was."""
        self.clock[self.agent] += 1

    def queue(self, kind: str) -> Queue:
        if kind not in self.queues:
            self.queues[kind] = Queue(self.agents.new(), kind)
        return self.queues[kind]

    def actor(self, kind: str) -> str:
        """ "TMA load issued by task" and the like, for messages."""
        if kind not in self._actors:
            self._actors[kind] = f"{kind} issued by {self.name}"
        return self._actors[kind]

    def fence(self) -> None:
        """A proxy fence: the async proxy sees everything ordered before now, and nothing later."""
        self.fenced.update(self.clock)
        self.tick()

    def access(self, location: Any) -> Access:
        """An access by the task itself, through the generic proxy."""
        return Access(self.agent, self.epoch, self.clock, self.fenced, "generic", self.name, self.agent, location)

    def issue(self, agent: int, epoch: int, kind: str, location: Any, proxy: str = "async") -> Access:
        """An access by an operation issued now: ordered after what the task knows, and known by its own epoch."""
        clock = dict(self.clock)
        clock[agent] = epoch
        fenced = dict(self.fenced)
        fenced[agent] = epoch
        return Access(agent, epoch, clock, fenced, proxy, self.actor(kind), self.agent, location)
