"""Names of the kernel's own: buffers by the variable that holds them, tasks by their line."""

from __future__ import annotations

import linecache
import re
from typing import Any

ENDS = ("ttg.warp_return", "ttg.warp_yield", "cf.br")  # they carry the line of the whole specialisation


def base_name(op: Any) -> str:
    """The variable that an allocation was given to, or its line."""
    name = re.sub(r"(_\d+)?(#\d+)?$", "", op.results[0][1:])
    return name if name and not name.isdigit() and not name.startswith("arg") else f"buffer@{op.loc}"


def task_line(region: list, outer: Any) -> int:
    """The line of the `async_task` whose region this is: the nearest above its first operation, 0 if there is none.

    `outer` is the location of the specialisation: the task's lines are those of the same function.
    """
    file = outer.user[0]
    ops = [op for block in region for op in block.ops if op.name not in ENDS]
    lines = [line for op in ops for f, line in op.loc.frames if f == file and line]
    first = min((line for line in lines if line >= outer.user[1]), default=min(lines, default=0))
    for line in range(first, max(0, first - 400), -1):
        if "async_task(" in linecache.getline(file, line):
            return line
    return first
