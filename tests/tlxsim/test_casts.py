"""Conversions between types, to the bit."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from odd import BF16, E4M3, E5M2, FLOATS, INTEGERS, TORCH, both_ways, odd_floats, rounded, same, signed
from steps import result, tensor

from tlxsim import Unsupported


@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("made", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("op", ["arith.sitofp", "arith.uitofp"])
def test_integer_to_float(element, made, op):
    """Rounded once, also where the integer has more bits than fp32."""
    rng, width = np.random.default_rng(1), int(element[1:])
    shift = rng.integers(0, width - 1, 400)
    values = (rng.integers(-(1 << (width - 1)), 1 << (width - 1), 400) >> shift).astype(INTEGERS[element])
    ties = [1 << (width - 2) | 1 << max(width - 10, 0) | 1, (1 << (width - 1)) - 1, -(1 << (width - 1)), 0, -1]
    values[: len(ties)] = ties
    if made == "f16":
        values = values[np.abs(values.astype(np.float64)) < 60_000]
        values = values[values.astype(np.float64) >= 0] if op == "arith.uitofp" else values
    mask = (1 << width) - 1 if op == "arith.uitofp" else -1
    expected = np.array([rounded(Fraction(int(x) & mask), made) for x in values], FLOATS[made])
    same(both_ways(f"{op} %a", element, values, made=made), expected)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("made", INTEGERS)
@pytest.mark.parametrize("op", ["arith.fptosi", "arith.fptoui"])
def test_float_to_integer(name, made, op):
    """Rounded to zero and saturated; to i8 by way of 16 bits."""
    more = np.array(
        [0.5, -0.5, 1.5, -1.99, 127.9, 128, 255.5, 256, 300, -129, 32767.5, 40000, 65536, 2.0**31, 2.0**63, 2.0**64]
    )
    with np.errstate(over="ignore"):
        values = np.concatenate([odd_floats(name), more.astype(FLOATS[name])])
    width, unsigned = int(made[1:]), op == "arith.fptoui"
    wide = max(width, 16)
    low, high = (0, (1 << wide) - 1) if unsigned else (-(1 << (wide - 1)), (1 << (wide - 1)) - 1)

    def of(x):
        if math.isnan(x):
            return 1 << (wide - 1) if wide == 64 or name == "f64" else 0
        return min(max(math.trunc(x), low), high) if math.isfinite(x) else (low if x < 0 else high)

    expected = [signed(of(float(x)), width) for x in values]
    same(both_ways(f"{op} %a", name, values, made=made), np.array(expected, INTEGERS[made]))


@pytest.mark.parametrize(
    ("name", "made"), [("f32", "bf16"), ("f32", "f16"), ("f64", "f32"), ("f64", "f16"), ("f32", "f64"), ("bf16", "f32")]
)
def test_resize_float(name, made):
    rng = np.random.default_rng(2)
    values = np.concatenate(
        [odd_floats(name), (rng.standard_normal(3000) * 2.0 ** rng.integers(-20, 14, 3000)).astype(FLOATS[name])]
    )
    op = "arith.truncf" if FLOATS[made].itemsize < FLOATS[name].itemsize else "arith.extf"
    wide = np.float64 if name == "f64" else np.float32
    given = torch.from_numpy(values.astype(wide))
    expected = given.to(TORCH[made]).to(torch.float64).numpy().astype(FLOATS[made])
    same(both_ways(f"{op} %a", name, values, made=made), expected)


def test_double_to_bf16_rounds_once():
    """Half way between two bf16 and a little more: rounding to fp32 first would make it a tie."""
    above = 1 + 2**-8 + 2**-40
    found = both_ways("arith.truncf %a", "f64", np.array([above, -above, 1 + 2**-8]), made="bf16")
    same(found, np.array([1 + 2**-7, -1 - 2**-7, 1], np.float32).astype(BF16))


@pytest.mark.parametrize("made", ["f16", "bf16"])
def test_rounding_to_zero(made):
    values = np.concatenate([odd_floats("f32"), np.random.default_rng(3).standard_normal(500).astype(np.float32)])
    found = result(
        f"%r = tt.fp_to_fp %a, rounding = rtz : tensor<{len(values)}xf32> -> tensor<{len(values)}x{made}>",
        a=tensor(values, "f32"),
    )
    if made == "bf16":
        cut = (values.view(np.uint32) >> 16).astype(np.uint16).view(BF16)
        same(found, np.where(np.isnan(values), np.array(math.nan, BF16), cut))
        return
    for x, y in zip(values.astype(float), found.astype(float)):
        if math.isinf(x) or math.isnan(x):
            same(np.float64(y), np.float64(x))
            continue
        assert abs(y) <= abs(x)
        assert math.copysign(1, y) == math.copysign(1, x)
        with np.errstate(over="ignore"):
            after = abs(float(np.nextafter(np.float16(y), np.float16(math.copysign(math.inf, x)))))
        assert after > abs(x) or y == x


@pytest.mark.parametrize(("made", "dtype", "top"), [("f8E4M3FN", E4M3, 448), ("f8E5M2", E5M2, 57344)])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_fp8_saturates(name, made, dtype, top):
    inside = np.linspace(-top, top, 2001).astype(FLOATS[name])
    tiny = np.array([2.0**-9, 2.0**-10, 3 * 2.0**-11, 2.0**-16, 2.0**-17, 3 * 2.0**-18, 0.0, -0.0]).astype(FLOATS[name])
    outside = np.array([top * 1.07, -top * 1.07, 60000, math.inf, -math.inf, math.nan]).astype(FLOATS[name])
    values = np.concatenate([inside, tiny, outside])
    kinds = {"f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2}
    clipped = torch.from_numpy(values.astype(np.float32)).clamp(-top, top)
    expected = clipped.to(kinds[made]).to(torch.float32).numpy().astype(dtype)
    count = len(values)
    line = f"%r = tt.fp_to_fp %a, rounding = rtne : tensor<{count}x{name}> -> tensor<{count}x{made}>"
    found = result(line, a=tensor(values, name))
    same(found, expected)
    assert np.isnan(found[-1].astype(np.float32))
    back = result(f"%r = tt.fp_to_fp %a : tensor<{count}x{made}> -> tensor<{count}xf32>", a=tensor(found, made))
    same(back, expected.astype(np.float32))


def test_bitcast():
    x = np.array([0x7F800000, -1, 1, 0x3F800000], np.int32)
    line = "%r = tt.bitcast %a : tensor<4xi32> -> tensor<4xf32>"
    same(result(line, a=tensor(x, "i32")), x.view(np.float32))
    assert result("%r = tt.bitcast %a : i32 -> f32", a=("i32", 0x3F800000)) == np.float32(1)
    assert result("%r = arith.bitcast %a : bf16 to i16", a=("bf16", BF16.type(-2))) == -0x4000
    addresses = np.array([1 << 40, 8], np.int64)
    kind = ("tensor<2x!tt.ptr<f32>>", addresses)
    same(result("%r = tt.ptr_to_int %a : tensor<2x!tt.ptr<f32>> -> tensor<2xi64>", a=kind), addresses)
    with pytest.raises(Unsupported, match="bitcast"):
        result("%r = tt.bitcast %a : i32 -> f64", a=("i32", 1))


def test_other_roundings_are_refused():
    with pytest.raises(Unsupported, match="rounding rtp"):
        result("%r = tt.fp_to_fp %a, rounding = rtp : f32 -> f16", a=("f32", np.float32(1)))
