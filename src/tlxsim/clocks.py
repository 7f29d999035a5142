"""Vector clocks: what an agent knows to have happened.

An agent is anything whose steps follow one another: a task, a queue of MMAs, one TMA copy. A clock maps an agent to the last
epoch of it that is ordered before now. Tasks carry two: what happened, and what of it the async proxy sees (`fenced`).
"""

from __future__ import annotations

Clock = dict[int, int]


def join(into: Clock, other: Clock) -> None:
    """Raise every epoch of `into` to at least that of `other`."""
    get = into.get
    for agent, epoch in other.items():
        if get(agent, 0) < epoch:
            into[agent] = epoch


class Agents:
    """The agents of a program, by number."""

    def __init__(self) -> None:
        self.count = 0
        self._slots: list[list[int]] = []

    def new(self) -> int:
        self.count += 1
        return self.count

    def take(self, clock: Clock) -> tuple[int, int]:
        """Agent and epoch for an operation of its own that nothing orders but its issue, like a TMA copy.

        An agent is taken again once the issuer's clock knows its last operation, so that clocks do not grow with the copies
        of a long run.
        """
        for slot in self._slots:
            agent, epoch = slot
            if clock.get(agent, 0) >= epoch:
                slot[1] = epoch + 1
                return agent, epoch + 1
        agent = self.new()
        self._slots.append([agent, 1])
        return agent, 1
