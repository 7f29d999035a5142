"""Block attention with `scaled_dot_product_attention` on gathered tiles: every device, every dtype.

Tiles are gathered to `[n, H, block, D]`, padded with zeros where they are short, and scattered back. On the CPU full tiles
go without a mask and apart from short ones; elsewhere all slots of the table go together with a mask, so that nothing waits
for the device. A row's bits depend on its own tile only. The backward recomputes the tiles and uses torch's gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .tiles import ATTEND, POISON


class _Group:
    """Tiles that are computed together: which rows they hold, which of those are inside, and who sees whom.

    `rows [n · block]` names each tile's rows, T (one past the last) for padding; `visible` is a boolean mask that
    broadcasts to `[n, H, block, block]`, or None where all see all.
    """

    def __init__(self, starts: Tensor, lengths: Tensor, total_rows: int, block_size: int, causal: bool, padded: bool):
        place = torch.arange(block_size, device=starts.device)
        self.shape = (starts.shape[0], block_size)
        self.causal = causal and not padded
        self.rows = (starts[:, None] + place).flatten()
        self.inside = self.visible = None
        if padded:
            inside = place < lengths[:, None]
            self.rows = self.rows.where(inside.flatten(), total_rows)
            self.inside = inside.flatten()[:, None, None]
            # A slot without rows sees its zeros, so that its softmax is finite; it is scattered nowhere.
            self.visible = (inside | (lengths == 0)[:, None])[:, None, None, :]
            if causal:
                self.visible = self.visible & (place <= place[:, None])

    def gather(self, x: Tensor) -> Tensor:
        """`[T, H, D]` to `[n, H, block, D]`, 0 in padding whatever the tensor holds."""
        rows = self.rows if self.inside is None else self.rows.clamp(max=x.shape[0] - 1)
        tiles = x.index_select(0, rows)
        if self.inside is not None:
            tiles = tiles.where(self.inside, 0)
        return tiles.unflatten(0, self.shape).transpose(1, 2)

    def scatter(self, tiles: Tensor, out: Tensor) -> None:
        """Write `[n, H, block, ...]` to rows of out `[T + 1, H, ...]`, whose last row takes the padding."""
        out[self.rows] = tiles.transpose(1, 2).flatten(0, 1).to(out.dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        return scaled_dot_product_attention(q, k, v, attn_mask=self.visible, is_causal=self.causal, scale=scale)

    def logsumexp(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """`[n, H, block]` in fp32 (fp64 for fp64)."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        s = q.to(dtype) @ k.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3) * scale
        visible = self.visible
        if self.causal:
            visible = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril()
        return (s if visible is None else s.masked_fill(~visible, -torch.inf)).logsumexp(-1)


def _groups(tiles: Tensor, total_rows: int, block_size: int, causal: bool) -> Iterator[_Group]:
    starts, lengths, kinds = tiles.unbind(1)
    lengths = lengths.where(kinds == ATTEND, 0)
    if tiles.device.type != "cpu":
        yield _Group(starts, lengths, total_rows, block_size, causal, padded=True)
        return
    for chosen, padded in ((lengths == block_size, False), ((lengths > 0) & (lengths < block_size), True)):
        index = chosen.nonzero().squeeze(1)
        if len(index):
            yield _Group(starts[index], lengths[index], total_rows, block_size, causal, padded)


def _finish(out: Tensor, tiles: Tensor) -> Tensor:
    """Drop the padding row; NaN everywhere when the table was made from invalid contents."""
    poisoned = tiles[:1, 2].eq(POISON).reshape([1] * out.dim())
    return out[:-1].masked_fill_(poisoned, torch.nan)


def forward(
    q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, block_size: int, causal: bool, scale: float, return_lse: bool
) -> tuple[Tensor, Tensor]:
    """o `[T, Hq, D]` in q's dtype and lse `[T, Hq]` fp32 (`[0, Hq]` unless asked for); see `blockattn.ops`."""
    total_rows, heads, _ = q.shape
    o = q.new_zeros((total_rows + 1, *q.shape[1:]))
    lse = q.new_full((total_rows + 1 if return_lse else 1, heads), -torch.inf, dtype=torch.float32)
    for group in _groups(tiles, total_rows, block_size, causal) if total_rows else ():
        tile_q, tile_k, tile_v = (group.gather(x) for x in (q, k, v))
        group.scatter(group.attend(tile_q, tile_k, tile_v, scale), o)
        if return_lse:
            group.scatter(group.logsumexp(tile_q, tile_k, scale), lse)
    return _finish(o, tiles), _finish(lse, tiles)


def backward(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, tiles: Tensor,
    block_size: int, causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq `[T, Hq, D]`, dk and dv `[T, Hk, D]`, contiguous, in their inputs' dtype; see `blockattn.ops`."""
    total_rows = q.shape[0]
    gradients = [x.new_zeros((total_rows + 1, *x.shape[1:])) for x in (q, k, v)]
    for group in _groups(tiles, total_rows, block_size, causal) if total_rows else ():
        inputs = [group.gather(x).detach().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            outputs = [group.attend(*inputs, scale)]
            weights = [group.gather(do)]
            if dlse is not None:
                outputs.append(group.logsumexp(*inputs[:2], scale))
                weights.append(group.gather(dlse[..., None]).squeeze(-1).to(outputs[1].dtype))
        for gradient, out in zip(torch.autograd.grad(outputs, inputs, weights, allow_unused=True), gradients, strict=True):
            group.scatter(gradient, out)
    return tuple(_finish(gradient, tiles) for gradient in gradients)
