"""Rotary position embedding: the table of cosines and sines, and the rotation of rows by it in plain torch.

A table turns pair i of a row by the angle whose cosine and sine stand in column i: channels 2i and 2i + 1 when interleaved
(GPT-J, RoFormer), i and i + R/2 otherwise (GPT-NeoX, Llama). Channels from R on are left alone. Source of the method: Su et
al., RoFormer, arXiv 2104.09864. The kernels rotate in `kernels/pairs.py`; the checks of positions are here.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor

from .checks import check_bool, check_number, check_tensor, integer, positive
from .tiles import ATTEND

TABLE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclasses.dataclass(frozen=True, eq=False)
class RotaryTable:
    """Cosines and sines of the angles that rows are turned by.

    Args:
        cos, sin: `[T, R/2]` with a line for every row (per_token), or `[P, R/2]` with a line for each position inside a
            sequence; fp32, bf16 or fp16, whatever q's dtype. Any strides whose last one is 1 are read in place; others are
            copied, once.
        per_token: which of the two.

    One made under inference_mode serves inference only.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: shapes, dtypes or devices that disagree, or a table that is sparse or requires a gradient.
    """

    cos: Tensor
    sin: Tensor
    per_token: bool

    def __init__(self, cos: Tensor, sin: Tensor, *, per_token: bool):
        for name, x in (("cos", cos), ("sin", sin)):
            check_tensor(name, x)
            if x.ndim != 2 or x.shape[1] < 1:
                raise ValueError(f"{name} must have shape [T, R/2] or [P, R/2], got {tuple(x.shape)}")
            if x.dtype not in TABLE_DTYPES:
                raise ValueError(f"{name} must be float32, bfloat16 or float16, got {x.dtype}")
        for what in ("shape", "dtype", "device"):
            if getattr(sin, what) != getattr(cos, what):
                raise ValueError(f"sin must have cos's {what} {getattr(cos, what)}, got {getattr(sin, what)}")
        check_bool("per_token", per_token)
        check_constant(cos, sin)
        if not per_token and not cos.shape[0]:
            raise ValueError("cos must hold at least one position, got none")
        object.__setattr__(self, "cos", cos if cos.stride(1) == 1 else cos.contiguous())
        object.__setattr__(self, "sin", sin if sin.stride(1) == 1 else sin.contiguous())
        object.__setattr__(self, "per_token", per_token)

    @property
    def dim(self) -> int:
        """R, the channels that are turned."""
        return 2 * self.cos.shape[1]

    @classmethod
    def from_sin_cos(cls, table: Tensor) -> RotaryTable:
        """A table per token from one `[T, R]` tensor: sines in its first half, cosines in its second; views, no copy.

        >>> RotaryTable.from_sin_cos(torch.zeros(100, 64)).dim
        64
        """
        check_tensor("table", table)
        if table.ndim != 2 or table.shape[1] % 2 or not table.shape[1]:
            raise ValueError(f"table must have shape [T, R] with an even R, got {tuple(table.shape)}")
        sin, cos = table.chunk(2, 1)
        return cls(cos, sin, per_token=True)

    @classmethod
    def from_theta(
        cls, dim: int, max_position: int, theta: float = 1e4, *, dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> RotaryTable:  # fmt: skip
        """The usual table by position: pair i of position p turns by p · theta ** (-2i / dim), computed in fp64 on the CPU.

        >>> RotaryTable.from_theta(64, 4096).cos.shape
        torch.Size([4096, 32])
        """
        dim, max_position = integer("dim", dim), positive("max_position", max_position)
        if dim < 2 or dim % 2:
            raise ValueError(f"dim must be even and at least 2, got {dim}")
        check_number("theta", theta)
        if not 0 < theta < math.inf:
            raise ValueError(f"theta must be above 0 and finite, got {theta}")
        wide, wanted = dict(dtype=torch.float64, device="cpu"), torch.zeros(0, dtype=dtype, device=device)
        frequencies = float(theta) ** (-torch.arange(0, dim, 2, **wide) / dim)
        angles = torch.arange(max_position, **wide)[:, None] * frequencies
        return cls(angles.cos().to(wanted), angles.sin().to(wanted), per_token=False)


def check_constant(cos: Tensor, sin: Tensor) -> None:
    """Raise where a table requires a gradient, which would be lost."""
    for name, x in (("cos", cos), ("sin", sin)):
        if x.requires_grad:
            raise ValueError(f"{name} must not require a gradient: the table is not differentiated")


class Rotation(NamedTuple):
    """What the operators take of a table and its options; start_positions `[B]` or None."""

    cos: Tensor
    sin: Tensor
    start_positions: Tensor | None
    per_token: bool
    interleaved: bool
    rotate_v: bool


def table_rows(rotation: Rotation, tiles: Tensor) -> Tensor:
    """`[N]` int64: the line of the table for the first row of each tile."""
    starts, _, _, positions, sequences = tiles.unbind(1)
    if rotation.per_token:
        return starts
    if rotation.start_positions is None or not rotation.start_positions.numel():
        return positions
    return positions + rotation.start_positions.long()[sequences]


def beyond_table(rotation: Rotation, tiles: Tensor) -> Tensor:
    """`[N]` bool: the tiles with a row whose position the table does not hold."""
    _, lengths, kinds, *_ = tiles.unbind(1)
    first = table_rows(rotation, tiles)  # negative where a sum passes 2⁶³
    return (kinds == ATTEND) & (lengths > 0) & ((first < 0) | (first > rotation.cos.shape[0] - lengths))


def check_positions(rotation: Rotation, tiles: Tensor) -> None:
    """Raise a ValueError that names the first sequence with a position outside the table; reads the device."""
    beyond = beyond_table(rotation, tiles).nonzero().squeeze(1)
    if not len(beyond):
        return
    _, length, _, position, sequence = tiles[beyond[0]].tolist()
    start = 0 if rotation.start_positions is None else int(rotation.start_positions[sequence])
    raise ValueError(
        f"rotary must hold the positions of sequence {sequence}, which reaches {start + position + length - 1} from "
        f"start_positions[{sequence}] = {start}, got a table of {rotation.cos.shape[0]} positions"
    )


def turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Turn the pairs of x `[..., D]` by angles `[..., R/2]` that broadcast to it, in x's dtype (fp32 or fp64).

    With -sin it turns back: the gradient of a rotation is its inverse.
    """
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    pair = (a * cos - b * sin, a * sin + b * cos)
    joined = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([joined, rest], -1)
