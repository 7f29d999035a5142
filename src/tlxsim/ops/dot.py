"""Products of register tiles: `tl.dot` before the compiler has chosen an instruction.

Sums are in fp32 in numpy's order, which is not the hardware's. fp32 operands are multiplied as `inputPrecision` says: whole
(ieee), with their low 13 bits cut off (tf32), or split into parts whose larger products are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from .mma import product
from .registry import pure, refuse
from .steps import HINTS, apply

_BF16 = np.dtype(ml_dtypes.bfloat16)


@pure("tt.dot", "%a, %b, %c(, inputPrecision = @precision)?", attributes=f"maxNumImpreciseAcc {HINTS}")
def _dot(op, m):
    """How often fp8 sums are moved to fp32 (maxNumImpreciseAcc) is not modelled: they are fp32."""
    precision, operand, made = m["precision"] or "ieee", op.types[0].dtype, op.result_types[0].dtype
    multiply: Callable[[np.ndarray, np.ndarray], np.ndarray] = product
    if operand == np.float64:
        multiply = np.matmul
    elif operand == np.float32:
        if precision not in _OF_FP32:
            raise refuse(op, f"inputPrecision = {precision} is not modelled")
        multiply = _OF_FP32[precision]
    if made.itemsize >= 4:
        return apply(op, op.operands, lambda a, b, c: multiply(a, b) + c)
    return apply(op, op.operands, lambda a, b, c: (multiply(a, b) + c.astype(np.float32)).astype(made))


def tf32(x: np.ndarray) -> np.ndarray:
    """Rounded to tf32's 10 bits, ties away from zero."""
    pattern = x.view(np.uint32) + np.uint32(0x1000)
    return np.where(np.isfinite(x), (pattern & np.uint32(0xFFFFE000)).view(np.float32), x)


def _split(x: np.ndarray, rounded: Callable[[np.ndarray], np.ndarray], parts: int) -> list[np.ndarray]:
    """Parts that add up to x, each the rounded rest."""
    x = np.ascontiguousarray(x)
    found = []
    for _ in range(parts):
        found.append(rounded(x))
        x = x - found[-1]
    return found


def _by_parts(rounded: Callable[[np.ndarray], np.ndarray], pairs: tuple[tuple[int, int], ...]) -> Callable[..., np.ndarray]:
    """The sum of the products of the parts named by pairs, small ones first; NaN in those is nothing, as Triton has it."""
    parts = 1 + max(max(pair) for pair in pairs)

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        of_a, of_b = _split(a, rounded, parts), _split(b, rounded, parts)
        small = sum(of_a[i] @ of_b[j] for i, j in pairs)
        return np.where(np.isnan(small), 0, small).astype(np.float32) + of_a[0] @ of_b[0]

    return multiply


def _bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(_BF16).astype(np.float32)


_OF_FP32: dict[str, Any] = {
    "tf32": product,
    "ieee": np.matmul,
    "tf32x3": _by_parts(tf32, ((1, 0), (0, 1))),
    "bf16x3": _by_parts(_bf16, ((1, 0), (0, 1))),
    "bf16x6": _by_parts(_bf16, ((1, 1), (2, 0), (0, 2), (1, 0), (0, 1))),
}
