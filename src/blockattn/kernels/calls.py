"""What the host does around every forward and every backward kernel: outputs, strides, and the order of arguments."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rotary import Rotation
from . import pairs
from .launch import Launcher, side_by_side


def forward(
    launch: Launcher, q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, block_size: int, causal: bool, scale: float,
    return_lse: bool, rotation: Rotation | None,
) -> list[Tensor]:  # fmt: skip
    """o `[T, Hq, D]` in q's dtype and, when asked for, lse `[T, Hq]` fp32; see `blockattn.ops`."""
    total_rows, heads, head_dim = q.shape
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty((total_rows, heads), dtype=torch.float32, device=q.device) if return_lse else None
    if total_rows:
        inputs, strides = side_by_side(q, k, v)
        table, integers, kind = pairs.arguments(rotation)
        shape = (heads, k.shape[1], head_dim, block_size, causal, return_lse, *kind)
        launch(tiles.shape[0], (*inputs, o, lse, tiles, *table), (*strides, *integers), (scale,), shape)
    return [o, lse] if return_lse else [o]


def backward(
    launch: Launcher, do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, block_size: int,
    causal: bool, scale: float, rotation: Rotation | None, gradients: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Write dq `[T, Hq, D]`, dk and dv `[T, Hk, D]`, whose heads stand side by side; see `blockattn.ops`."""
    total_rows, heads, head_dim = q.shape
    if total_rows:
        (do, q, k, v), strides = side_by_side(do, q, k, v)
        dlse = None if dlse is None else dlse.contiguous()
        table, integers, kind = pairs.arguments(rotation)
        shape = (heads, k.shape[1], head_dim, block_size, causal, dlse is not None, *kind)
        rows = (gradients[0].stride(0), gradients[1].stride(0))
        launch(tiles.shape[0], (do, dlse, q, k, v, *gradients, tiles, *table), (*strides, *rows, *integers), (scale,), shape)
