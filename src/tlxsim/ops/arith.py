"""Arithmetic of integers and floats, comparisons, selection, constants.

Integers wrap around in two's complement; shifts by the width or more, and division by zero (all ones, as for the remainder),
give what the GPU's instructions give. Floats of 16 bits are computed in fp32 and rounded, which is exact for one operation.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir import Type
from .registry import pure, refuse
from .steps import HINTS, Function, apply, bits, is_tensor, scalar, unsigned, wrapped

FAST = "( fastmath<@flag>)?"  # what it allows the compiler it need not do

# -- integers ------------------------------------------------------------------------------------------------------------

_RING = {"arith.addi": (operator.add, operator.xor), "arith.subi": (operator.sub, operator.xor)}
_RING["arith.muli"] = (operator.mul, operator.and_)


@pure("arith.addi arith.subi arith.muli", "%a, %b( overflow<@flag(, @other)?>)?", attributes=HINTS)
def _ring(op, m):
    number, bit = _RING[op.name]
    kind = op.types[0]
    if kind.dtype.kind == "b":
        return apply(op, op.operands, bit)
    return apply(op, op.operands, number if is_tensor(kind) else _wrapping(number, kind.dtype))


def _wrapping(function: Function, dtype: np.dtype) -> Function:
    wrap = wrapped(dtype)
    return lambda x, y: wrap(function(x, y))


_BITWISE = {"arith.andi": operator.and_, "arith.ori": operator.or_, "arith.xori": operator.xor}


@pure("arith.andi arith.ori arith.xori", "%a, %b( disjoint)?", attributes=HINTS)
def _bitwise(op, m):
    return apply(op, op.operands, _BITWISE[op.name])


def _divided(x: int, y: int) -> int:
    """Rounded to zero; by zero all ones."""
    if y == 0:
        return -1
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def _remainder(x: int, y: int) -> int:
    return x - _divided(x, y) * y if y else -1


def _arrays_divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = a // b
    if a.dtype.kind == "i":
        quotient += (quotient * b != a) & ((a ^ b) < 0)  # numpy rounds down
    return _all_ones_by_zero(quotient, b)


def _arrays_remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _all_ones_by_zero(np.fmod(a, b), b)


def _all_ones_by_zero(found: np.ndarray, b: np.ndarray) -> np.ndarray:
    return found if np.all(b) else np.where(b == 0, np.array(-1).astype(found.dtype), found)


def _shifted_left(x: int, n: int, width: int) -> int:
    return x << n if 0 <= n < width else 0


def _shifted_right(x: int, n: int, width: int) -> int:
    return x >> (n if 0 <= n < width else width - 1)


# For each operation: of arrays, of Python integers (x, y, width), and whether both are taken as unsigned.
_SIGNED = {
    "arith.divsi": (_arrays_divided, lambda x, y, width: _divided(x, y)),
    "arith.remsi": (_arrays_remainder, lambda x, y, width: _remainder(x, y)),
    "arith.shli": (np.left_shift, _shifted_left),
    "arith.shrsi": (np.right_shift, _shifted_right),
}
_UNSIGNED = {
    "arith.divui": (_arrays_divided, lambda x, y, width: _divided(x, y)),
    "arith.remui": (_arrays_remainder, lambda x, y, width: _remainder(x, y)),
    "arith.shrui": (np.right_shift, lambda x, y, width: x >> y if y < width else 0),
}


@pure("arith.divsi arith.remsi arith.shli arith.shrsi", "%a, %b( overflow<@flag(, @other)?>)?( exact)?", attributes=HINTS)
def _signed(op, m):
    of_arrays, of_numbers = _SIGNED[op.name]
    kind = _integers(op)
    dtype, width = kind.dtype, bits(kind.dtype)
    if is_tensor(kind):
        return apply(op, op.operands, lambda a, b: of_arrays(np.asarray(a, dtype), np.asarray(b, dtype)))
    return apply(op, op.operands, _wrapping(lambda x, y: of_numbers(x, y, width), dtype))


@pure("arith.divui arith.remui arith.shrui", "%a, %b( exact)?", attributes=HINTS)
def _unsigned(op, m):
    of_arrays, of_numbers = _UNSIGNED[op.name]
    kind = _integers(op)
    width = bits(kind.dtype)
    return apply(op, op.operands, _as_unsigned(kind, of_arrays, lambda x, y: of_numbers(x, y, width)))


def _integers(op: Any) -> Type:
    kind = op.types[0]
    if kind.dtype.kind != "i":
        raise refuse(op, "it is not modelled for i1")
    return kind


def _as_unsigned(kind: Type, of_arrays: Function, of_numbers: Function) -> Function:
    """The function on values held as signed."""
    dtype = kind.dtype
    if is_tensor(kind):
        wide = unsigned(dtype)
        return lambda a, b: of_arrays(np.asarray(a, dtype).view(wide), np.asarray(b, dtype).view(wide)).view(dtype)
    mask, wrap = (1 << bits(dtype)) - 1, wrapped(dtype)
    return lambda x, y: wrap(of_numbers(x & mask, y & mask))


_EXTREMES = {"maxsi": (np.maximum, max), "minsi": (np.minimum, min), "maxui": (np.maximum, max), "minui": (np.minimum, min)}
_OF_BITS = {"maxsi": operator.and_, "minsi": operator.or_, "maxui": operator.or_, "minui": operator.and_}  # true is -1


@pure("arith.maxsi arith.minsi arith.maxui arith.minui", "%a, %b", attributes=HINTS)
def _extreme(op, m):
    name, kind = op.name.removeprefix("arith."), op.types[0]
    of_arrays, of_numbers = _EXTREMES[name]
    if kind.dtype.kind == "b":
        return apply(op, op.operands, _OF_BITS[name])
    if name.endswith("ui"):
        return apply(op, op.operands, _as_unsigned(kind, of_arrays, of_numbers))
    return apply(op, op.operands, of_arrays if is_tensor(kind) else of_numbers)


@pure("tt.mulhiui", "%a, %b", attributes=HINTS)
def _high_product(op, m):
    kind = _integers(op)
    width = bits(kind.dtype)

    def of_arrays(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if width < 64:
            return (a.astype(np.uint64) * b >> np.uint64(width)).astype(a.dtype)
        half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
        middle = (a & low) * (b & low) >> half
        first = (a >> half) * (b & low) + middle
        second = (a & low) * (b >> half) + (first & low)
        return (a >> half) * (b >> half) + (first >> half) + (second >> half)

    return apply(op, op.operands, _as_unsigned(kind, of_arrays, lambda x, y: x * y >> width))


@pure("math.absi", "%a", attributes=HINTS)
def _absolute(op, m):
    kind = _integers(op)
    wrap = wrapped(kind.dtype)
    return apply(op, op.operands, np.abs if is_tensor(kind) else lambda x: wrap(abs(x)))


# -- floats --------------------------------------------------------------------------------------------------------------


def maxnum(a: Any, b: Any) -> Any:
    """The larger; of a number and NaN the number; +0 is larger than -0."""
    found = np.fmax(a, b)
    return found if found.all() else np.where((a == 0) & (b == 0), a + b, found)[()]


def minnum(a: Any, b: Any) -> Any:
    """The smaller; of a number and NaN the number."""
    return -maxnum(-a, -b)


def maximum(a: Any, b: Any) -> Any:
    """The larger; NaN if one of them is."""
    found = np.maximum(a, b)
    return found if found.all() else np.where((a == 0) & (b == 0), a + b, found)[()]


def minimum(a: Any, b: Any) -> Any:
    """The smaller; NaN if one of them is."""
    return -maximum(-a, -b)


_FLOATS = {
    "arith.addf": operator.add, "arith.subf": operator.sub, "arith.mulf": operator.mul, "arith.divf": operator.truediv,
    "arith.maxnumf": maxnum, "arith.minnumf": minnum, "arith.maximumf": maximum,
    "arith.minimumf": minimum, "tt.precise_divf": operator.truediv,
}  # fmt: skip


@pure("arith.addf arith.subf arith.mulf arith.divf arith.maxnumf arith.minnumf arith.maximumf arith.minimumf "
      "tt.precise_divf", f"%a, %b{FAST}", attributes=HINTS)  # fmt: skip
def _floats(op, m):
    return apply(op, op.operands, _FLOATS[op.name])


@pure("arith.negf", f"%a{FAST}", attributes=HINTS)
def _negative(op, m):
    return apply(op, op.operands, operator.neg)


# -- comparisons ---------------------------------------------------------------------------------------------------------

_COMPARE = dict(eq=operator.eq, ne=operator.ne, lt=operator.lt, le=operator.le, gt=operator.gt, ge=operator.ge)
_OPPOSITE = dict(eq="ne", ne="eq", lt="ge", le="gt", gt="le", ge="lt")


@pure("arith.cmpi", "@predicate, %a, %b", attributes=HINTS)
def _compare_integers(op, m):
    predicate, kind = m["predicate"], op.types[0]
    if predicate in ("eq", "ne"):
        return apply(op, op.operands, _COMPARE[predicate])
    if predicate[0] not in "su" or predicate[1:] not in _COMPARE:
        raise refuse(op, f"the predicate {predicate} is not modelled")
    compare = _COMPARE[predicate[1:]]
    if kind.dtype.kind == "b":  # true is -1 where it is signed
        return apply(op, op.operands, (lambda a, b: compare(b, a)) if predicate[0] == "s" else compare)
    if predicate[0] == "s":
        return apply(op, op.operands, compare)
    if is_tensor(kind):
        dtype, wide = kind.dtype, unsigned(kind.dtype)
        view = lambda x: np.asarray(x, dtype).view(wide)  # noqa: E731
        return apply(op, op.operands, lambda a, b: compare(view(a), view(b)))
    mask = (1 << bits(kind.dtype)) - 1
    return apply(op, op.operands, lambda x, y: compare(x & mask, y & mask))


@pure("arith.cmpf", f"@predicate, %a, %b{FAST}", attributes=HINTS)
def _compare_floats(op, m):
    function = _float_predicate(m["predicate"])
    if function is None:
        raise refuse(op, f"the predicate {m['predicate']} is not modelled")
    if is_tensor(op.types[0]):
        return apply(op, op.operands, function)
    return apply(op, op.operands, lambda a, b: bool(function(a, b)))


def _float_predicate(name: str) -> Function | None:
    """Of a predicate like "olt" or "une": ordered ones are false for NaN, unordered ones true."""
    order, relation = name[0], name[1:]
    if name in ("ord", "uno"):
        return (lambda a, b: (a == a) & (b == b)) if name == "ord" else lambda a, b: (a != a) | (b != b)
    if name == "one":
        return lambda a, b: (a < b) | (a > b)
    if name == "ueq":
        return lambda a, b: np.logical_not((a < b) | (a > b))
    if relation not in _COMPARE or order not in "ou":
        return None
    if (order == "o") == (relation != "ne"):  # Python's own comparisons are ordered, but for !=
        return _COMPARE[relation]
    opposite = _COMPARE[_OPPOSITE[relation]]
    return lambda a, b: np.logical_not(opposite(a, b))


@pure("arith.select", "%condition, %a, %b", attributes=HINTS)
def _select(op, m):
    (result,), condition, a, b = op.results, m["condition"], m["a"], m["b"]
    if is_tensor(op.types[0]):  # the condition may be a scalar all the same
        return apply(op, op.operands, np.where)

    def step(env: dict, task: Any) -> None:
        env[result] = env[a] if env[condition] else env[b]

    return step


# -- constants -----------------------------------------------------------------------------------------------------------


@pure("arith.constant", None, attributes=HINTS)
def _constant(op, m):
    kind = op.result_types[0]
    if kind.dtype is None:
        raise refuse(op, "a constant of this type is not modelled")
    parse = _literal(op, kind.dtype)
    value = _dense(op, kind, parse) if is_tensor(kind) else scalar(parse(op.text.strip()), kind.dtype)
    (result,) = op.results

    def step(env: dict, task: Any) -> None:
        env[result] = value

    return step


def _literal(op: Any, dtype: np.dtype) -> Callable[[str], Any]:
    """The function from a literal's text to its value."""

    def parse(text: str) -> Any:
        if text in ("true", "false"):
            return text == "true"
        if dtype.kind in "ib":
            return int(text, 0)
        if text.startswith("0x"):
            return np.array(int(text, 16), f"u{dtype.itemsize}").view(dtype)
        return float(text)

    def checked(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, OverflowError):
            raise refuse(op, f"the constant {text[:60]} is not understood") from None

    return checked


def _dense(op: Any, kind: Type, parse: Callable[[str], Any]) -> np.ndarray:
    """`dense<1.0>` or `dense<[[1, 2], [3, 4]]>`; a scalar where a combine region has been made one for arrays."""
    text = op.text.strip()
    inner = re.fullmatch(r"dense<(.*)>", text)
    if inner is None and not kind.shape:
        return np.array(parse(text), kind.dtype)
    if inner is None or inner[1].startswith('"'):
        raise refuse(op, f"the constant {text[:60]} is not understood")
    if not inner[1].startswith("["):
        return np.full(kind.shape, parse(inner[1]), kind.dtype)
    values = [parse(item) for item in re.findall(r"[^\s,\[\]]+", inner[1])]
    return np.array(values, kind.dtype).reshape(kind.shape)
