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
    rotary=None,
    interleaved: bool = True,
    rotate_v: bool = False,
    start_positions: Tensor | None = None,
    compute_dtype: torch.dtype = torch.float64,
    matmul: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
) -> tuple[Tensor, Tensor]:
    """o `[T, Hq, D]` and lse `[T, Hq]`, both in compute_dtype; arguments as `blockattn.block_attention`.

    Rotation is a product of complex numbers, in fp32 or fp64, rounded to compute_dtype.
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
            block = [x[rows] for x in (q, k, v)]
            if rotary is not None:
                first = start if rotary.per_token else start - begin
                if start_positions is not None:
                    first += int(start_positions[b])
                angles = _angles(rotary, first, stop - start)
                turned = 3 if rotate_v else 2
                block[:turned] = [_rotate(x, *angles, interleaved, compute_dtype) for x in block[:turned]]
            o, lse = _attend(*(x.to(compute_dtype) for x in block), group, scale, causal, matmul)
            o_parts.append(o)
            lse_parts.append(lse)
            done, start, stop = stop, stop, stop + block_size
    skip_to(total_rows)
    graph = sum(x[:0].sum() for x in (q, k, v)).to(compute_dtype)  # 0, so that a batch without blocks has gradients too
    return torch.cat(o_parts) + graph, torch.cat(lse_parts) + graph


def _angles(rotary, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine `[rows, R/2]` from the table's line `first` on; NaN where it does not hold them all."""
    if 0 <= first <= rotary.cos.shape[0] - rows:
        return rotary.cos[first : first + rows], rotary.sin[first : first + rows]
    missing = rotary.cos.new_full((rows, rotary.cos.shape[1]), torch.nan)
    return missing, missing


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, dtype: torch.dtype) -> Tensor:
    """x `[n, H, D]` with pairs as complex numbers times cos + i sin `[n, R/2]`."""
    wide = torch.promote_types(dtype, torch.float32)
    half = cos.shape[1]
    turn = torch.complex(cos.to(wide), sin.to(wide))[:, None]
    pairs, rest = x[..., : 2 * half].to(wide), x[..., 2 * half :].to(wide)
    pairs = pairs.unflatten(-1, (half, 2)) if interleaved else pairs.unflatten(-1, (2, half)).transpose(-1, -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    turned = turned if interleaved else turned.transpose(-1, -2)
    return torch.cat([turned.flatten(-2), rest], -1).to(dtype)


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
