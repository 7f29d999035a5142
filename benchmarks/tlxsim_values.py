"""Arithmetic and conversions of the simulator against a GPU's, bit by bit.

    python benchmarks/tlxsim_values.py --gpu values.npz         # on the GPU's machine, without tlxsim: seconds
    python benchmarks/tlxsim_values.py --compare values.npz     # anywhere, no GPU

One kernel for each type computes a row for each operation, on all pairs of odd values of the type: limits, signed zeros,
denormals, infinities, NaN, shifts beyond the width, zero divisors. Any NaN equals any other. Exit status 1 if a row differs.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys

os.environ["TRITON_INTERPRET"] = "0"  # before anything imports triton

import numpy as np
import torch
import triton
import triton.language as tl

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
OF_INTEGERS = (
    "add", "sub", "mul", "div", "mod", "shl", "shr", "max", "min", "less", "to f16", "to bf16", "to f32", "to f64", "to i8",
)  # fmt: skip
OF_FLOATS = (
    "add", "sub", "mul", "mod", "max", "min", "max nan", "min nan", "less", "neg", "abs", "to i8", "to u8", "to i16",
    "to u16", "to i32", "to u32", "to i64", "to u64", "to f16", "to bf16", "to f32",
)  # fmt: skip
ONLY_FP32 = ("div_rn", "sqrt_rn", "fma", "rtz f16", "rtz bf16", "e4m3", "e5m2")


@triton.jit
def _put(o_ptr, row: tl.constexpr, x, N: tl.constexpr):
    """Row `row` of o: integers extended as they are, floats as their bits."""
    if x.dtype.is_floating():
        if x.dtype.primitive_bitwidth == 64:
            x = x.to(tl.int64, bitcast=True)
        elif x.dtype.primitive_bitwidth == 32:
            x = x.to(tl.int32, bitcast=True)
        elif x.dtype.primitive_bitwidth == 16:
            x = x.to(tl.int16, bitcast=True)
        else:
            x = x.to(tl.int8, bitcast=True)
    tl.store(o_ptr + row * N + tl.arange(0, N), x.to(tl.int64))


@triton.jit
def integer_kernel(a_ptr, b_ptr, o_ptr, N: tl.constexpr):
    """Rows in the order of OF_INTEGERS."""
    at = tl.arange(0, N)
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    _put(o_ptr, 0, a + b, N)
    _put(o_ptr, 1, a - b, N)
    _put(o_ptr, 2, a * b, N)
    _put(o_ptr, 3, a // b, N)
    _put(o_ptr, 4, a % b, N)
    _put(o_ptr, 5, a << b, N)
    _put(o_ptr, 6, a >> b, N)
    _put(o_ptr, 7, tl.maximum(a, b), N)
    _put(o_ptr, 8, tl.minimum(a, b), N)
    _put(o_ptr, 9, a < b, N)
    _put(o_ptr, 10, a.to(tl.float16), N)
    _put(o_ptr, 11, a.to(tl.bfloat16), N)
    _put(o_ptr, 12, a.to(tl.float32), N)
    _put(o_ptr, 13, a.to(tl.float64), N)
    _put(o_ptr, 14, a.to(tl.int8), N)


@triton.jit
def float_kernel(a_ptr, b_ptr, o_ptr, N: tl.constexpr, FP32: tl.constexpr):
    """Rows in the order of OF_FLOATS, then for fp32 of ONLY_FP32."""
    at = tl.arange(0, N)
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    every: tl.constexpr = tl.PropagateNan.ALL
    _put(o_ptr, 0, a + b, N)
    _put(o_ptr, 1, a - b, N)
    _put(o_ptr, 2, a * b, N)
    _put(o_ptr, 3, (a % b).to(a.dtype), N)
    _put(o_ptr, 4, tl.maximum(a, b).to(a.dtype), N)
    _put(o_ptr, 5, tl.minimum(a, b).to(a.dtype), N)
    _put(o_ptr, 6, tl.maximum(a, b, propagate_nan=every).to(a.dtype), N)
    _put(o_ptr, 7, tl.minimum(a, b, propagate_nan=every).to(a.dtype), N)
    _put(o_ptr, 8, a < b, N)
    _put(o_ptr, 9, -a, N)
    _put(o_ptr, 10, tl.abs(a), N)
    _put(o_ptr, 11, a.to(tl.int8), N)
    _put(o_ptr, 12, a.to(tl.uint8), N)
    _put(o_ptr, 13, a.to(tl.int16), N)
    _put(o_ptr, 14, a.to(tl.uint16), N)
    _put(o_ptr, 15, a.to(tl.int32), N)
    _put(o_ptr, 16, a.to(tl.uint32), N)
    _put(o_ptr, 17, a.to(tl.int64), N)
    _put(o_ptr, 18, a.to(tl.uint64), N)
    _put(o_ptr, 19, a.to(tl.float16), N)
    _put(o_ptr, 20, a.to(tl.bfloat16), N)
    _put(o_ptr, 21, a.to(tl.float32), N)
    if FP32:
        _put(o_ptr, 22, tl.div_rn(a, b), N)
        _put(o_ptr, 23, tl.sqrt_rn(a), N)
        _put(o_ptr, 24, tl.fma(a, b, a), N)
        _put(o_ptr, 25, a.to(tl.float16, fp_downcast_rounding="rtz"), N)
        _put(o_ptr, 26, a.to(tl.bfloat16, fp_downcast_rounding="rtz"), N)
        _put(o_ptr, 27, a.to(tl.float8e4nv), N)
        _put(o_ptr, 28, a.to(tl.float8e5), N)


def odd_values(dtype: torch.dtype) -> torch.Tensor:
    """32 of them."""
    rng = np.random.default_rng(0)
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        smallest = info.smallest_normal * info.eps
        values = [
            0.0,
            smallest,
            info.smallest_normal,
            1 / 3,
            1.0,
            1 + info.eps,
            2.5,
            127.9,
            300.0,
            40000.0,
            info.max,
            math.inf,
        ]
        values += [-x for x in values] + [math.nan, *rng.standard_normal(7)]
        return torch.tensor(values, dtype=torch.float64).to(dtype)
    info, width = torch.iinfo(dtype), torch.iinfo(dtype).bits
    values = [0, 1, 2, 3, 7, 31, width - 1, width, info.max, info.max - 1, info.max // 3, info.min, info.min // 2]
    values += [-1, -2, -7] if info.min < 0 else [5, 9, 100]
    values += [int(x) for x in rng.integers(info.min, info.max, 16, dtype=str(dtype).removeprefix("torch."))]
    return torch.tensor([x - (1 << width) if x >= 1 << (width - 1) else x for x in values]).to(dtype)


def rows(dtype: torch.dtype, device: str) -> np.ndarray:
    """What the kernel makes of all pairs: `[operations, pairs]` int64."""
    values = odd_values(dtype)
    a, b = (torch.stack(x).to(device) for x in zip(*itertools.product(values, values)))
    names = operations(dtype)
    out = torch.zeros(len(names), a.numel(), dtype=torch.int64, device=device)
    if dtype.is_floating_point:
        float_kernel[(1,)](a, b, out, N=a.numel(), FP32=dtype == torch.float32)
    else:
        integer_kernel[(1,)](a, b, out, N=a.numel())
    return out.cpu().numpy()


def operations(dtype: torch.dtype) -> tuple[str, ...]:
    if not dtype.is_floating_point:
        return OF_INTEGERS
    return OF_FLOATS + (ONLY_FP32 if dtype == torch.float32 else ())


def canonical(name: str, bits: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """One number for all NaN of a row of floats."""
    kinds = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
    kinds |= {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    made = kinds.get(name.split()[-1])
    if made is None and (name.startswith("to ") or name == "less" or not dtype.is_floating_point):
        return bits
    made = made or dtype
    held = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[made.itemsize]
    values = torch.from_numpy(bits).to(held).view(made).to(torch.float64)
    return np.where(values.isnan().numpy(), 1 << 62, bits)


def compare(recorded: dict[str, np.ndarray]) -> int:
    """Print a line for each row that differs; how many do."""
    import tlxsim

    wrong = 0
    for dtype in FLOATS + INTEGERS:
        with tlxsim.simulate(arch="sm_90", schedules=1, budgets=False, trace=False) as sim:
            found = rows(dtype, "cpu")
        sim.report.raise_if_errors()
        expected = recorded[str(dtype)]
        pairs = list(itertools.product(odd_values(dtype).tolist(), repeat=2))
        for name, mine, theirs in zip(operations(dtype), found, expected, strict=True):
            mine, theirs = canonical(name, mine, dtype), canonical(name, theirs, dtype)
            where = np.flatnonzero(mine != theirs)
            if where.size:
                wrong += 1
                first = where[0]
                values = f"{pairs[first]}: {mine[first]:#x}, on the GPU {theirs[first]:#x}"
                print(f"{dtype} {name}: {where.size} of {mine.size} differ, the first for {values}")
    total = sum(len(operations(dtype)) for dtype in FLOATS + INTEGERS)
    print(f"{total - wrong} of {total} rows are the same")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--gpu", metavar="FILE", help="compute the rows on the GPU and write them")
    group.add_argument("--compare", metavar="FILE", help="simulate them and compare")
    options = parser.parse_args()
    if options.gpu:
        np.savez_compressed(options.gpu, **{str(dtype): rows(dtype, "cuda") for dtype in FLOATS + INTEGERS})
        return 0
    with np.load(options.compare) as recorded:
        return 1 if compare(dict(recorded)) else 0


if __name__ == "__main__":
    sys.exit(main())
