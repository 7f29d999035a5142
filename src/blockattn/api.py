"""The public function: its specification, the checks of its arguments, and the choice of backend."""

from __future__ import annotations

import torch
from torch import Tensor

from . import dispatch, ops, reference
from .checks import check_bool, check_index, check_number, check_tensor, positive
from .rotary import RotaryTable, Rotation, check_constant, check_positions
from .tiles import TileTable

MIN_HEAD_DIM, MAX_HEAD_DIM = 16, 256
MAX_SCALE = 1e38  # the kernels scale in float32
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor | TileTable,
    *,
    lengths: Tensor | None = None,
    block_size: int | None = None,
    shift: int | None = None,
    causal: bool = False,
    scale: float | None = None,
    rotary: RotaryTable | None = None,
    interleaved: bool = True,
    rotate_v: bool = False,
    start_positions: Tensor | None = None,
    return_lse: bool = False,
    backend: str | None = None,
    check_offsets: bool | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention inside fixed blocks of the sequences of a jagged batch: `o = softmax(scale · q kᵀ) v`.

    Sequence b owns rows `offsets[b]` to `offsets[b + 1]`. It is cut from its start into blocks of `block_size` rows, the
    last one possibly shorter, and every row attends to the rows of its own block. Rows that no sequence uses give 0 in
    the output and in every gradient, whatever they hold, and never touch another row.

    Args:
        q: `[T, Hq, D]` bf16, fp16 or fp32 (fp64 on the CPU); D a multiple of 8 from 16 to 256. Any strides whose last
            one is 1 are read in place.
        k, v: `[T, Hk, D]`, q's dtype and device; Hq is a multiple of Hk and query head h uses kv head h // (Hq / Hk).
        offsets: `[B + 1]` int32 or int64 on q's device, non-decreasing, within 0 and T; or a `TileTable`, which carries
            lengths, block_size and shift too and can be shared by layers.
        lengths: `[B]` int32 or int64: rows of each sequence that are used, from its start (default: all).
        block_size: 16, 32, 64 (default) or 128 rows.
        shift: rows of each sequence's first block when not 0 (default 0); below block_size. Layers that alternate
            between 0 and block_size / 2 mix neighbouring blocks.
        causal: a row attends to itself and to the rows before it in its block.
        scale: factor of the scores (default D ** -0.5).
        rotary: turn the first R channels of q and k by these angles first. The turned tensors are never stored: the
            backward turns q and k again, and its gradients back, in fp32.
        interleaved: rotary pairs are channels 2i and 2i + 1; False: i and i + R/2.
        rotate_v: turn v too (the output is not turned back).
        start_positions: `[B]` int32 or int64 on q's device, 0 or more: the position of each sequence's first row in a
            table by position (default 0).
        return_lse: also return the natural logarithm of Σ exp(scale · q kᵀ), differentiable; -inf in unused rows.
        backend: "triton", "torch" or "reference"; default: the fastest that serves the device and dtype.
        check_offsets: read the contents of offsets, lengths and start_positions (a table's too) and raise on wrong ones.
            Default: on the CPU only, since it synchronises a GPU. Unchecked wrong offsets or lengths make output, lse and
            gradients NaN, and a position outside the rotary table the rows of its block.

    Returns:
        o `[T, Hq, D]` in q's dtype; with return_lse, (o, lse) with lse `[T, Hq]` fp32. Under autocast q, k and v are cast
        to the autocast dtype first.

    Gradients are of first order and in reverse mode; forward mode, a second derivative, vmap and torch.func.grad raise
    (backend="reference" has them all).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: wrong shapes, dtypes, devices or values, a backend that cannot serve the call, or wrong contents.

    >>> q, k, v = torch.randn(3, 70, 4, 64).unbind()
    >>> block_attention(q, k, v, torch.tensor([0, 3, 70])).shape
    torch.Size([70, 4, 64])
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    q, k, v = _autocast(q, k, v)
    _check_tensors(q, k, v)
    _check_options(causal, scale, return_lse, backend)
    table = _table(q, offsets, lengths, block_size, shift, check_offsets)
    rotation = _check_rotary(q, table, rotary, interleaved, rotate_v, start_positions)
    return _attend((q, k, v), (q, k, v), table, causal, scale, rotation, return_lse, backend, check_offsets)


def block_attention_packed(
    qkv: Tensor,
    offsets: Tensor | TileTable,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    lengths: Tensor | None = None,
    block_size: int | None = None,
    shift: int | None = None,
    causal: bool = False,
    scale: float | None = None,
    rotary: RotaryTable | None = None,
    interleaved: bool = True,
    rotate_v: bool = False,
    start_positions: Tensor | None = None,
    return_lse: bool = False,
    backend: str | None = None,
    check_offsets: bool | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`block_attention` of one tensor that holds q, k and v, as a projection gives it; its gradient is one tensor too.

    The Triton kernels read q, k and v where they stand, and write their gradients into the places of one tensor.

    Args:
        qkv: `[T, (Hq + 2 Hk) · D]` or `[T, Hq + 2 Hk, D]`, heads of q, then of k, then of v; or `[T, 3, H, D]`. Any
            strides whose last one is 1 are read in place.
        num_heads: Hq.
        num_kv_heads: Hk, a divisor of Hq (default Hq).
        offsets, ...: as in `block_attention`.

    Returns:
        o `[T, Hq, D]`; with return_lse, (o, lse).

    Raises:
        TypeError, ValueError: as `block_attention`.

    >>> block_attention_packed(torch.randn(70, 8 * 64), torch.tensor([0, 3, 70]), num_heads=4, num_kv_heads=2).shape
    torch.Size([70, 4, 64])
    """
    num_heads, num_kv_heads = head_counts(num_heads, num_kv_heads)
    _check_packed(qkv, num_heads, num_kv_heads)
    (qkv,) = _autocast(qkv)
    q, k, v = ops.split_packed(qkv, num_heads, num_kv_heads)
    _check_tensors(q, k, v)
    _check_options(causal, scale, return_lse, backend)
    table = _table(q, offsets, lengths, block_size, shift, check_offsets)
    rotation = _check_rotary(q, table, rotary, interleaved, rotate_v, start_positions)
    return _attend((qkv, None, None), (q, k, v), table, causal, scale, rotation, return_lse, backend, check_offsets)


def _attend(
    inputs: tuple, heads: tuple[Tensor, ...], table: TileTable, causal: bool, scale: float | None, rotation: tuple,
    return_lse: bool, backend: str | None, check_offsets: bool | None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Call the operator with inputs (q, k, v) or (qkv, None, None), of which `heads` are the views q, k and v."""
    q, k, v = heads
    scale = q.shape[2] ** -0.5 if scale is None else float(scale)
    cos, sin, starts, *options = rotation
    check = q.device.type == "cpu" if check_offsets is None else check_offsets
    if backend == "reference":
        outputs = _reference(q, k, v, table, causal, scale, rotation, check)
    else:
        outputs = ops.call_attention(
            *inputs, table.tiles, cos, sin, starts, q.shape[1], k.shape[1], table.block_size, causal, scale, return_lse,
            *options, check, backend,
        )  # fmt: skip
    return (outputs[0], outputs[1]) if return_lse else outputs[0]


def _reference(
    q: Tensor, k: Tensor, v: Tensor, table: TileTable, causal: bool, scale: float, rotation: tuple, check: bool
) -> list[Tensor]:
    """o in q's dtype and lse in fp32 by the oracle, which reads offsets on the host; NaN where their contents are wrong."""
    try:
        table.check()
    except ValueError:
        wrong = (k.sum() + v.sum()) * torch.nan
        return [q * wrong, (q.sum(2) * wrong).float()]
    rotary = {}
    if rotation[0] is not None:
        cos, sin, starts, per_token, interleaved, rotate_v = rotation
        if check and not per_token:
            check_positions(Rotation(*rotation), table.tiles)
        rotary = dict(
            rotary=RotaryTable(cos, sin, per_token=per_token), interleaved=interleaved, rotate_v=rotate_v,
            start_positions=starts,
        )  # fmt: skip
    o, lse = reference.block_attention(
        q, k, v, table.offsets, lengths=table.lengths, block_size=table.block_size, shift=table.shift, causal=causal,
        scale=scale, **rotary,
    )  # fmt: skip
    return [o.to(q.dtype), lse.float()]


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast to the autocast dtype where autocast is on for the device; fp64 is left alone, as torch does."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)


def head_counts(num_heads: int, num_kv_heads: int | None) -> tuple[int, int]:
    """Hq and Hk, once they are integers that fit each other."""
    num_heads = positive("num_heads", num_heads)
    num_kv_heads = num_heads if num_kv_heads is None else positive("num_kv_heads", num_kv_heads)
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}")
    return num_heads, num_kv_heads


def check_head_dim(name: str, head_dim: int) -> None:
    if head_dim % 8 or not MIN_HEAD_DIM <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"{name} must be a multiple of 8 from {MIN_HEAD_DIM} to {MAX_HEAD_DIM}, got {head_dim}")


def check_rotary_table(rotary: RotaryTable, head_dim: int) -> None:
    """Raise unless the rotary table is one, turns no more than the channels of a head, and is constant."""
    if not isinstance(rotary, RotaryTable):
        raise TypeError(f"rotary must be a RotaryTable or None, got {type(rotary).__name__}")
    if rotary.dim > head_dim:
        raise ValueError(f"rotary must turn at most the {head_dim} channels of q, got R = {rotary.dim}")
    check_constant(rotary.cos, rotary.sin)


def _check_packed(qkv: Tensor, num_heads: int, num_kv_heads: int) -> None:
    check_tensor("qkv", qkv)
    heads = num_heads + 2 * num_kv_heads
    if qkv.ndim == 4:
        fits = qkv.shape[1] == 3 and num_heads == num_kv_heads == qkv.shape[2]
    else:
        fits = qkv.ndim == 3 and qkv.shape[1] == heads
    if not fits and not (qkv.ndim == 2 and qkv.shape[1] % heads == 0):
        raise ValueError(
            f"qkv must have shape [T, {heads} * D], [T, {heads}, D] or, where all heads are as many, "
            f"[T, 3, {num_heads}, D], got {tuple(qkv.shape)}"
        )


_NO_ROTATION = (None, None, None, False, True, False)


def _check_rotary(
    q: Tensor, table: TileTable, rotary: RotaryTable | None, interleaved: bool, rotate_v: bool,
    start_positions: Tensor | None,
) -> tuple:  # fmt: skip
    """cos, sin, start_positions, per_token, interleaved and rotate_v, once they fit q and the table."""
    if rotary is None:
        if start_positions is not None or rotate_v:
            raise ValueError("start_positions and rotate_v are options of rotary, which is None")
        return _NO_ROTATION
    check_rotary_table(rotary, q.shape[2])
    check_bool("interleaved", interleaved)
    check_bool("rotate_v", rotate_v)
    cos, sin = rotary.cos, rotary.sin
    if cos.device != q.device:
        raise ValueError(f"rotary must be on q's device {q.device}, got {cos.device}")
    if rotary.per_token and cos.shape[0] != q.shape[0]:
        raise ValueError(f"rotary must hold a line for each of q's {q.shape[0]} rows, got {cos.shape[0]}")
    if start_positions is not None:
        _check_start_positions(q, table, rotary, start_positions)
    start_positions = None if start_positions is None else start_positions.contiguous()
    return cos, sin, start_positions, rotary.per_token, interleaved, rotate_v


def _check_start_positions(q: Tensor, table: TileTable, rotary: RotaryTable, start_positions: Tensor) -> None:
    if rotary.per_token:
        raise ValueError("start_positions belong to a rotary table by position, got a table per token")
    check_index("start_positions", start_positions, "B")
    sequences = table.offsets.shape[0] - 1
    if tuple(start_positions.shape) != (sequences,):
        raise ValueError(f"start_positions must have shape [{sequences}], got {tuple(start_positions.shape)}")
    if start_positions.device != q.device:
        raise ValueError(f"start_positions must be on q's device {q.device}, got {start_positions.device}")


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    device, dtype = q.device, q.dtype
    if dtype not in DTYPES:
        raise ValueError(f"q must be bfloat16, float16, float32 or float64, got {dtype}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3:
            raise ValueError(f"{name} must have shape [T, heads, D], got {tuple(x.shape)}")
        if x.device != device:
            raise ValueError(f"{name} must be on q's device {device}, got {x.device}")
        if x.dtype != dtype:
            raise ValueError(f"{name} must have q's dtype {dtype}, got {x.dtype}")
    total_rows, heads, head_dim = q.shape
    k_rows, kv_heads, k_head_dim = k.shape
    if dtype == torch.float64 and device.type != "cpu":
        raise ValueError(f"q may be float64 on the CPU only, got {device}")
    check_head_dim("q's head dim D", head_dim)
    if k_rows != total_rows or k_head_dim != head_dim:
        raise ValueError(f"k must have shape [{total_rows}, Hk, {head_dim}] to match q, got {tuple(k.shape)}")
    if v.shape != k.shape:
        raise ValueError(f"v must have k's shape {tuple(k.shape)}, got {tuple(v.shape)}")
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"q's heads must be a positive multiple of k's, got {heads} and {kv_heads}")


def _check_options(causal: bool, scale: float | None, return_lse: bool, backend: str | None) -> None:
    check_bool("causal", causal)
    check_bool("return_lse", return_lse)
    if scale is not None:
        check_number("scale", scale)
        if not abs(scale) <= MAX_SCALE:
            raise ValueError(f"scale must be finite in float32, got {scale}")
    if backend is not None and not isinstance(backend, str):
        raise TypeError(f"backend must be a string or None, got {type(backend).__name__}")
    if backend is not None and backend not in dispatch.BACKENDS:
        raise ValueError(f"backend must be one of {dispatch.BACKENDS} or None, got {backend!r}")


def _table(
    q: Tensor, offsets: Tensor | TileTable, lengths: Tensor | None, block_size: int | None, shift: int | None,
    check_offsets: bool | None,
) -> TileTable:  # fmt: skip
    """The given table, or a new one from offsets, once it fits q."""
    if isinstance(offsets, TileTable):
        for name, value in (("lengths", lengths), ("block_size", block_size), ("shift", shift)):
            if value is not None:
                raise ValueError(
                    f"{name} is part of the TileTable that was given as offsets, so it must be None, got {value}"
                )
        if offsets.total_rows != q.shape[0]:
            raise ValueError(f"offsets must be a TileTable of q's {q.shape[0]} rows, got one of {offsets.total_rows}")
        index = offsets.offsets
    else:
        index = offsets
    if isinstance(index, Tensor) and index.device != q.device:
        raise ValueError(f"offsets must be on q's device {q.device}, got {index.device}")
    if isinstance(offsets, TileTable):
        if check_offsets:
            offsets.check()
        return offsets
    return TileTable.from_offsets(
        offsets,
        total_rows=q.shape[0],
        block_size=64 if block_size is None else block_size,
        shift=0 if shift is None else shift,
        lengths=lengths,
        check_offsets=check_offsets,
    )
