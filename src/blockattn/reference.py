"""The oracle: block attention as a loop over blocks, in plain torch, for tests.

`o = softmax(scale · q kᵀ) v` for each block by itself. It reads offsets directly and shares nothing with the tile table or
the kernels, so that a mistake there cannot agree with itself here. Gradients are torch's own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    *,
    lengths: Tensor | None = None,
    block_size: int = 64,
    shift: int = 0,
    causal: bool = False,
    scale: float | None = None,
    compute_dtype: torch.dtype = torch.float64,
    matmul: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
) -> tuple[Tensor, Tensor]:
    """o `[T, Hq, D]` and lse `[T, Hq]`, both in compute_dtype; arguments as `blockattn.block_attention`.

    `matmul` multiplies the matrices, for tests of other roundings.
    """
    total_rows, q_heads, head_dim = q.shape
    group = q_heads // k.shape[1]
    scale = head_dim**-0.5 if scale is None else scale
    bounds = offsets.tolist()
    o_parts, lse_parts, done = [], [], 0

    def skip_to(row: int) -> None:
        o_parts.append(q.new_zeros(row - done, q_heads, head_dim, dtype=compute_dtype))
        lse_parts.append(q.new_full((row - done, q_heads), -torch.inf, dtype=compute_dtype))

    for b, begin in enumerate(bounds[:-1]):
        end = bounds[b + 1] if lengths is None else begin + int(lengths[b])
        start, stop = begin, begin + (shift or block_size)
        while start < end:
            stop = min(stop, end)
            skip_to(start)
            rows = slice(start, stop)
            o, lse = _attend(*(x[rows].to(compute_dtype) for x in (q, k, v)), group, scale, causal, matmul)
            o_parts.append(o)
            lse_parts.append(lse)
            done, start, stop = stop, stop, stop + block_size
    skip_to(total_rows)
    graph = sum(x[:0].sum() for x in (q, k, v)).to(compute_dtype)  # 0, so that a batch without blocks has gradients too
    return torch.cat(o_parts) + graph, torch.cat(lse_parts) + graph


def _attend(
    q: Tensor, k: Tensor, v: Tensor, group: int, scale: float, causal: bool, matmul: Callable
) -> tuple[Tensor, Tensor]:
    """One block: q `[n, Hq, D]`, k and v `[n, Hk, D]` to o `[n, Hq, D]` and lse `[n, Hq]`."""
    q, k, v = (x.transpose(0, 1) for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    s = matmul(q, k.transpose(1, 2)) * scale
    if causal:
        later = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
        s = s.masked_fill(later, -torch.inf)
    o = matmul(s.softmax(-1), v)
    return o.transpose(0, 1), s.logsumexp(-1).transpose(0, 1)
