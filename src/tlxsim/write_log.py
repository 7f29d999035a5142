"""Which program has written each element of global memory, and the conflicts between programs.

Programs run one after another, in any order on a GPU: two that write one element without atomics conflict, unless a lock
orders them, taken by an acquiring `atomic_cas` and handed on by a releasing exchange of the same word.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from .findings import Code


@dataclasses.dataclass(frozen=True, slots=True)
class Writer:
    """A store of one program between two of its synchronisations; `epoch` counts those."""

    program: tuple[int, int, int]
    epoch: int
    location: Any
    atomic: bool


class WriteLog:
    """Writers by number: arrays of numbers, 0 for none, say who has written each element; odd ones are atomics.

    Args:
        nearest: function from an address to the argument's name, the offset in it, and its size.
    """

    def __init__(self, nearest: Callable[[int], tuple[str, int, int]]):
        self._nearest = nearest
        self._writers: list[Writer | None] = [None]
        self._program: Any = None
        self._first = 2  # the least number of a writer of the current program
        self._numbers: dict[tuple, int] = {}
        self._clock: dict[tuple, int] = {}
        self._epoch = 1
        self._locks: dict[int, dict[tuple, int]] = {}

    def written(self, old: np.ndarray, address_of: Any, op: Any, task: Any, atomic: bool) -> Any:
        """The new writers of elements whose writers were `old`; conflicts are reported.

        Args:
            address_of: function from a position in `old` to the element's address.
        """
        if task.program is not self._program:
            self._enter(task.program)
        number = self._number(op, task, atomic)
        if not old.size or not old.max():
            return number
        foreign = (old < self._first) & (old != 0)
        if foreign.any():
            self._report_conflicts(old, foreign, address_of, op, task, atomic)
        if atomic:  # a plain store of the same program stays: the next program's atomic conflicts with it
            return np.where(~foreign & (old & 1 == 0) & (old != 0), old, number)
        return number

    def _number(self, op: Any, task: Any, atomic: bool) -> int:
        """The current program's number for a store; odd for atomics."""
        key = (id(op), self._epoch, atomic)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = 2 * len(self._writers) + atomic
            self._writers.append(Writer(task.program.pid, self._epoch, op.loc, atomic))
        return number

    def _enter(self, program: Any) -> None:
        self._program, self._first, self._epoch = program, 2 * len(self._writers), 1
        self._numbers.clear()
        self._clock = {}

    def _report_conflicts(
        self, old: np.ndarray, foreign: np.ndarray, address_of: Any, op: Any, task: Any, atomic: bool
    ) -> None:
        for number in np.unique(old[foreign]):
            writer = self._writers[number >> 1]
            if (atomic and writer.atomic) or self._clock.get(writer.program, 0) >= writer.epoch:
                continue
            position = tuple(np.argwhere(foreign & (old == number))[0])
            name, offset, _ = self._nearest(address_of(position))
            kinds = "with and without atomics" if atomic != writer.atomic else "without atomics"
            message = f"two programs write the same elements of {name} {kinds}"
            details = (f"byte {offset:,} of {name}: program {writer.program} first, then program {task.program.pid}",)
            task.program.report(Code.WRITE_CONFLICT, message, op.loc, (writer.location,), details)

    def synchronise(self, address: int, acquires: bool, releases: bool, task: Any) -> None:
        """A lock's word is exchanged: who releases it hands on all it has written to whoever acquires it later."""
        if task.program is not self._program:
            self._enter(task.program)
        lock = self._locks.setdefault(address, {})
        if acquires:
            for program, epoch in lock.items():
                self._clock[program] = max(epoch, self._clock.get(program, 0))
        if releases:
            lock.update(self._clock)
            lock[task.program.pid] = self._epoch
            self._epoch += 1
