"""Block attention with `scaled_dot_product_attention` on gathered tiles: every device, every dtype.

Tiles are gathered to `[n, H, block, D]`, padded with zeros where they are short, and scattered back, a few at a time so
that their scores stay in cache. On the CPU full tiles go apart from short ones, whose padding is masked; elsewhere all slots
of the table go with that mask, so that nothing waits for the device. A row's bits depend on its own tile only. The backward
recomputes the scores in fp32 (fp64 for fp64) and follows the same formulas as the kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .rotary import Rotation, beyond_table, table_rows, turn
from .tiles import ATTEND, POISON

_SCORES_AT_ONCE = {"cpu": 1 << 18}
_SCORES_AT_ONCE_ELSEWHERE = 1 << 26


class _Group:
    """Tiles that are computed together: which rows they hold, which of those are padding, and who sees whom.

    `rows [n · block]` names each tile's rows, T (one past the last) for padding; `bias` is 0 where a key is seen, -inf
    elsewhere, and broadcasts to `[n, H, block, block]`; None where all see all. `lines [n]` is the rotary table's line for
    each tile's first row, and `beyond [n]` tells the tiles that the table does not hold. Padding is turned by the
    line of its tile's last row, so that no line past it matters.
    """

    def __init__(
        self, starts: Tensor, lengths: Tensor, lines: Tensor, beyond: Tensor, total_rows: int, block_size: int,
        causal: bool, padded: bool,
    ):  # fmt: skip
        place = torch.arange(block_size, device=starts.device)
        turned_by = place.minimum((lengths - 1).clamp(min=0)[:, None]) if padded else place
        self.lines, self.beyond = lines[:, None] + turned_by, beyond
        self.shape = (starts.shape[0], block_size)
        self.rows = (starts[:, None] + place).flatten()
        self.inside = None
        visible = place <= place[:, None] if causal else None
        if padded:
            inside = place < lengths[:, None]
            self.inside = inside.flatten()
            self.rows = self.rows.where(self.inside, total_rows)
            # A slot without rows sees its zeros, so that its softmax is finite; it is scattered nowhere.
            keys = (inside | (lengths == 0)[:, None])[:, None, None, :]
            visible = keys & visible if causal else keys
        self.bias = (
            None if visible is None else torch.zeros_like(visible, dtype=torch.float32).masked_fill_(~visible, -torch.inf)
        )

    @functools.cached_property
    def padding(self) -> Tensor:
        """The places of `rows` that are padding; reads the device, so for the CPU only."""
        return (~self.inside).nonzero().squeeze(1)

    def gather(self, x: Tensor) -> Tensor:
        """`[T, H, D]` to `[n, H, block, D]`, 0 in padding whatever the tensor holds."""
        rows = self.rows if self.inside is None else self.rows.clamp(max=x.shape[0] - 1)
        tiles = x.index_select(0, rows)
        if self.inside is not None:
            if x.device.type == "cpu":
                tiles.index_fill_(0, self.padding, 0)
            else:
                tiles = tiles.where(self.inside[:, None, None], 0)
        return tiles.unflatten(0, self.shape).transpose(1, 2)

    def turned(self, tiles: Tensor, rotation: Rotation | None, back: bool = False) -> Tensor:
        """Tiles `[n, H, block, D]` turned by the table, or back, computed and given in fp32 (fp64 for fp64)."""
        if rotation is None:
            return tiles
        lines = self.lines.clamp(0, max(0, rotation.cos.shape[0] - 1))
        cos, sin = rotation.cos[lines][:, None], rotation.sin[lines][:, None]
        return turn(_wide(tiles), cos, -sin if back else sin, rotation.interleaved)

    def scatter(self, tiles: Tensor, out: Tensor) -> None:
        """Write `[n, H, block, ...]` to rows of out `[T + 1, H, ...]`, whose last row takes the padding."""
        if self.beyond is not None:
            tiles = tiles.masked_fill(self.beyond.view(-1, *[1] * (tiles.ndim - 1)), torch.nan)
        out.index_copy_(0, self.rows, tiles.transpose(1, 2).flatten(0, 1).to(out.dtype))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """softmax(scale · q kᵀ) v; is_causal would multiply its -inf by the scale, which may be negative or 0."""
        k, v = (_repeat_heads(x, q.shape[1]) for x in (k, v))
        mask = None if self.bias is None else self.bias.to(q.dtype)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """scale · q kᵀ `[n, H, block, block]` of tiles whose heads agree; -inf where a key is not seen."""
        s = (q @ k.mT).mul_(scale)
        return s if self.bias is None else s.add_(self.bias)


def _groups(
    tiles: Tensor, heads: int, total_rows: int, block_size: int, causal: bool, rotation: Rotation | None
) -> Iterator[_Group]:
    starts, lengths, kinds, *_ = tiles.unbind(1)
    lengths = lengths.where(kinds == ATTEND, 0)
    lines = starts if rotation is None else table_rows(rotation, tiles)
    beyond = None if rotation is None or rotation.per_token else beyond_table(rotation, tiles)
    subsets = [(slice(None), True)]
    if tiles.device.type == "cpu":
        subsets = [(lengths == block_size, False), ((lengths > 0) & (lengths < block_size), True)]
    most_scores = _SCORES_AT_ONCE.get(tiles.device.type, _SCORES_AT_ONCE_ELSEWHERE)
    at_once = max(1, most_scores // (heads * block_size**2))
    for subset, padded in subsets if total_rows else ():
        columns = [None if x is None else x[subset] for x in (starts, lengths, lines, beyond)]
        for first in range(0, len(columns[0]), at_once):
            part = [None if x is None else x[first : first + at_once] for x in columns]
            yield _Group(*part, total_rows, block_size, causal, padded)


def _finish(out: Tensor, tiles: Tensor) -> Tensor:
    """Drop the padding row; NaN everywhere when the table was made from invalid contents."""
    out, poisoned = out[:-1], tiles[0, 2] == POISON
    if tiles.device.type != "cpu":
        return out.masked_fill_(poisoned, torch.nan)
    return out.fill_(torch.nan) if poisoned else out


def _as_given(function: Callable) -> Callable:
    """Run a function without autocast: dtypes are the caller's, already cast."""

    @functools.wraps(function)
    def run(*arguments):
        with torch.autocast(arguments[0].device.type, enabled=False):
            return function(*arguments)

    return run


@_as_given
def forward(
    q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, block_size: int, causal: bool, scale: float, return_lse: bool,
    rotation: Rotation | None,
) -> list[Tensor]:  # fmt: skip
    """o `[T, Hq, D]` in q's dtype and, when asked for, lse `[T, Hq]` fp32; see `blockattn.ops`."""
    total_rows, heads, _ = q.shape
    outputs = [q.new_zeros((total_rows + 1, *q.shape[1:]))]
    if return_lse:
        outputs.append(q.new_full((total_rows + 1, heads), -torch.inf, dtype=torch.float32))
    for group in _groups(tiles, heads, total_rows, block_size, causal, rotation):
        tile_q, tile_k, tile_v = (x.to(q.dtype) for x in _turned_inputs(group, q, k, v, rotation))
        group.scatter(group.attend(tile_q, tile_k, tile_v, scale), outputs[0])
        if return_lse:
            wide_q, wide_k = _widened(tile_q, tile_k)
            group.scatter(group.scores(wide_q, wide_k, scale).logsumexp(-1), outputs[1])
    return [_finish(out, tiles) for out in outputs]


@_as_given
def backward(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, block_size: int, causal: bool,
    scale: float, rotation: Rotation | None, gradients: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Write dq `[T + 1, Hq, D]`, dk and dv `[T + 1, Hk, D]`, whose last row takes the padding; see `blockattn.ops`."""
    total_rows, heads, _ = q.shape
    dq, dk, dv = (gradient.zero_() for gradient in gradients)
    v_rotation = rotation if rotation is not None and rotation.rotate_v else None
    for group in _groups(tiles, heads, total_rows, block_size, causal, rotation):
        inputs = _turned_inputs(group, q, k, v, rotation)
        tile_do, tile_q, tile_k, tile_v = _widened(group.gather(do), *inputs)
        p = group.scores(tile_q, tile_k, scale).softmax(-1)
        dp = tile_do @ tile_v.mT
        slope = dp.sub_((p * dp).sum(-1, keepdim=True))
        if dlse is not None:
            slope += group.gather(dlse[..., None])
        ds = slope.mul_(p)
        group.scatter(group.turned((ds @ tile_k).mul_(scale), rotation, back=True), dq)
        for tile_gradient, out, turned_by in (
            ((ds.mT @ tile_q).mul_(scale), dk, rotation), (p.mT @ tile_do, dv, v_rotation)
        ):  # fmt: skip
            if out.shape[1] < heads:
                tile_gradient = tile_gradient.unflatten(1, (out.shape[1], -1)).sum(2)
            group.scatter(group.turned(tile_gradient, turned_by, back=True), out)
    for gradient in gradients:
        _finish(gradient, tiles)


def _turned_inputs(group: _Group, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation | None) -> list[Tensor]:
    """The group's tiles of q, k and v; those that are turned in fp32 (fp64 for fp64)."""
    turned = 0 if rotation is None else 3 if rotation.rotate_v else 2
    return [group.turned(group.gather(x), rotation if i < turned else None) for i, x in enumerate((q, k, v))]


def _wide(tiles: Tensor) -> Tensor:
    return tiles.to(torch.promote_types(tiles.dtype, torch.float32))


def _widened(*tiles: Tensor) -> list[Tensor]:
    """The tiles in fp32 (fp64 for fp64), contiguous, kv heads repeated for the query heads of the first."""
    return [_wide(_repeat_heads(x, tiles[0].shape[1])).contiguous() for x in tiles]


def _repeat_heads(tiles: Tensor, heads: int) -> Tensor:
    """`[n, Hk, block, D]` to `[n, heads, block, D]`: each kv head for the query heads of its group."""
    return tiles if tiles.shape[1] == heads else tiles.repeat_interleave(heads // tiles.shape[1], 1)
