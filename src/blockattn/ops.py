"""The torch operators: schemas, fake shapes, autograd, and FLOP formulas.

    blockattn::build_tiles          offsets, lengths → the tile table
    blockattn::attention            q, k, v, tiles, rotary table → [o] or [o, lse]
    blockattn::attention_backward   do, dlse, q, k, v, tiles, rotary table → [dq, dk, dv] or [dqkv]

q without k and v is the packed form: its heads are q_heads of q, then kv_heads of k, then of v.
Arguments are checked by `blockattn.api`; here they are trusted, except that a named backend is refused where it cannot
serve. The forward keeps its inputs, nothing else. Operators are registered with `torch.library.Library` because `custom_op`
costs three times the host time, and importing this module imports neither triton nor a GPU driver.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import dispatch
from . import tiles as _tiles
from .rotary import Rotation, check_positions

_library = torch.library.Library("blockattn", "DEF")
_library.define(
    "build_tiles(Tensor offsets, Tensor? lengths, SymInt total_rows, int block_size, int shift, bool check) -> Tensor"
)
_INPUTS = (
    "Tensor q, Tensor? k, Tensor? v, Tensor tiles, Tensor? cos, Tensor? sin, Tensor? start_positions, "
    "SymInt q_heads, SymInt kv_heads, int block_size, bool causal, float scale, bool return_lse, bool per_token, "
    "bool interleaved, bool rotate_v, bool check_positions, str? backend"
)
_library.define(f"attention({_INPUTS}) -> Tensor[]")
_library.define(f"attention_backward(Tensor grad_o, Tensor? grad_lse, {_INPUTS}) -> Tensor[]")


build_tiles = torch.ops.blockattn.build_tiles.default
attention = torch.ops.blockattn.attention.default
attention_backward = torch.ops.blockattn.attention_backward.default
_PLAIN = (Tensor, torch.nn.Parameter)  # tensors that no subclass or dispatch mode looks after
_TENSORS = 7  # q, k, v, tiles, cos, sin and start_positions come first


def split_packed(qkv: Tensor, q_heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as views of `[T, (Hq + 2 Hk) · D]`, `[T, Hq + 2 Hk, D]` or `[T, 3, H, D]`."""
    if qkv.ndim == 4:
        return qkv.unbind(1)
    if qkv.ndim == 2:
        qkv = qkv.unflatten(1, (q_heads + 2 * kv_heads, -1))
    return qkv.split([q_heads, kv_heads, kv_heads], 1)


def _build_tiles(
    offsets: Tensor, lengths: Tensor | None, total_rows: int, block_size: int, shift: int, check: bool
) -> Tensor:
    builder = dispatch.tile_builder(offsets.device)
    tiles = builder.build(offsets, lengths, total_rows, block_size, shift)
    if check and tiles[0, 2] == _tiles.POISON:
        _tiles.check_contents(offsets, lengths, total_rows)
    return tiles


def _attention(
    q: Tensor, k: Tensor | None, v: Tensor | None, tiles: Tensor, cos: Tensor | None, sin: Tensor | None,
    start_positions: Tensor | None, q_heads: int, kv_heads: int, block_size: int, causal: bool, scale: float,
    return_lse: bool, per_token: bool, interleaved: bool, rotate_v: bool, check: bool, backend: str | None,
) -> list[Tensor]:  # fmt: skip
    if k is None:
        q, k, v = split_packed(q, q_heads, kv_heads)
    rotation = None if cos is None else Rotation(cos, sin, start_positions, per_token, interleaved, rotate_v)
    if check and rotation is not None and not per_token:
        check_positions(rotation, tiles)
    module = dispatch.kernels(dispatch.resolve(backend, q.device, q.dtype), "forward", rotation is not None)
    return module.forward(q, k, v, tiles, block_size, causal, scale, return_lse, rotation)


def _attention_backward(
    grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor | None, v: Tensor | None, tiles: Tensor,
    cos: Tensor | None, sin: Tensor | None, start_positions: Tensor | None, q_heads: int, kv_heads: int, block_size: int,
    causal: bool, scale: float, _return_lse: bool, per_token: bool, interleaved: bool, rotate_v: bool, _check: bool,
    backend: str | None,
) -> list[Tensor]:  # fmt: skip
    backend = dispatch.resolve(backend, q.device, q.dtype)
    total_rows, spare_rows = q.shape[0], dispatch.SPARE_ROWS[backend]
    outputs = gradients = [_empty_like(x, spare_rows) for x in (q, k, v) if x is not None]
    if k is None:
        q, k, v = split_packed(q, q_heads, kv_heads)
        gradients = split_packed(outputs[0], q_heads, kv_heads)
    rotation = None if cos is None else Rotation(cos, sin, start_positions, per_token, interleaved, rotate_v)
    module = dispatch.kernels(backend, "backward", rotation is not None)
    module.backward(grad_o, grad_lse, q, k, v, tiles, block_size, causal, scale, rotation, tuple(gradients))
    return [x[:total_rows] for x in outputs] if spare_rows else outputs


def _empty_like(x: Tensor, spare_rows: int) -> Tensor:
    """A contiguous tensor of x's shape with spare rows at its end."""
    if not spare_rows:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    return torch.empty((x.shape[0] + spare_rows, *x.shape[1:]), dtype=x.dtype, device=x.device)


_library.impl("build_tiles", _build_tiles, "CompositeExplicitAutograd")
_library.impl("attention", _attention, "CompositeExplicitAutograd")
_library.impl("attention_backward", _attention_backward, "CompositeExplicitAutograd")


@torch.library.register_fake("blockattn::build_tiles", lib=_library)
def _(offsets, lengths, total_rows, block_size, shift, check):
    slots = _tiles.capacity(total_rows, offsets.shape[0] - 1, block_size, shift, lengths is not None)
    return offsets.new_empty((slots, _tiles.COLUMNS), dtype=torch.int64)


@torch.library.register_fake("blockattn::attention", lib=_library)
def _(q, k, v, tiles, cos, sin, start_positions, q_heads, kv_heads, block_size, causal, scale, return_lse, *others):
    shape = (q if k is not None else split_packed(q, q_heads, kv_heads)[0]).shape
    o = q.new_empty(shape)
    return [o, q.new_empty(shape[:2], dtype=torch.float32)] if return_lse else [o]


@torch.library.register_fake("blockattn::attention_backward", lib=_library)
def _(grad_o, grad_lse, q, k, v, *others):
    return [x.new_empty(x.shape) for x in (q, k, v) if x is not None]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, *arguments):
        ctx.save_for_backward(*arguments[:_TENSORS])
        ctx.options = arguments[_TENSORS:]
        return tuple(run(*arguments))

    @staticmethod
    def backward(ctx, grad_o, grad_lse=None):
        gradients = attention_backward(grad_o, grad_lse, *ctx.saved_tensors, *ctx.options)
        nothing = (None,) * (_TENSORS + len(ctx.options) - len(gradients))
        return None, *gradients, *nothing

    @staticmethod
    def jvp(ctx, *tangents):
        raise _lacking("forward mode")


class _AttentionBackward(torch.autograd.Function):
    """The backward as a step of a graph of its own (create_graph=True): it runs, and refuses to be differentiated."""

    @staticmethod
    def forward(ctx, *arguments):
        return tuple(_backward_below_autograd(*arguments))

    @staticmethod
    def backward(ctx, *gradients):
        raise _lacking("second derivative")


def _differentiable(run, *arguments):
    """Call `run`, which computes the forward, and record it for autograd where an input requires a gradient.

    Forward mode is recorded too, so that it raises instead of losing its tangents.
    """
    q, k, v = arguments[:3]
    requires_grad = q.requires_grad or (k is not None and (k.requires_grad or v.requires_grad))
    reverse = requires_grad and torch.is_grad_enabled()
    if reverse or forward_ad._current_level >= 0:
        if torch._C._are_functorch_transforms_active():
            raise _lacking("derivatives inside torch.func")
        return list(_Attention.apply(run, *arguments))
    return run(*arguments)


def _below_autograd(*arguments):
    with torch._C._AutoDispatchBelowAutograd():
        return attention(*arguments)


def _backward_below_autograd(*arguments):
    with torch._C._AutoDispatchBelowAutograd():
        return attention_backward(*arguments)


def _attention_autograd(*arguments):
    return _differentiable(_below_autograd, *arguments)


def _attention_backward_autograd(*arguments):
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
        return list(_AttentionBackward.apply(*arguments))
    return _backward_below_autograd(*arguments)


def _attention_batched(*_arguments):
    raise _lacking("vmap")


def _lacking(what: str) -> NotImplementedError:
    return NotImplementedError(f"block_attention has no {what}, which backend='reference' has")


for _name, _autograd in (("attention", _attention_autograd), ("attention_backward", _attention_backward_autograd)):
    _library.impl(_name, _autograd, "Autograd")
    for _key in ("FuncTorchBatched", "Batched"):  # torch.vmap, and autograd's is_grads_batched
        _library.impl(_name, _attention_batched, _key)


def call_attention(*arguments) -> list[Tensor]:
    """The operator `attention`; passes by torch's dispatcher where nothing looks on, which saves a third of the host time.

    A compiler, a dispatch mode (fake tensors, a flop counter), a tensor subclass, a functorch transform and the profiler
    look on: for them the call goes through the dispatcher.
    """
    if torch.compiler.is_compiling():
        return attention(*arguments)
    register_flops()
    if (
        torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd._profiler_enabled()
    ):
        return attention(*arguments)
    for x in arguments[:_TENSORS]:
        if x is not None and (type(x) not in _PLAIN or x.is_neg() or x.is_meta):
            return attention(*arguments)
    return _differentiable(_attention, *arguments)


def _forward_flops(q_shape, k_shape, v_shape, *others, **_kwargs) -> int:
    """Two products of every row with a whole block: an upper bound, since the last block of a sequence may be shorter."""
    q_heads, kv_heads, block_size = others[_TENSORS - 3 : _TENSORS]
    head_dim = q_shape[-1] if len(q_shape) > 2 else q_shape[1] // (q_heads + 2 * kv_heads)
    return 2 * 2 * q_shape[0] * block_size * q_heads * head_dim


def _backward_flops(grad_o_shape, grad_lse_shape, *others, **_kwargs) -> int:
    """Five products for the forward's two; the scores are recomputed."""
    return _forward_flops(*others) * 5 // 2


_FORMULAS = {torch.ops.blockattn.attention: _forward_flops, torch.ops.blockattn.attention_backward: _backward_flops}


def register_flops() -> None:
    """Give torch's flop counter the formulas, once it has been imported.

    Importing `torch.utils.flop_counter` imports triton, so it is left to the user; a counter that is active already holds
    a copy of torch's formulas and gets ours too.
    """
    counter = sys.modules.get("torch.utils.flop_counter")
    if counter is None:
        return
    if torch.ops.blockattn.attention not in counter.flop_registry:
        for op, formula in _FORMULAS.items():
            counter.register_flop_formula(op)(formula)
    for mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack():
        if isinstance(mode, counter._FlopCounterMode):
            for op in _FORMULAS:
                mode.counter.flop_registry.setdefault(op, counter.flop_registry[op])
