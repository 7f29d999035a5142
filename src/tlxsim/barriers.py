"""mbarriers and named barriers, with the clocks of every phase.

An mbarrier completes a phase when its pending arrivals and its transaction bytes are both 0. A wait names one bit, the
parity of a phase, and passes when the last completed phase has that parity (phase -1, of parity 1, is complete from the
start). So what a wait guarantees is the first phase of that parity which the waiter does not know to be followed by another:
a task that skipped a phase may pass one lap early, whether or not this run shows it.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from .clocks import Clock, join

HISTORY = 16  # phases kept; a task that slept longer counts as knowing the older ones


@dataclasses.dataclass(slots=True, eq=False)
class Phase:
    """Who arrived, as (agent, epoch), and what is known once it completes."""

    arrivals: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    clock: Clock = dataclasses.field(default_factory=dict)
    fenced: Clock = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """Something that happened to a barrier, for messages."""

    phase: int
    what: str
    actor: str
    location: Any

    def __str__(self) -> str:
        return f"[phase {self.phase}] {self.what} by {self.actor} at {self.location}"


class Completions:
    """The completed phases of a barrier, the latest of them with their clocks.

    Args:
        cumulative: whoever sees a phase sees the phases before it too. True of an mbarrier, whose arrivals are
            read-modify-writes of one word; a named barrier orders only the threads that meet in a phase.
    """

    def __init__(self, cumulative: bool) -> None:
        self._cumulative = cumulative
        self.done = 0  # phases completed
        self.past: collections.deque[Phase] = collections.deque(maxlen=HISTORY)
        self.current = Phase()
        self._clock: Clock = {}
        self._fenced: Clock = {}
        self._known: dict[int, int] = {}

    def add(self, agent: int, epoch: int, clock: Clock, fenced: Clock) -> None:
        """An arrival, or bytes that came, in the current phase."""
        self.current.arrivals.append((agent, epoch))
        join(self.current.clock, clock)
        join(self.current.fenced, fenced)

    def complete(self) -> None:
        if self._cumulative:
            join(self._clock, self.current.clock)
            join(self._fenced, self.current.fenced)
            self.current.clock, self.current.fenced = dict(self._clock), dict(self._fenced)
        self.past.append(self.current)
        self.current = Phase()
        self.done += 1

    def phase(self, number: int) -> Phase | None:
        """A completed phase that is still kept."""
        place = number - (self.done - len(self.past))
        return self.past[place] if 0 <= place < len(self.past) else None

    def known(self, agent: int, clock: Clock) -> int:
        """The last phase whose arrivals the clock of an agent holds, -1 for none."""
        oldest = self.done - len(self.past)
        last = max(self._known.get(agent, -1), oldest - 1)
        for number in range(self.done - 1, last, -1):
            if all(clock.get(a, 0) >= epoch for a, epoch in self.past[number - oldest].arrivals):
                last = number
                break
        self._known[agent] = last
        return last


class MBarrier:
    """A barrier in shared memory."""

    def __init__(self, name: str, count: int, location: Any):
        self.name, self.count, self.location = name, count, location
        self.pending, self.bytes = count, 0
        self.phases = Completions(cumulative=True)
        self.issued: list[Copy] = []  # copies of this phase that have not completed
        self.waits: list[Passed] = []  # waits for the last completed phase
        self.events: collections.deque[Event] = collections.deque(maxlen=8)

    @property
    def phase(self) -> int:
        """The number of the current phase."""
        return self.phases.done

    def passes(self, parity: int) -> bool:
        return (self.phase & 1) != parity

    def state(self) -> str:
        outstanding = f", {self.bytes:+d} transaction bytes outstanding" if self.bytes else ""
        return f"phase {self.phase} (parity {self.phase & 1}), {self.pending} of {self.count} arrivals pending{outstanding}"

    def note(self, what: str, actor: str, location: Any) -> None:
        self.events.append(Event(self.phase, what, actor, location))

    def settle(self) -> bool:
        """Complete the phase if nothing is pending; whether it did."""
        if self.pending or self.bytes:
            return False
        self.pending = self.count
        self.phases.complete()
        return True


@dataclasses.dataclass(slots=True, eq=False)
class Passed:
    """A wait for a phase that has passed: the next phase may complete only when that is ordered after it."""

    phase: int
    agent: int
    epoch: int
    actor: str
    location: Any


@dataclasses.dataclass(slots=True, eq=False)
class Copy:
    """Bytes on their way that will complete on a phase of a barrier."""

    nbytes: int
    phase: int
    actor: str
    location: Any


class NamedBarrier:
    """One of the 16 hardware barriers, which count threads."""

    def __init__(self, number: int, threads: int):
        self.number, self.threads, self.arrived = number, threads, 0
        self.phases = Completions(cumulative=False)
        self.events: collections.deque[Event] = collections.deque(maxlen=8)

    @property
    def name(self) -> str:
        return f"named barrier {self.number}"

    def state(self) -> str:
        return f"{self.arrived} of {self.threads} threads arrived in phase {self.phases.done}"
