"""The attention layer: one projection to q, k and v, block attention with rotary fused, and an output projection."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .api import block_attention_packed
from .rotary import RotaryTable
from .tiles import TileTable


class BlockSelfAttention(nn.Module):
    """Self-attention inside fixed blocks of jagged sequences, from `[T, embed_dim]` to `[T, embed_dim]`.

    Parameters, which are the state_dict:
        qkv_proj.weight: `[(Hq + 2 Hk) · D, embed_dim]`, rows of q heads, then k heads, then v heads; qkv_proj.bias
            `[(Hq + 2 Hk) · D]` with qkv_bias.
        out_proj.weight: `[embed_dim, Hq · D]` and, with out_bias, out_proj.bias `[embed_dim]`; absent without out_proj.

    A rotary table by position that is given here is kept as buffers that are not part of the state_dict; they move with the
    module and keep their dtype. A table per token goes in at `forward`.

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
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}")
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(f"embed_dim must be a multiple of num_heads without a head_dim, got {embed_dim}, {num_heads}")
        if rotary is not None and rotary.per_token:
            raise ValueError("rotary must be a table by position here; one per token goes in at forward")
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.block_size, self.shift, self.causal = block_size, shift, causal
        self.interleaved, self.rotate_v = interleaved, rotate_v
        made = dict(device=device, dtype=dtype)
        self.qkv_proj = nn.Linear(embed_dim, (num_heads + 2 * num_kv_heads) * self.head_dim, bias=qkv_bias, **made)
        self.out_proj = nn.Linear(num_heads * self.head_dim, embed_dim, bias=out_bias, **made) if out_proj else None
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
        """`to(dtype)`, `half()` and the like change the parameters, but not the dtype of the table."""
        cos, sin = self.rotary_cos, self.rotary_sin
        super()._apply(fn, recurse)
        if cos is not None and self.rotary_cos.dtype != cos.dtype:
            self.rotary_cos, self.rotary_sin = (x.to(self.rotary_cos.device) for x in (cos, sin))
        return self

    def extra_repr(self) -> str:
        cut = f"block_size={self.block_size}, shift={self.shift}, causal={self.causal}"
        heads = f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"
        rotary = f", rotary={self.rotary_cos is not None}, interleaved={self.interleaved}, rotate_v={self.rotate_v}"
        return f"{heads}, {cut}{rotary}"
