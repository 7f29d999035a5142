"""The attention layer: one projection to q, k and v, block attention with rotary fused, and an output projection."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .api import block_attention_packed, check_head_dim, check_rotary_table, head_counts
from .checks import check_bool, check_tensor, integer, positive
from .rotary import RotaryTable
from .tiles import TileTable, cut_sizes


class BlockSelfAttention(nn.Module):
    """Self-attention inside fixed blocks of jagged sequences, from `[T, embed_dim]` to `[T, embed_dim]`.

    Parameters, which are the state_dict:
        qkv_proj.weight: `[(Hq + 2 Hk) · D, embed_dim]`, rows of q heads, then k heads, then v heads; qkv_proj.bias
            `[(Hq + 2 Hk) · D]` with qkv_bias.
        out_proj.weight: `[embed_dim, Hq · D]` and, with out_bias, out_proj.bias `[embed_dim]`; absent without out_proj.

    A rotary table by position that is given here is kept as buffers that are not part of the state_dict; they move with the
    module and keep their dtype, and their values even in `to_empty`, which refuses a table made on the meta device: it has
    none. A table per token goes in at `forward`.

    Args:
        embed_dim: channels of x.
        num_heads: Hq.
        num_kv_heads: Hk, a divisor of Hq (default Hq).
        head_dim: D (default embed_dim / Hq).
        block_size, shift: how sequences are cut where `forward` gets offsets; a `TileTable` brings its own.
        causal: a row attends to itself and to the rows before it in its block.
        rotary: a table by position for every call (default none).
        interleaved, rotate_v: as in `block_attention`.
        qkv_bias, out_bias: whether the projections have a bias.
        out_proj: False: the output is `[T, Hq · D]`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: numbers that do not fit each other, or a rotary table per token.

    >>> layer = BlockSelfAttention(256, num_heads=4)
    >>> layer(torch.randn(70, 256), torch.tensor([0, 3, 70])).shape
    torch.Size([70, 256])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        block_size: int = 64,
        shift: int = 0,
        causal: bool = False,
        rotary: RotaryTable | None = None,
        interleaved: bool = True,
        rotate_v: bool = False,
        qkv_bias: bool = False,
        out_proj: bool = True,
        out_bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        flags = dict(causal=causal, interleaved=interleaved, rotate_v=rotate_v)
        for name, value in (flags | dict(qkv_bias=qkv_bias, out_proj=out_proj, out_bias=out_bias)).items():
            check_bool(name, value)
        if out_bias and not out_proj:
            raise ValueError("out_bias is an option of out_proj, which is False")
        self.embed_dim = positive("embed_dim", embed_dim)
        self.num_heads, self.num_kv_heads = head_counts(num_heads, num_kv_heads)
        self.head_dim = _head_dim(self.embed_dim, self.num_heads, head_dim)
        self.block_size, self.shift = cut_sizes(block_size, shift)
        self.causal, self.interleaved, self.rotate_v = causal, interleaved, rotate_v
        if rotary is not None:
            check_rotary_table(rotary, self.head_dim)
            if rotary.per_token:
                raise ValueError("rotary must be a table by position here; one per token goes in at forward")
        heads, made = self.num_heads + 2 * self.num_kv_heads, dict(device=device, dtype=dtype)
        self.qkv_proj = nn.Linear(self.embed_dim, heads * self.head_dim, bias=qkv_bias, **made)
        self.out_proj = (
            nn.Linear(self.num_heads * self.head_dim, self.embed_dim, bias=out_bias, **made) if out_proj else None
        )
        self.register_buffer("rotary_cos", None if rotary is None else rotary.cos, persistent=False)
        self.register_buffer("rotary_sin", None if rotary is None else rotary.sin, persistent=False)

    @property
    def rotary(self) -> RotaryTable | None:
        """The layer's own table, where its buffers are; None when it has none."""
        if self.rotary_cos is None:
            return None
        return RotaryTable(self.rotary_cos, self.rotary_sin, per_token=False)

    def forward(
        self,
        x: Tensor,
        offsets: Tensor | TileTable,
        rotary: RotaryTable | None = None,
        *,
        lengths: Tensor | None = None,
        start_positions: Tensor | None = None,
        backend: str | None = None,
        check_offsets: bool | None = None,
    ) -> Tensor:
        """`[T, embed_dim]` from x `[T, embed_dim]`; rotary takes the place of the layer's own table.

        The other arguments are those of `block_attention`.
        """
        check_tensor("x", x)
        if x.ndim != 2 or x.shape[1] != self.embed_dim:
            raise ValueError(f"x must have shape [T, {self.embed_dim}], got {tuple(x.shape)}")
        cut = {} if isinstance(offsets, TileTable) else dict(block_size=self.block_size, shift=self.shift)
        rotary = self.rotary if rotary is None else rotary
        o = block_attention_packed(
            self.qkv_proj(x),
            offsets,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            lengths=lengths,
            causal=self.causal,
            rotary=rotary,
            interleaved=self.interleaved,
            rotate_v=self.rotate_v and rotary is not None,
            start_positions=start_positions,
            backend=backend,
            check_offsets=check_offsets,
            **cut,
        ).flatten(1)
        return o if self.out_proj is None else self.out_proj(o)

    def _apply(self, fn, recurse=True):
        """`to(dtype)`, `half()`, `to_empty()` and the like move the table, but change neither its dtype nor its values."""
        cos, sin = self.rotary_cos, self.rotary_sin
        super()._apply(fn, recurse)
        if cos is not None:
            device = self.rotary_cos.device
            if cos.is_meta and device.type != "meta":
                raise RuntimeError(
                    "rotary was made on the meta device and has no values: make it elsewhere, as by "
                    "RotaryTable.from_theta(..., device='cpu')"
                )
            self.rotary_cos, self.rotary_sin = cos.to(device), sin.to(device)
        return self

    def extra_repr(self) -> str:
        cut = f"block_size={self.block_size}, shift={self.shift}, causal={self.causal}"
        heads = f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"
        rotary = f", rotary={self.rotary_cos is not None}, interleaved={self.interleaved}, rotate_v={self.rotate_v}"
        return f"{heads}, {cut}{rotary}"


def _head_dim(embed_dim: int, num_heads: int, head_dim: int | None) -> int:
    """The head dim that was asked for, or the one that shares embed_dim among the heads."""
    if head_dim is None and embed_dim % num_heads:
        raise ValueError(f"embed_dim must be a multiple of num_heads without a head_dim, got {embed_dim}, {num_heads}")
    head_dim = embed_dim // num_heads if head_dim is None else integer("head_dim", head_dim)
    check_head_dim("head_dim", head_dim)
    return head_dim
