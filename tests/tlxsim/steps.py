"""Operations run one by one from their text, without the compiler and without a program."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

import tlxsim.ops.arith
import tlxsim.ops.atomics
import tlxsim.ops.casts
import tlxsim.ops.descriptors
import tlxsim.ops.dot
import tlxsim.ops.math
import tlxsim.ops.pointers
import tlxsim.ops.ptx
import tlxsim.ops.reduce
import tlxsim.ops.tensor  # noqa: F401
from tlxsim.global_memory import GlobalMemory
from tlxsim.ir import parse
from tlxsim.ops.control import Body

Typed = tuple[str, Any]  # a type's text and a value


class Program:
    """What steps ask of a program; `found` holds (code, message) of what is reported."""

    def __init__(self, memory: GlobalMemory | None = None, pid: tuple[int, int, int] = (0, 0, 0)):
        self.memory, self.pid, self.grid = memory or GlobalMemory(), pid, (4, 1, 1)
        self.launch = types.SimpleNamespace(schedule="eager")
        self.found: list[tuple] = []
        self.details: list[str] = []

    def report(self, code: Any, message: str, location: Any, related: tuple = (), details: tuple = (), **_: Any) -> None:
        self.found.append((code, message))
        self.details += details


def run(text: str, program: Program | None = None, **operands: Typed) -> dict[str, Any]:
    """All values after the lines of `text` with `%name` of each operand: (type, value)."""
    arguments = ", ".join(f"%{name}: {kind}" for name, (kind, _) in operands.items())
    module = parse(f"module {{\ntt.func public @f({arguments}) {{\n{text}\ntt.return\n}}\n}}")
    env = {f"%{name}": value for name, (_, value) in operands.items()}
    task = types.SimpleNamespace(program=program or Program(), location=None, name="kernel")
    with np.errstate(all="ignore"):
        for _ in Body(module.entry.region).run(env, task):
            raise AssertionError("an operation on values has waited")
    return env


def result(text: str, program: Program | None = None, **operands: Typed) -> Any:
    """The value of `%r`, which the text defines."""
    return run(text, program, **operands)["%r"]


def tensor(array: np.ndarray, element: str) -> Typed:
    """An array with its type's text."""
    return f"tensor<{'x'.join(map(str, array.shape))}x{element}>", array
