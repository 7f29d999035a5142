"""Operations run one by one from their text, without the compiler and without a program."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import torch

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
from tlxsim import Code
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


POINTEES = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64", torch.int8: "i8",
    torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.float8_e4m3fn: "f8E4M3FN", torch.float8_e5m2: "f8E5M2",
    torch.uint8: "i8",
}  # fmt: skip


def memory_of(**tensors: torch.Tensor) -> GlobalMemory:
    memory = GlobalMemory()
    for name, one in tensors.items():
        memory.add(name, one)
    return memory


def pointers(x: torch.Tensor, offsets, element: str = "") -> tuple[str, np.ndarray]:
    """Addresses of elements of x by offset."""
    offsets = np.asarray(offsets, np.int64)
    element = element or POINTEES[x.dtype]
    return tensor(x.data_ptr() + offsets * x.element_size(), f"!tt.ptr<{element}>")


def load(program: Program, p: tuple, mask=None, other=None):
    kind, addresses = p
    operands = {"p": p}
    if mask is not None:
        operands["m"] = tensor(np.asarray(mask), "i1")
    if other is not None:
        element = kind[kind.index("ptr<") + 4 : -2]
        operands["o"] = tensor(np.broadcast_to(np.asarray(other), addresses.shape), element)
    return result(f"%r = tt.load {', '.join('%' + n for n in operands)} : {kind}", program, **operands)


def store(program: Program, p: tuple, values, mask=None):
    kind, addresses = p
    element = kind[kind.index("ptr<") + 4 : -2]
    operands = {"p": p, "v": tensor(np.broadcast_to(values, addresses.shape), element)}
    if mask is not None:
        operands["m"] = tensor(np.asarray(mask), "i1")
    run(f"tt.store {', '.join('%' + n for n in operands)} : {kind}", program, **operands)


def codes(program: Program) -> list[Code]:
    return [code for code, _ in program.found]


class Programs:
    """Programs of one launch, each made when it is first asked for."""

    def __init__(self, **tensors: torch.Tensor):
        self.memory, self.known = memory_of(**tensors), {}

    def __getitem__(self, number: int) -> Program:
        return self.known.setdefault(number, Program(self.memory, (number, 0, 0)))

    @property
    def found(self) -> list[tuple]:
        return [pair for program in self.known.values() for pair in program.found]


def rmw(program: Program, kind: str, p: tuple, value, mask=None, order="acq_rel"):
    text, addresses = p
    scalar = not isinstance(addresses, np.ndarray)
    element = text[text.index("ptr<") + 4 : -1 if scalar else -2]
    operands = {"p": p, "v": (element, value) if scalar else tensor(np.asarray(value), element)}
    if mask is not None:
        operands["m"] = ("i1", mask) if scalar else tensor(np.asarray(mask), "i1")
    kinds = ", ".join(kind for kind, _ in operands.values())
    names = ", ".join("%" + n for n in operands)
    return result(f"%r = tt.atomic_rmw {kind}, {order}, gpu, {names} : ({kinds}) -> {operands['v'][0]}", program, **operands)


def cas(program: Program, address: int, expected: int, value: int, order="acq_rel"):
    text = f"%r = tt.atomic_cas {order}, gpu, %p, %c, %v : (!tt.ptr<i32>, i32, i32) -> i32"
    return result(text, program, p=("!tt.ptr<i32>", address), c=("i32", expected), v=("i32", value))


def through(program: Program, address: int, element: str = "f32"):
    """A load through an integer that the kernel takes for an address."""
    text = f"%q = tt.int_to_ptr %a : i64 -> !tt.ptr<{element}>\n%r = tt.load %q : !tt.ptr<{element}>"
    return result(text, program, a=("i64", address))
