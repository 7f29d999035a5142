"""Arithmetic of floats to the bit, elementary functions within rounding."""

import math
import operator
from fractions import Fraction

import numpy as np
import pytest
import torch
from odd import FLOATS, TORCH, both_ways, float_pairs, odd_floats, rounded, same
from steps import result, tensor

from tlxsim import Unsupported


def by_torch(function, name: str, *arrays: np.ndarray) -> np.ndarray:
    """What torch makes of them; fp32 stands in for 16 bits where one rounding after it is exact."""
    tensors = [torch.from_numpy(x.astype(np.float64 if name == "f64" else np.float32)) for x in arrays]
    return function(*tensors).to(TORCH[name]).to(torch.float64).numpy().astype(FLOATS[name])


@pytest.mark.parametrize("name", FLOATS)
class TestFloats:
    @pytest.mark.parametrize(
        ("op", "function"),
        [
            ("arith.addf", torch.add), ("arith.subf", torch.sub), ("arith.mulf", torch.mul), ("arith.divf", torch.div),
            ("tt.precise_divf", torch.div),
        ],
    )  # fmt: skip
    def test_arithmetic(self, name, op, function):
        a, b = float_pairs(name)
        same(both_ways(f"{op} %a, %b", name, a, b), by_torch(function, name, a, b))

    @pytest.mark.parametrize("op", ["arith.maxnumf", "arith.minnumf", "arith.maximumf", "arith.minimumf"])
    def test_extremes(self, name, op):
        a, b = float_pairs(name)

        def of(x, y):
            if math.isnan(x) or math.isnan(y):
                number = y if math.isnan(x) else x
                return number if "num" in op else math.nan
            chosen = max if "max" in op else min
            return chosen((x, math.copysign(1, x)), (y, math.copysign(1, y)))[0]  # -0 is less than +0

        expected = np.array([of(float(x), float(y)) for x, y in zip(a, b)]).astype(FLOATS[name])
        same(both_ways(f"{op} %a, %b", name, a, b), expected)

    @pytest.mark.parametrize(
        "predicate", ["oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno"]
    )
    def test_compare(self, name, predicate):
        a, b = float_pairs(name)

        def of(x, y):
            unordered = math.isnan(x) or math.isnan(y)
            if predicate in ("ord", "uno"):
                return unordered == (predicate == "uno")
            return predicate[0] == "u" if unordered else getattr(operator, predicate[1:])(x, y)

        expected = [of(float(x), float(y)) for x, y in zip(a, b)]
        same(both_ways(f"arith.cmpf {predicate}, %a, %b", name, a, b, made="i1"), np.array(expected))

    def test_clamp(self, name):
        x = odd_floats(name)
        low, high = np.full_like(x, -1), np.full_like(x, 2)
        for nan, of_nan in (("none", -1.0), ("all", math.nan)):
            expected = [of_nan if math.isnan(v) else min(max(v, -1.0), 2.0) for v in x.astype(float)]
            found = both_ways(f"tt.clampf %a, %b, %c, propagateNan = {nan}", name, x, low, high)
            same(found, np.array(expected).astype(FLOATS[name]))

    def test_sign(self, name):
        x = odd_floats(name)
        for op, pattern in (("arith.negf", operator.neg), ("math.absf", abs)):
            expected = np.array([pattern(v) for v in x.astype(float)]).astype(FLOATS[name])
            same(both_ways(f"{op} %a", name, x), expected)


@pytest.mark.parametrize("name", ["f16", "bf16", "f32"])
def test_remainder(name):
    """a - trunc(a / b) b with one rounding, in fp32 for 16 bits, and a if b is infinite."""
    a, b = float_pairs(name)

    def of(x, y):
        if math.isinf(y) and not math.isnan(x):
            return x
        whole = float(np.trunc(np.float32(x) / np.float32(y)))
        if not math.isfinite(whole):
            return math.nan if math.isnan(whole) else -whole * y + x
        exact = Fraction(x) - Fraction(whole) * Fraction(y)
        return float(exact) if exact else -whole * y + x

    with np.errstate(all="ignore"):
        expected = np.array([of(float(x), float(y)) for x, y in zip(a, b)]).astype(np.float32).astype(FLOATS[name])
    same(both_ways("arith.remf %a, %b", name, a, b), expected)


def test_fused_multiply_add():
    """Rounded once: fp64 with one rounding more would give another number."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(20_000).astype(np.float32) for _ in range(3))
    c[:10_000] = -(a * b)[:10_000]  # what is left is the product's rounding error
    c[10_000:11_000] *= np.float32(2.0**-30)
    a[-1], b[-1], c[-1] = 1 + 2**-12, 1 + 2**-12, 2.0**-60  # half an ulp and a bit, which fp64 alone would lose
    found = both_ways("math.fma %a, %b, %c", "f32", a, b, c)
    for x, y, z, made in zip(a[9_900:], b[9_900:], c[9_900:], found[9_900:]):
        same(made, rounded(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), "f32"))
    assert found[-1] != (np.float64(a[-1]) * b[-1] + c[-1]).astype(np.float32)


ELEMENTARY = {
    "math.exp": torch.exp, "math.exp2": torch.exp2, "math.log": torch.log, "math.log2": torch.log2, "math.sqrt": torch.sqrt,
    "tt.precise_sqrt": torch.sqrt, "math.rsqrt": torch.rsqrt, "math.sin": torch.sin, "math.cos": torch.cos,
    "math.tanh": torch.tanh, "math.erf": torch.erf, "math.floor": torch.floor, "math.ceil": torch.ceil,
    "math.trunc": torch.trunc, "math.roundeven": torch.round,
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTARY)
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_elementary(name, kind):
    x = np.concatenate([odd_floats(kind), np.linspace(-9, 9, 301).astype(FLOATS[kind])])
    found = both_ways(f"{name} %a", kind, x)
    expected = ELEMENTARY[name](torch.from_numpy(x.astype(np.float64))).numpy()
    exact = name in ("math.floor", "math.ceil", "math.trunc", "math.roundeven", "math.sqrt", "tt.precise_sqrt")
    if kind == "f32" and exact:
        same(found, expected.astype(np.float32))
        return
    keep = np.isfinite(expected) & (np.abs(expected) < 1e37) & (np.abs(x) < 1e4)
    tolerance = 2e-6 if kind == "f32" else 1e-14
    np.testing.assert_allclose(found[keep], expected[keep], rtol=tolerance, atol=tolerance)
    odd = ~np.isfinite(expected)
    np.testing.assert_array_equal(found[odd], expected[odd].astype(FLOATS[kind]))


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_elementary_of_16_bits(kind):
    """In fp32, then rounded."""
    x = np.linspace(0.1, 9, 64).astype(FLOATS[kind])
    for name in ("math.exp2", "math.sqrt", "math.sin", "math.floor", "math.erf"):
        wide = both_ways(f"{name} %a", "f32", x.astype(np.float32))
        same(both_ways(f"{name} %a", kind, x), wide.astype(FLOATS[kind]))


LIBRARY = {
    "__nv_tanhf": torch.tanh, "__nv_expf": torch.exp, "__nv_log1pf": torch.log1p, "__nv_fabsf": torch.abs,
    "__nv_rintf": torch.round, "__nv_erfcf": torch.special.erfc, "__nv_lgammaf": torch.special.gammaln,
    "__nv_fast_expf": torch.exp, "__nv_exp10f": lambda x: 10**x,
}  # fmt: skip


def library(symbol: str, element: str, made: str, *arrays: np.ndarray):
    names = "abc"[: len(arrays)]
    attributes = f'{{libname = "", libpath = "", pure = true, symbol = "{symbol}"}}'
    kinds = ", ".join(f"tensor<{len(x)}x{element}>" for x in arrays)
    line = f"%r = tt.extern_elementwise {', '.join('%' + n for n in names)} {attributes} : ({kinds})"
    line += f" -> tensor<{len(arrays[0])}x{made}>"
    return result(line, **{n: tensor(x, element) for n, x in zip(names, arrays)})


def test_library():
    x = np.linspace(0.1, 5, 64).astype(np.float32)
    for symbol, function in LIBRARY.items():
        expected = function(torch.from_numpy(x.astype(np.float64))).numpy()
        np.testing.assert_allclose(library(symbol, "f32", "f32", x), expected, rtol=3e-6, atol=1e-6)
    np.testing.assert_allclose(library("__nv_powf", "f32", "f32", x, x), x.astype(float) ** x, rtol=1e-5)
    odd = odd_floats("f32")
    same(library("__nv_isnanf", "f32", "i32", odd), np.isnan(odd).astype(np.int32))
    same(
        library("__nv_roundf", "f32", "f32", np.array([0.5, 1.5, -2.5, 2.4], np.float32)),
        np.array([1, 2, -3, 2], np.float32),
    )
    numbers = np.array([0, 1, -1, 12, 1 << 30, -(1 << 31)], np.int32)
    same(library("__nv_clz", "i32", "i32", numbers), np.array([32, 31, 0, 28, 1, 0], np.int32))
    same(library("__nv_popc", "i32", "i32", numbers), np.array([0, 1, 32, 2, 1, 1], np.int32))
    same(library("__nv_ffs", "i32", "i32", numbers), np.array([0, 1, 1, 3, 31, 32], np.int32))
    with pytest.raises(Unsupported, match="__nv_j0f"):
        library("__nv_j0f", "f32", "f32", np.ones(2, np.float32))
