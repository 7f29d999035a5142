"""Forked children that run tests: each may apply a mutant to itself, crash or hang, and the parent hears what happened.

A child sends the name of every test before it starts it, so that a crash or a test without an end is known by its name.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_fork = multiprocessing.get_context("fork")


@dataclasses.dataclass
class Outcome:
    """What came of a job: the test it was in last, what it sent last, and how it died if it did."""

    test: str = ""
    result: Any = None
    death: str = ""


@dataclasses.dataclass
class _Child:
    job: Any
    process: multiprocessing.Process
    outcome: Outcome
    deadline: float


def run_all(
    jobs: Iterable[Any], work: Callable[[Any, Callable], Any], workers: int, seconds_a_test: float
) -> Iterator[tuple[Any, Outcome]]:
    """Run `work(job, starts)` for each job in a child of its own; it calls `starts(name)` before each test."""
    waiting, running = iter(jobs), {}
    while True:
        while len(running) < workers and (job := next(waiting, None)) is not None:
            connection, process = _start(job, work)
            running[connection] = _Child(job, process, Outcome(), time.monotonic() + seconds_a_test)
        if not running:
            return
        for connection in multiprocessing.connection.wait(list(running), timeout=1):
            if _hear(connection, running[connection], seconds_a_test):
                yield _finish(connection, running)
        for connection in [c for c, child in running.items() if time.monotonic() > child.deadline]:
            running[connection].process.kill()
            running[connection].outcome.death = f"no end within {seconds_a_test:.0f} s"
            yield _finish(connection, running)


def _start(job: Any, work: Callable):
    receiver, sender = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_child, args=(job, work, sender))
    process.start()
    sender.close()
    return receiver, process


def _child(job: Any, work: Callable, sender) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    sender.send(("result", work(job, lambda name: sender.send(("test", name)))))


def _hear(connection, child: _Child, seconds_a_test: float) -> bool:
    """Take one message; whether the child has ended."""
    try:
        kind, value = connection.recv()
    except EOFError:
        return True
    setattr(child.outcome, kind, value)
    child.deadline = time.monotonic() + seconds_a_test
    return False


def _finish(connection, running: dict) -> tuple[Any, Outcome]:
    child = running.pop(connection)
    connection.close()
    child.process.join()
    code = child.process.exitcode
    if code and not child.outcome.death:
        child.outcome.death = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return child.job, child.outcome
