"""What happened in a launch, step by step of the scheduler, for Perfetto and as a picture: an order and no time."""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import re

SHOWN = 200  # steps of a picture that stay readable
BEYOND = 10  # steps for which a wait that never ends is shown after the last one
ENGINES = {
    "load": "TMA loads", "store": "TMA stores", "mma": "tensor cores", "wgmma": "tensor cores", "commit": "tensor cores",
    "copy": "tensor cores", "cp.async": "cp.async", "arrive": "cp.async",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Span:
    """One event: a "wait" of a task, "stuck" if it never ends, or an "async" operation from its issue to its completion."""

    program: tuple[int, int, int]
    task: str
    kind: str
    label: str
    first: int
    last: int
    line: str

    @property
    def end(self) -> int:
        """Where it ends in a picture: none is empty, and one that never ends goes on for a while."""
        return self.last + BEYOND if self.kind == "stuck" else max(self.last, self.first + 1)

    @property
    def lane(self) -> str:
        """The task that waits, or the engine that works."""
        return ENGINES.get(self.label.split()[0], "others") if self.kind == "async" else self.task

    @property
    def name(self) -> str:
        """What it is called where it is shown."""
        return f"{self.label}, which never ends" if self.kind == "stuck" else self.label


class Trace:
    """The spans of a kernel's launch under one schedule; `events` are their fields as the machine notes them."""

    def __init__(self, kernel: str):
        self.kernel = kernel
        self.events: list[tuple] = []

    @property
    def spans(self) -> list[Span]:
        """As they began."""
        return sorted((Span(*event) for event in self.events), key=lambda span: span.first)

    def write(self, path: str) -> None:
        """A JSON in Chrome's trace format, which Perfetto opens: a process a program, lanes of tasks, then of engines.

        Spans of a thread may not overlap there, so that a busy engine has several lanes. 0 is no process or thread of ours:
        Perfetto takes it for the idle one.
        """
        events: list[dict] = []
        programs = collections.defaultdict(list)
        for span in self.spans:
            programs[span.program].append(span)
        for program, (position, mine) in enumerate(sorted(programs.items()), 1):
            events.append(dict(name="process_name", ph="M", pid=program, args=dict(name=f"program {position}")))
            tracks = [(lane, row) for lane, deep in lanes(mine).items() for row in range(deep)]
            tids = {track: tid for tid, track in enumerate(tracks, 1)}
            for (lane, row), tid in tids.items():
                name = f"{lane} ({row + 1})" if row else lane
                events.append(dict(name="thread_name", ph="M", pid=program, tid=tid, args=dict(name=name)))
                events.append(dict(name="thread_sort_index", ph="M", pid=program, tid=tid, args=dict(sort_index=tid)))
            for span, row in zip(mine, rows(mine), strict=True):
                events.append(
                    dict(name=span.name, cat=span.kind, ph="X", ts=span.first, dur=span.end - span.first, pid=program,
                         tid=tids[span.lane, row], args=dict(line=span.line, task=span.task))
                )  # fmt: skip
        note = "one microsecond is one step of the scheduler: an order, not a time"
        content = dict(traceEvents=events, displayTimeUnit="ns", otherData=dict(kernel=self.kernel, time=note))
        pathlib.Path(path).write_text(json.dumps(content) + "\n", encoding="utf-8")

    def draw(self, path: str, steps: tuple[int, int] | None = None) -> None:
        """A picture of the first program, or of the first that is stuck, as PNG, SVG or HTML by the file's suffix."""
        from .picture import draw

        draw(self, path, steps)


def rows(spans: list[Span]) -> list[int]:
    """For each span, in the order of their beginnings, a row of its lane in which it overlaps no other."""
    found, ends = [], collections.defaultdict(list)
    for span in spans:
        taken = ends[span.lane]
        row = next((row for row, end in enumerate(taken) if end <= span.first), len(taken))
        taken[row : row + 1] = [span.end]
        found.append(row)
    return found


def tasks(spans: list[Span]) -> list[str]:
    """Their names, by the numbers in them."""
    return sorted({span.task for span in spans}, key=lambda name: re.sub(r"\d+", lambda found: found[0].zfill(9), name))


def lanes(spans: list[Span]) -> dict[str, int]:
    """Every task, those too that never wait, then the engines: how many rows each needs."""
    deep = dict.fromkeys(tasks(spans), 1)
    for span, row in zip(spans, rows(spans), strict=True):
        deep[span.lane] = max(deep.get(span.lane, 1), row + 1)
    return deep
