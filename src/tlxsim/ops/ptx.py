"""Inline assembly: straight-line PTX on registers, run on whole tensors.

A register is an array of its bits, one for each group of `packed_element` elements; those of 16 and 8 bits share registers
of 32 bits. An instruction reads the bits as its type says. What the tables below do not hold is refused, as are guards,
branches and special registers.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from .arith import maximum, maxnum, minimum, minnum
from .casts import narrowed, toward_zero, truncated
from .dot import tf32
from .math import fma
from .registry import VALUE, pure, refuse
from .steps import HINTS, Function, integer, is_tensor, scalar

_TYPES = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64, "u8": np.uint8,
    "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "b8": np.uint8, "b16": np.uint16, "b32": np.uint32,
    "b64": np.uint64,
}  # fmt: skip
_SUFFIX = re.compile(r"(f64|f32|f16|bf16|e4m3|e5m2|[sub](?:8|16|32|64))(x2|x4)?")
_NUMBER = re.compile(r"0[fF][0-9a-fA-F]{8}|-?(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d*)?)")
Registers = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """`name.modifiers.types target, sources;` — a target or source may be a list in braces."""

    name: str
    modifiers: tuple[str, ...]
    types: tuple[tuple[np.dtype, int], ...]
    operands: tuple[tuple[str, ...], ...]
    text: str


@pure("tt.elementwise_inline_asm", None, attributes=f"constraints packed_element pure {HINTS}")
def _inline(op, m):
    found = re.fullmatch(rf'"((?:[^"\\]|\\.)*)"((?: |, |{VALUE})*)', op.text.strip(), re.DOTALL)
    if found is None:
        raise refuse(op, "this form of it is not modelled")
    instructions = _parse(_unescaped(found[1]), op)
    program = [_step(one, op) for one in instructions]
    inputs, pack = re.findall(VALUE, found[2]), integer(op, "packed_element")
    kinds, made = op.types, op.result_types
    _check_constraints(op, pack)
    _check_sources(instructions, op, pack)

    def step(env: dict, task: Any) -> None:
        registers: Registers = {}
        arrays = np.broadcast_arrays(*[np.asarray(env[name], kind.dtype) for name, kind in zip(inputs, kinds)])
        number = sum(_count(kind.dtype, pack) for kind in made)
        for array in arrays:
            for register in _packed(array, pack):
                registers[f"${number}"] = register
                number += 1
        for run in program:
            run(registers)
        number = 0
        for name, kind in zip(op.results, made):
            count = _count(kind.dtype, pack)
            columns = [registers[f"${number + n}"] for n in range(count)]
            value = _unpacked(columns, kind.dtype, kind.shape, pack)
            env[name] = value if is_tensor(kind) else scalar(value, kind.dtype)
            number += count

    return step


def _check_constraints(op: Any, pack: int) -> None:
    """Each register of results and operands has its constraint, and none is tied to another."""
    parts = op.attributes["constraints"].strip('"').split(",")
    results = sum(_count(kind.dtype, pack) for kind in op.result_types)
    operands = sum(_count(kind.dtype, pack) for kind in op.types)
    plain = all(re.fullmatch(r"=?&?[hrlfd]", part.strip()) for part in parts)
    if not plain or len(parts) != results + operands or [part.strip()[0] == "=" for part in parts].count(True) != results:
        raise refuse(op, f"the constraints {','.join(parts)} are not modelled for these operands")


def _check_sources(instructions: list[Instruction], op: Any, pack: int) -> None:
    """Every source is an operand, a number, or has been written before; results are written in the end."""
    first, last = (sum(_count(kind.dtype, pack) for kind in kinds) for kinds in (op.result_types, op.types))
    known = {f"${n}" for n in range(first, first + last)}
    for one in instructions:
        targets, *sources = one.operands
        for name in (name for group in sources for name in group):
            if name not in known and not _NUMBER.fullmatch(name):
                raise refuse(op, f"the source {name} of the instruction `{one.text}` is not modelled")
        known.update(targets)
    if not known.issuperset(f"${n}" for n in range(first)):
        raise refuse(op, "assembly that leaves a result unwritten is not modelled")


# -- registers -----------------------------------------------------------------------------------------------------------


def _per_register(dtype: np.dtype, pack: int) -> int:
    return min(max(4 // dtype.itemsize, 1), pack)


def _count(dtype: np.dtype, pack: int) -> int:
    """How many registers `pack` elements take."""
    return pack // _per_register(dtype, pack)


def _packed(array: np.ndarray, pack: int) -> list[np.ndarray]:
    """The registers of an array's elements, each a column of bits."""
    each = _per_register(array.dtype, pack)
    bits = np.ascontiguousarray(array).reshape(-1, pack).view(f"u{array.dtype.itemsize}")
    registers = bits if each == 1 else bits.view(f"u{array.dtype.itemsize * each}")
    return [registers[:, n] for n in range(registers.shape[1])]


def _unpacked(columns: list[np.ndarray], dtype: np.dtype, shape: tuple, pack: int) -> np.ndarray:
    """The opposite of `_packed`."""
    width, count = dtype.itemsize * _per_register(dtype, pack), math.prod(shape) // pack
    rows = np.stack([np.broadcast_to(column, (count,)).astype(f"u{width}") for column in columns], 1)
    return np.ascontiguousarray(rows).view(dtype).reshape(shape)


# -- parsing -------------------------------------------------------------------------------------------------------------


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-9A-Fa-f]{2})", lambda match: chr(int(match[1], 16)), text).replace("\\n", "\n").replace("\\t", " ")


def _parse(text: str, op: Any) -> list[Instruction]:
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    instructions = []
    for line in text.split(";"):
        line = " ".join(line.split())
        if line and not line.startswith(".reg "):
            instructions.append(_instruction(line, op))
    return instructions


def _instruction(line: str, op: Any) -> Instruction:
    head, _, rest = line.partition(" ")
    name, *parts = head.split(".")
    modifiers, types = [], []
    for part in parts:
        match = _SUFFIX.fullmatch(part)
        if match is None:
            modifiers.append(part)
        else:
            types.append((np.dtype(_TYPES[match[1]]), int((match[2] or "x1")[1:])))
    operands = [tuple(item.strip(" {}").split(",")) for item in re.findall(r"\{[^}]*\}|[^,{}]+", rest) if item.strip()]
    operands = [tuple(name.strip() for name in group) for group in operands]
    if not operands or not re.fullmatch(r"[a-z]\w*", name):
        raise refuse(op, f"the instruction `{line}` is not modelled")
    return Instruction(name, tuple(modifiers), tuple(types), tuple(operands), line)


def _step(one: Instruction, op: Any) -> Callable[[Registers], None]:
    for build in (_move, _convert, _compute, _select):
        found = build(one)
        if found is not None:
            return found
    raise refuse(op, f"the instruction `{one.text}` is not modelled")


def _value(registers: Registers, name: str, dtype: np.dtype, lanes: int = 1) -> np.ndarray:
    """A source's elements: `[n]`, of an instruction on several lanes `[n, lanes]`."""
    width = dtype.itemsize * lanes
    if name not in registers:
        if name[:2] in ("0f", "0F"):
            bits = np.array(int(name[2:], 16), np.uint32)
        elif "." in name:
            return np.array(float(name), dtype)
        else:
            bits = np.array(int(name, 0) & ((1 << 8 * width) - 1), f"u{width}")
    else:
        bits = registers[name].astype(f"u{width}", copy=False)
    return bits.view(dtype) if lanes == 1 else np.ascontiguousarray(bits)[..., None].view(dtype)


def _bits(value: np.ndarray, lanes: int = 1) -> np.ndarray:
    """Elements as a register."""
    width = value.dtype.itemsize
    if lanes == 1:
        return value if value.dtype.kind == "b" else value.view(f"u{width}")
    return np.ascontiguousarray(value).view(f"u{width * lanes}")[..., 0]


# -- instructions --------------------------------------------------------------------------------------------------------


def _move(one: Instruction) -> Callable[[Registers], None] | None:
    """`mov.b64 d, {a, b}`, `mov.b64 {a, b}, s` and plain ones."""
    if one.name != "mov" or one.modifiers or len(one.types) != 1 or len(one.operands) != 2:
        return None
    (dtype, lanes), (targets, sources) = one.types[0], one.operands
    if lanes != 1 or min(len(targets), len(sources)) != 1:
        return None
    width = dtype.itemsize

    def run(registers: Registers) -> None:
        if len(targets) > 1:
            part = np.dtype(f"u{width // len(targets)}")
            columns = np.ascontiguousarray(registers[sources[0]].astype(f"u{width}"))[:, None].view(part)
            for n, target in enumerate(targets):
                registers[target] = columns[:, n]
        elif len(sources) > 1:
            part = np.dtype(f"u{width // len(sources)}")
            columns = [_value(registers, name, part) for name in sources]
            registers[targets[0]] = _bits(np.stack(np.broadcast_arrays(*columns), -1), len(sources))
        else:
            registers[targets[0]] = _bits(_value(registers, sources[0], dtype))

    return run


def _convert(one: Instruction) -> Callable[[Registers], None] | None:
    """`cvt`: of pairs the first source is the upper half."""
    if one.name != "cvt":
        return None
    if one.modifiers == ("rna", "tf32"):
        return _round_tf32(one)
    if len(one.types) != 2 or set(one.modifiers) - {"rn", "rz", "rzi", "satfinite"}:
        return None
    (made, lanes), (given, each) = one.types
    (target,), *sources = one.operands
    floats = [dtype.kind not in "iu" for dtype in (made, given)]
    to_zero = "rz" in one.modifiers

    def converted(x: np.ndarray) -> np.ndarray:
        if floats == [True, True]:
            return toward_zero(x, made) if to_zero else narrowed(x, made)
        if floats == [False, True]:
            return truncated(x.astype(np.float32) if x.dtype.itemsize < 4 else x, made)
        return narrowed(x.astype(np.float64), made) if floats[0] else x.astype(made)

    if floats == [False, True] and "rzi" not in one.modifiers:
        return None

    def run(registers: Registers) -> None:
        values = [_value(registers, name, given, each) for (name,) in reversed(sources)]
        x = values[0] if lanes == 1 or each > 1 else np.stack(np.broadcast_arrays(*values), -1)
        registers[target] = _bits(converted(x), lanes)

    return run if len(sources) * each == lanes else None


def _round_tf32(one: Instruction) -> Callable[[Registers], None]:
    (target,), (source,) = one.operands

    def run(registers: Registers) -> None:
        registers[target] = _bits(np.asarray(tf32(_value(registers, source, np.dtype(np.float32)))))

    return run


def _lop3(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Bitwise, by the truth table of three inputs."""
    found = np.zeros_like(a & b & c)
    for row in range(8):
        if int(table) >> row & 1:
            found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return found


def _prmt(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """Each byte of the result is one of the eight of a and b, or its sign."""
    pool = [(x >> np.uint32(8 * n)) & np.uint32(0xFF) for x in (a, b) for n in range(4)]
    found = np.zeros_like(a | b)
    for n in range(4):
        nibble = int(selector) >> 4 * n & 15
        byte = pool[nibble & 7]
        byte = (byte >> np.uint32(7)) * np.uint32(0xFF) if nibble & 8 else byte
        found |= byte << np.uint32(8 * n)
    return found


_ANY: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "neg": np.negative, "abs": np.abs, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "not": np.bitwise_not, "shl": np.left_shift, "shr": np.right_shift,
    "lop3": _lop3, "prmt": _prmt,
}  # fmt: skip
_OF_FLOATS: dict[str, Function] = {
    "mul": np.multiply, "fma": fma, "div": np.divide, "min": minnum, "max": maxnum, "min.NaN": minimum, "max.NaN": maximum,
    "ex2": np.exp2, "lg2": np.log2, "rcp": np.reciprocal, "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh,
}  # fmt: skip
_OF_INTEGERS: dict[str, Function] = {
    "mul.lo": np.multiply, "mad.lo": lambda a, b, c: a * b + c, "min": np.minimum, "max": np.maximum,
    "popc": np.bitwise_count,
}  # fmt: skip
_ROUNDINGS = {"rn", "approx", "full", "ftz"}  # approximations are numpy's values, denormals are kept


def _compute(one: Instruction) -> Callable[[Registers], None] | None:
    """Elementwise instructions of one type."""
    if len(one.types) != 1 or any(len(group) != 1 for group in one.operands):
        return None
    (dtype, lanes), (target, *sources) = one.types[0], [group[0] for group in one.operands]
    floats = dtype.kind not in "iu"
    rest = [part for part in one.modifiers if not (floats and part in _ROUNDINGS)]
    name = ".".join([one.name, *rest])
    function = (_OF_FLOATS if floats else _OF_INTEGERS).get(name) or _ANY.get(name)
    if function is None or (floats and name in ("and", "or", "xor", "not", "shl", "shr", "lop3", "prmt")):
        return None
    widened = floats and dtype.itemsize < 4 and name not in ("neg", "abs")

    def run(registers: Registers) -> None:
        values = [_value(registers, name, dtype, lanes) for name in sources]
        if widened:
            values = [value.astype(np.float32) for value in values]
        registers[target] = _bits(np.asarray(function(*values)).astype(dtype), lanes)

    return run


_COMPARE = dict(eq=np.equal, ne=np.not_equal, lt=np.less, le=np.less_equal, gt=np.greater, ge=np.greater_equal)


def _select(one: Instruction) -> Callable[[Registers], None] | None:
    """`setp` to a predicate, and `selp` by one."""
    if len(one.types) != 1 or one.types[0][1] != 1 or any(len(group) != 1 for group in one.operands):
        return None
    dtype, names = one.types[0][0], [group[0] for group in one.operands]
    compare = _COMPARE.get(one.modifiers[0]) if len(one.modifiers) == 1 else None
    if one.name == "setp" and compare is not None and len(names) == 3:
        target, a, b = names

        def run(registers: Registers) -> None:
            registers[target] = compare(_value(registers, a, dtype), _value(registers, b, dtype))

        return run
    if one.name == "selp" and not one.modifiers and len(names) == 4:
        target, a, b, predicate = names

        def run(registers: Registers) -> None:
            chosen = np.where(registers[predicate], _value(registers, a, dtype), _value(registers, b, dtype))
            registers[target] = _bits(chosen.astype(dtype))

        return run
    return None
