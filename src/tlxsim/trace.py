"""What happened in a launch, step by step of the scheduler, for Perfetto and as a picture: an order and no time."""

from __future__ import annotations

import dataclasses
import json
import pathlib

ENGINES = {
    "load": "TMA loads", "store": "TMA stores", "mma": "tensor cores", "wgmma": "tensor cores", "commit": "tensor cores",
    "copy": "tensor cores", "cp.async": "cp.async", "arrive": "cp.async",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Span:
    """One event: a wait of a task, or an asynchronous operation from its issue to its completion."""

    program: tuple[int, int, int]
    task: str
    kind: str
    label: str
    first: int
    last: int
    line: str

    @property
    def lane(self) -> str:
        """The task that waits, or the engine that works."""
        return self.task if self.kind == "wait" else ENGINES.get(self.label.split()[0], "others")


class Trace:
    """The spans of a kernel's launch under one schedule; `events` are their fields as the machine notes them."""

    def __init__(self, kernel: str):
        self.kernel = kernel
        self.events: list[tuple] = []

    @property
    def spans(self) -> list[Span]:
        return [Span(*event) for event in self.events]

    def write(self, path: str) -> None:
        """A JSON in Chrome's trace format, which Perfetto opens: a process a program, a lane a task and an engine."""
        lanes: dict[tuple, int] = {}
        programs: dict[tuple, int] = {}
        events: list[dict] = []
        for span in self.spans:
            program = programs.setdefault(span.program, len(programs))
            lane = lanes.setdefault((program, span.lane), len(lanes))
            events.append(
                dict(name=span.label, cat=span.kind, ph="X", ts=span.first, dur=max(span.last - span.first, 1),
                     pid=program, tid=lane, args=dict(line=span.line, task=span.task))
            )  # fmt: skip
        for position, program in programs.items():
            events.append(dict(name="process_name", ph="M", pid=program, args=dict(name=f"program {position}")))
        for (program, name), lane in lanes.items():
            events.append(dict(name="thread_name", ph="M", pid=program, tid=lane, args=dict(name=name)))
        note = "one microsecond is one step of the scheduler: an order, not a time"
        content = dict(traceEvents=events, displayTimeUnit="ns", otherData=dict(kernel=self.kernel, time=note))
        pathlib.Path(path).write_text(json.dumps(content) + "\n")

    def draw(self, path: str) -> None:
        """A picture of the first program, as PNG, SVG or HTML by the file's suffix."""
        from .picture import draw

        draw(self, path)
