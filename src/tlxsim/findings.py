"""What a simulation finds: stable codes, findings with the kernel's own lines, and the report of a session.

A code's number never changes its meaning, so that a suite can select or suppress by it. What the simulator does not model is
no finding: it raises `Unsupported`, so that no verdict rests on an operation that was skipped.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from typing import Any


class Severity(enum.Enum):
    """An error makes `Report.raise_if_errors` raise; a warning may be meant; a note says what was not checked."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Code(enum.Enum):
    """Kinds of findings: (number, name, what to do)."""

    DEADLOCK = ("TLX001", "deadlock", "let some task complete the barrier named first: the others wait for what it blocks")
    RACE = ("TLX002", "race", "order the two accesses: wait on a barrier that the other side arrives on after its access")
    EARLY_WAIT = (
        "TLX003",
        "early wait",
        "let this task wait on every phase of the barrier, or give it a barrier of its own",
    )
    OVER_ARRIVAL = ("TLX004", "over-arrival", "arrive as often in a phase as the barrier's arrive_count says")
    PENDING = ("TLX005", "arrivals pending at exit", "make the arrivals of every phase add up to the barrier's arrive_count")
    BYTES = ("TLX006", "wrong transaction bytes", "expect exactly the bytes of the copies that complete on this phase")
    UNINITIALISED = ("TLX007", "uninitialised read", "write the memory first, or start an accumulator with use_acc=False")
    OUT_OF_BOUNDS = ("TLX008", "out of bounds", "keep the index inside the buffer, or mask the lanes that leave the tensor")
    MISSING_FENCE = ("TLX009", "missing proxy fence", "call tlx.fence_async_shared() between the store and the arrive")
    WRITE_CONFLICT = ("TLX010", "write conflict", "let one program write each element, or use atomics")
    IN_FLIGHT = ("TLX011", "copy in flight at exit", "wait for the copy before the kernel ends")
    REGISTERS = ("TLX012", "registers", "ask for no more registers than the launch has")
    ALIGNMENT = ("TLX013", "TMA alignment", "align base addresses and strides to 16 bytes")
    BUDGET = ("TLX014", "budget", "use fewer or smaller buffers, or fewer warps")
    NAMED_BARRIER = ("TLX015", "named barrier", "pass the same thread count in every call: that of all tasks that take part")
    BARRIER_USE = ("TLX016", "barrier use", "initialise each mbarrier once, before any task uses it")
    EARLY_USE = ("TLX017", "early use", "call tlx.async_dot_wait before the result is used")
    ASSERT = ("TLX018", "device assert", "look at the condition")
    LATE_WAIT = ("TLX020", "late wait", "let whoever completes the next phase wait for this task first")
    COMPILE = ("TLX019", "compile", "the compiler refuses the kernel for this GPU: read its message")

    def __init__(self, number: str, title: str, advice: str):
        self.number, self.title, self.advice = number, title, advice


class Unsupported(NotImplementedError):
    """The kernel uses something that the simulator does not model; the message names it and its line."""


class SimulationError(AssertionError):
    """Raised by `Report.raise_if_errors`."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of the kernel."""

    file: str
    line: int
    source: str = ""

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}" if self.line else "?"


def place(location: Any) -> Place:
    """The user's line of an `ir.Location`."""
    file, line = location.user
    return Place(file, line, location.source)


@dataclasses.dataclass
class Finding:
    """One fault: its code, what is wrong with names from the kernel, and the lines of the kernel that have to do with it."""

    code: Code
    message: str
    places: tuple[Place, ...]
    kernel: str
    program: tuple[int, int, int]
    schedule: str
    details: tuple[str, ...] = ()
    severity: Severity = Severity.ERROR
    schedules: list[str] = dataclasses.field(default_factory=list)
    count: int = 1

    @property
    def key(self) -> tuple:
        """The same fault on another buffer of a ring, or in another phase, is the same fault."""
        unnumbered = re.sub(r"\d+", "#", self.message)
        return self.code, self.kernel, unnumbered, tuple((p.file, p.line) for p in self.places)

    def text(self) -> str:
        """Several lines: what, where with the source's text, details, what to do."""
        first = self.places[0] if self.places else Place("?", 0)
        lines = [f"{self.code.number} {self.code.title} ({self.severity.value}) at {first}: {self.message}"]
        lines += [f"    {p}: {p.source}" for p in self.places if p.source]
        lines += [f"    {line}" for line in self.details]
        seen = ", ".join(self.schedules[:4]) + (", ..." if len(self.schedules) > 4 else "")
        lines.append(f"    in {self.kernel}, program {self.program}, {self.count} times, schedules {seen}")
        lines.append(f"    to do: {self.code.advice}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return dict(
            code=self.code.number, title=self.code.title, severity=self.severity.value, message=self.message,
            places=[dict(file=p.file, line=p.line, source=p.source) for p in self.places], details=list(self.details),
            kernel=self.kernel, program=list(self.program), schedules=self.schedules, count=self.count,
            advice=self.code.advice,
        )  # fmt: skip


@dataclasses.dataclass
class Report:
    """All findings of a session; the same fault in several programs or schedules stands once."""

    findings: list[Finding] = dataclasses.field(default_factory=list)
    launches: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def add(self, finding: Finding) -> None:
        known = next((f for f in self.findings if f.key == finding.key), None)
        if known is None:
            finding.schedules = [finding.schedule]
            self.findings.append(finding)
            return
        known.count += 1
        if finding.schedule not in known.schedules:
            known.schedules.append(finding.schedule)

    @property
    def errors(self) -> list[Finding]:
        return [f for f in self.findings if f.severity is Severity.ERROR]

    def raise_if_errors(self) -> None:
        """Raise SimulationError with every error's text."""
        if self.errors:
            raise SimulationError("\n\n".join(f.text() for f in self.errors))

    def text(self) -> str:
        simulated = ", ".join(f"{one['kernel']} {tuple(one['grid'])}" for one in self.launches) or "nothing"
        head = f"simulated {simulated}: {len(self.errors)} errors, {len(self.findings) - len(self.errors)} others"
        return "\n\n".join([head, *[f.text() for f in self.findings]])

    def to_json(self) -> str:
        return json.dumps(dict(launches=self.launches, findings=[f.to_json() for f in self.findings]), indent=1)
