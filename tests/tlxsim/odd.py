"""Odd values of every type, operations on them as tensors and as scalars, and a comparison of bits."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import torch
from steps import result, tensor

BF16, E4M3, E5M2 = (np.dtype(x) for x in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
FLOATS = {"f16": np.dtype(np.float16), "bf16": BF16, "f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
INTEGERS = {f"i{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)}


def signed(x: int, width: int) -> int:
    return (x + (1 << (width - 1))) % (1 << width) - (1 << (width - 1))


def pairs(element: str) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of edge values of an integer type, small shifts among them."""
    width, dtype = int(element[1:]), INTEGERS[element]
    top = 1 << (width - 1)
    edges = sorted({0, 1, 2, 3, 5, 7, width - 1, width, width + 1, top - 1, top // 3, -1, -2, -3, -7, -top, -top + 1})
    edges = [x for x in edges if -top <= x < top]
    return tuple(np.array(x, dtype) for x in zip(*itertools.product(edges, edges)))


def odd_floats(name: str) -> np.ndarray:
    """Signed zeros, denormals, infinities, NaN, neighbours of 1, and a spread of magnitudes."""
    dtype = FLOATS[name]
    info = ml_dtypes.finfo(dtype)
    smallest, top = float(info.smallest_subnormal), float(info.max)
    values = [0.0, smallest, 3 * smallest, float(info.tiny), 1 / 3, 1.0, 1 + float(info.eps), 2.5, 1000.1, top, math.inf]
    return np.array([*values, *(-x for x in values), math.nan]).astype(dtype)


def float_pairs(name: str) -> tuple[np.ndarray, np.ndarray]:
    values = odd_floats(name)
    return tuple(np.stack(list(itertools.product(values, values)), 1).astype(FLOATS[name]))


def same(found, expected) -> None:
    """The same bits; any NaN is as good as another."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected)
        return
    both = np.isnan(found) & np.isnan(expected)
    bits = f"u{found.dtype.itemsize}"
    where = ~both & (found.view(bits) != expected.view(bits))
    assert not where.any(), f"{found[where][:4]} in place of {expected[where][:4]}"


def both_ways(text: str, element: str, *arrays: np.ndarray, made: str | None = None) -> np.ndarray:
    """The op on tensors; the same as on scalars, one by one."""
    count, made = len(arrays[0]), made or element
    names = "abc"[: len(arrays)]
    arrow = " to " if made != element and "cmp" not in text else None
    of_tensors = f"tensor<{count}x{element}>" + (f"{arrow}tensor<{count}x{made}>" if arrow else "")
    found = result(f"%r = {text} : {of_tensors}", **{n: tensor(x, element) for n, x in zip(names, arrays)})
    of_scalars = element + (f"{arrow}{made}" if arrow else "")
    line = f"%r = {text} : {of_scalars}"
    for place in range(0, count, max(1, count // 40)):
        values = [x[place].item() if x.dtype.kind in "ib" else x[place] for x in arrays]
        single = result(line, **{n: (element, x) for n, x in zip(names, values)})
        assert isinstance(single, (bool, int)) == (found.dtype.kind in "ib"), text
        same(np.asarray(single, found.dtype), found[place])
    return found


def rounded(x: Fraction, name: str) -> np.ndarray:
    """Nearest even, from an exact number; no overflow, no denormals."""
    if x == 0:
        return FLOATS[name].type(0)
    bits = {"f32": 24, "f16": 11, "bf16": 8}[name]
    exponent = math.floor(math.log2(abs(x)))
    exponent += (abs(x) >= Fraction(2) ** (exponent + 1)) - (abs(x) < Fraction(2) ** exponent)
    unit = Fraction(2) ** (exponent - bits + 1)
    return FLOATS[name].type(float(round(x / unit) * unit))
