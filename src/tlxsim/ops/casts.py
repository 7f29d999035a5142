"""Conversions between types, as the GPU's `cvt` makes them.

Float to integer rounds to zero and saturates (i8 by way of 16 bits, as the compiler does it); NaN becomes 0, or with 64 bits
on either side the integer whose top bit alone is set. Float to a smaller float rounds once, to nearest even or to zero as
the operation says, and fp8 saturates to its largest finite number.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .registry import pure, refuse
from .steps import HINTS, Function, apply, bits, is_tensor, scalar, unsigned, wrapped

BF16 = np.dtype(ml_dtypes.bfloat16)
_SATURATING = {np.dtype(ml_dtypes.float8_e4m3fn): np.float32(448), np.dtype(ml_dtypes.float8_e5m2): np.float32(57344)}
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)


# -- integer to integer --------------------------------------------------------------------------------------------------


@pure("arith.extsi arith.extui arith.trunci arith.index_cast arith.index_castui", "%a( overflow<@flag(, @other)?>)?"
      "( nneg)?", attributes=HINTS)  # fmt: skip
def _integer(op, m):
    (source,), (target,) = op.types, op.result_types
    old, new = source.dtype, target.dtype
    zero_extends = op.name in ("arith.extui", "arith.index_castui")
    if is_tensor(source):
        return apply(op, op.operands, _arrays_of_integers(old, new, zero_extends))
    wrap, mask = wrapped(new), (1 << bits(old)) - 1
    if old.kind == "b":
        return apply(op, op.operands, int if zero_extends else lambda x: -int(x))
    return apply(op, op.operands, (lambda x: wrap(x & mask)) if zero_extends else wrap)


def _arrays_of_integers(old: np.dtype, new: np.dtype, zero_extends: bool) -> Function:
    if new.kind == "b":
        return lambda x: x & 1 != 0
    if old.kind == "b":
        return (lambda x: x.astype(new)) if zero_extends else lambda x: -x.astype(new)
    if zero_extends:
        wide = unsigned(old)
        return lambda x: x.view(wide).astype(new)
    return lambda x: x.astype(new)


# -- integer to float and back -------------------------------------------------------------------------------------------


@pure("arith.sitofp arith.uitofp", "%a( nneg)?", attributes=HINTS)
def _to_float(op, m):
    (source,), (target,) = op.types, op.result_types
    old, new, signed = source.dtype, target.dtype, op.name == "arith.sitofp"

    def convert(x: np.ndarray) -> np.ndarray:
        if old.kind == "b":
            x = -x.astype(np.int8) if signed else x.astype(np.uint8)
        elif not signed:
            x = x.view(unsigned(old))
        return narrowed(_exact_enough(x), new) if new.itemsize < 4 else x.astype(new)

    return apply(op, op.operands, _for(source, convert, old, new))


def _exact_enough(x: np.ndarray) -> np.ndarray:
    """Integers in fp64; of those with more than 53 bits the lowest kept bit says whether others are set below it."""
    if x.itemsize < 8:
        return x.astype(_F64)
    limit = 1 << 52
    large = (x >= limit) if x.dtype.kind == "u" else (x >= limit) | (x < -limit)
    if not large.any():
        return x.astype(_F64)
    kept = (x >> 11) | ((x & 2047) != 0)
    return np.where(large, kept.astype(_F64) * 2048, x.astype(_F64))


def _for(source: Any, convert: Function, old: np.dtype, new: np.dtype) -> Function:
    """A conversion of arrays, made one of scalars where the op's operand is one."""
    return convert if is_tensor(source) else lambda x: scalar(convert(np.asarray(x, old)), new)


@pure("arith.fptosi arith.fptoui", "%a", attributes=HINTS)
def _to_integer(op, m):
    (source,), (target,) = op.types, op.result_types
    old, new = source.dtype, target.dtype
    if new.kind == "b":
        raise refuse(op, "it is not modelled for i1")
    wide = np.dtype(f"i{max(new.itemsize, 2)}")
    if op.name == "arith.fptoui":
        wide = unsigned(wide)

    def convert(x: np.ndarray) -> np.ndarray:
        return truncated(x if old == _F64 else x.astype(_F32), wide).astype(new)

    return apply(op, op.operands, _for(source, convert, old, new))


def truncated(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floats to integers, rounded to zero, saturated."""
    signed, width = dtype.kind == "i", 8 * dtype.itemsize
    top = x.dtype.type(2.0 ** (width - signed))  # the first that is too large
    inside = ((x >= -top) if signed else (x > -1)) & (x < top)
    if inside.all():
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    found = np.where(inside, x, 0).astype(dtype)
    found = np.where(x >= top, np.array(limits.max, dtype), found)
    found = np.where(x <= (-top if signed else -1), np.array(limits.min, dtype), found)
    of_nan = 0 if width < 64 and x.dtype != _F64 else 1 << (width - 1)
    return np.where(np.isnan(x), np.array(of_nan, np.uint64).astype(dtype), found)


# -- float to float ------------------------------------------------------------------------------------------------------


@pure("arith.extf arith.truncf", "%a( fastmath<@flag>)?", attributes=HINTS)
def _resize(op, m):
    return _converting(op, "rtne")


@pure("tt.fp_to_fp", "%a(, rounding = @rounding)?", attributes=HINTS)
def _fp_to_fp(op, m):
    return _converting(op, m["rounding"] or "rtne")


def _converting(op: Any, rounding: str) -> Any:
    (source,), (target,) = op.types, op.result_types
    old, new = source.dtype, target.dtype
    if rounding not in ("rtne", "rtz"):
        raise refuse(op, f"the rounding {rounding} is not modelled")
    convert = toward_zero if rounding == "rtz" else narrowed
    return apply(op, op.operands, _for(source, lambda x: convert(x, new), old, new))


def narrowed(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """To another float type, rounded to nearest even once; to fp8 saturated."""
    if x.dtype == _F64 and dtype.itemsize <= 2 and dtype != np.float16:
        x = _odd(x)
    limit = _SATURATING.get(dtype)
    if limit is not None and x.dtype.itemsize > 1:
        x = np.minimum(np.maximum(x.astype(_F32, copy=False), -limit), limit)
    return x.astype(dtype)


def _odd(x: np.ndarray) -> np.ndarray:
    """fp64 in fp32, rounded to odd where it is not exact, after which another rounding gives what one alone would give."""
    found = x.astype(_F32)
    back = found.astype(_F64)
    exact = (back == x) | np.isnan(x)
    if exact.all():
        return found
    pattern = found.view(np.uint32)
    pattern = pattern - (np.abs(back) > np.abs(x))  # to zero
    return np.where(exact, found, (pattern | np.uint32(1)).view(_F32))


def toward_zero(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """To a smaller float type, rounded to zero."""
    found = narrowed(x, dtype)
    larger = np.abs(found.astype(x.dtype)) > np.abs(x)
    return (found.view(f"u{dtype.itemsize}") - larger.astype(f"u{dtype.itemsize}")).view(dtype)


# -- bits ----------------------------------------------------------------------------------------------------------------


@pure("arith.bitcast tt.bitcast", "%a", attributes=HINTS)
def _bitcast(op, m):
    (source,), (target,) = op.types, op.result_types
    old, new = source.dtype, target.dtype
    if old == new:
        return apply(op, op.operands, lambda x: x)
    if old.itemsize != new.itemsize:
        raise refuse(op, f"a bitcast of {old} to {new} is not modelled")
    return apply(op, op.operands, _for(source, lambda x: x.view(new), old, new))
