"""What happened in a launch, step by step of the scheduler; steps are an order, not a time."""

from __future__ import annotations


class Trace:
    """Spans (program, task, kind, label, first step, last step, line) of a kernel's launch."""

    def __init__(self, kernel: str):
        self.kernel = kernel
        self.events: list[tuple] = []
