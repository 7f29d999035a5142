"""Functions of floats: elementary functions, fused multiply-add, clamping, and the library that Triton calls by symbol.

Elementary functions are numpy's in the operand's precision; the GPU's own approximations differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .arith import FAST, maximum, maxnum, minimum, minnum
from .registry import pure, refuse
from .steps import HINTS, Function, apply, is_tensor, scalar


def torch_function(name: str) -> Function:
    """A function that numpy has not, by torch's."""

    def of_arrays(x: Any) -> Any:
        import torch

        array = np.array(x)
        found = getattr(torch.special, name)(torch.from_numpy(array.reshape(-1))).numpy().reshape(array.shape)
        return found if isinstance(x, np.ndarray) else found[()]

    return of_arrays


def fma(a: Any, b: Any, c: Any) -> Any:
    """a b + c rounded once: in fp64 to odd, then to the operands' type; fp64 itself in extended precision."""
    dtype = np.result_type(a)
    if dtype == np.float64:
        return (np.longdouble(a) * b + c).astype(dtype)
    a, b, c = (np.asarray(x).astype(np.float64) for x in (a, b, c))
    product = a * b  # exact
    total = product + c
    addend = total - product
    error = (product - (total - addend)) + (c - addend)
    pattern = np.asarray(total).view(np.int64)
    even = (error != 0) & np.isfinite(total) & (pattern & 1 == 0)
    toward = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(even, pattern + toward, pattern).view(np.float64).astype(dtype)[()]


def remainder(a: Any, b: Any) -> Any:
    """As the compiler computes it, which is inexact where a / b has more bits than the type."""
    return np.where(np.isinf(b), a, fma(-np.trunc(a / b), b, a))[()]


def _rounded_half_away(x: Any) -> Any:
    whole = np.trunc(x)
    return whole + np.copysign((np.abs(x - whole) >= 0.5).astype(x.dtype), x)


_UNARY: dict[str, Function] = {
    "absf": np.abs, "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc, "round": _rounded_half_away, "roundeven": np.rint,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "erf": torch_function("erf"),
}  # fmt: skip


@pure(" ".join(f"math.{name}" for name in _UNARY) + " tt.precise_sqrt", f"%a{FAST}", attributes=HINTS)
def _unary(op, m):
    return apply(op, op.operands, _keeping(op, _UNARY[op.name.split(".")[1].removeprefix("precise_")]))


def _keeping(op: Any, function: Function) -> Function:
    """The function in the operand's type: 16-bit floats are computed in fp32."""
    dtype = op.types[0].dtype
    if dtype.itemsize > 2 or function is np.abs:
        return function
    return lambda x: function(x.astype(np.float32)).astype(dtype)


@pure("math.fma", f"%a, %b, %c{FAST}", attributes=HINTS)
def _fma(op, m):
    return apply(op, op.operands, fma)


@pure("arith.remf", f"%a, %b{FAST}", attributes=HINTS)
def _remainder(op, m):
    dtype = op.types[0].dtype
    if dtype.itemsize > 2:
        return apply(op, op.operands, remainder)
    return apply(op, op.operands, lambda a, b: remainder(a.astype(np.float32), b.astype(np.float32)).astype(dtype))


@pure("math.atan2 math.powf math.copysign", f"%a, %b{FAST}", attributes=HINTS)
def _binary(op, m):
    function = {"math.atan2": np.arctan2, "math.powf": np.power, "math.copysign": np.copysign}[op.name]
    return apply(op, op.operands, function)


@pure("tt.clampf", "%x, %low, %high, propagateNan = @nan", attributes=HINTS)
def _clamp(op, m):
    if m["nan"] not in ("none", "all"):
        raise refuse(op, f"propagateNan = {m['nan']} is not modelled")
    if m["nan"] == "none":
        return apply(op, op.operands, lambda x, low, high: minnum(maxnum(x, low), high))
    return apply(op, op.operands, lambda x, low, high: minimum(maximum(x, low), high))


# -- libdevice -----------------------------------------------------------------------------------------------------------


def _count_leading_zeros(x: np.ndarray) -> np.ndarray:
    wide = x.view(f"u{x.itemsize}")
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < 8 * x.itemsize:
            wide = wide | (wide >> wide.dtype.type(shift))
    return 8 * x.itemsize - np.bitwise_count(wide).astype(np.int32)


def _first_set(x: np.ndarray) -> np.ndarray:
    """The place of the lowest bit that is set, from 1 on; 0 if none is."""
    return np.where(x == 0, 0, 8 * x.itemsize - _count_leading_zeros(x & -x)).astype(np.int32)


def _flag(function: Function) -> Function:
    return lambda x: np.asarray(function(x)).astype(np.int32)


_OF_FLOATS: dict[str, Function] = {
    **{name: _UNARY[name] for name in _UNARY if name not in ("absf", "roundeven")}, "fabs": np.abs, "exp10": lambda x: 10**x,
    "rint": np.rint, "nearbyint": np.rint, "erfc": torch_function("erfc"), "erfinv": torch_function("erfinv"),
    "lgamma": torch_function("gammaln"), "pow": np.power, "atan2": np.arctan2, "fmod": np.fmod, "hypot": np.hypot,
    "copysign": np.copysign, "fmax": maxnum, "fmin": minnum, "fma": fma, "nextafter": np.nextafter, "ldexp": np.ldexp,
    "fdim": lambda a, b: np.where(a > b, a - b, np.where(np.isnan(a) | np.isnan(b), a + b, 0)).astype(a.dtype),
}  # fmt: skip
_FAST = ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "pow")
_ROUNDED = dict(add=np.add, sub=np.subtract, mul=np.multiply, div=np.divide, sqrt=np.sqrt)
_SYMBOLS: dict[str, Function] = {
    **{f"__nv_{name}": function for name, function in _OF_FLOATS.items()},
    **{f"__nv_{name}f": function for name, function in _OF_FLOATS.items()},
    **{f"__nv_fast_{name}f": _OF_FLOATS[name] for name in _FAST},
    **{f"__nv_{kind}{name}_rn": function for kind in "df" for name, function in _ROUNDED.items()}, "__nv_fmaf_rn": fma,
    "__nv_fast_fdividef": np.divide, "__nv_isnanf": _flag(np.isnan), "__nv_isnand": _flag(np.isnan),
    "__nv_isinff": _flag(np.isinf), "__nv_isinfd": _flag(np.isinf), "__nv_finitef": _flag(np.isfinite),
    "__nv_isfinited": _flag(np.isfinite), "__nv_signbitf": _flag(np.signbit), "__nv_signbitd": _flag(np.signbit),
    "__nv_popc": _flag(lambda x: np.bitwise_count(x.view(np.uint32))), "__nv_clz": _count_leading_zeros,
    "__nv_popcll": _flag(lambda x: np.bitwise_count(x.view(np.uint64))), "__nv_clzll": _count_leading_zeros,
    "__nv_ffs": _first_set, "__nv_ffsll": _first_set, "__nv_abs": np.abs, "__nv_llabs": np.abs, "__nv_min": np.minimum,
    "__nv_max": np.maximum, "__nv_llmin": np.minimum, "__nv_llmax": np.maximum,
    "__nv_float_as_int": lambda x: x.view(np.int32), "__nv_int_as_float": lambda x: x.view(np.float32),
}  # fmt: skip


@pure("tt.extern_elementwise", "%operands*", attributes=f"libname libpath pure symbol {HINTS}")
def _library(op, m):
    symbol = op.attributes["symbol"].strip('"')
    function = _SYMBOLS.get(symbol)
    if function is None:
        raise refuse(op, f"the library function {symbol} is not modelled")
    if is_tensor(op.result_types[0]):
        return apply(op, op.operands, function)
    return apply(op, op.operands, _of_scalars(function, [kind.dtype for kind in op.types], op.result_types[0].dtype))


def _of_scalars(function: Function, types: list[np.dtype], made: np.dtype) -> Callable[..., Any]:
    return lambda *values: scalar(function(*(np.asarray(x, kind) for x, kind in zip(values, types))), made)
