"""The torch operators: schemas, fake shapes, autograd, and FLOP formulas.

    blockattn::build_tiles          offsets, lengths → the tile table
    blockattn::attention            q, k, v, tiles → [o] or [o, lse]
    blockattn::attention_backward   do, dlse, q, k, v, tiles → dq, dk, dv

Arguments are checked by `blockattn.api`; here they are trusted, except that a named backend is refused where it cannot
serve. The forward keeps q, k, v and the table, nothing else. Operators are registered with `torch.library.Library`
because `custom_op` costs three times the host time, and importing this module imports neither triton nor a GPU driver.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import dispatch
from . import tiles as _tiles

_library = torch.library.Library("blockattn", "DEF")
_library.define(
    "build_tiles(Tensor offsets, Tensor? lengths, SymInt total_rows, int block_size, int shift, bool check) -> Tensor"
)
_library.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor tiles, int block_size, bool causal, float scale, bool return_lse, "
    "str? backend) -> Tensor[]"
)
_library.define(
    "attention_backward(Tensor grad_o, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor tiles, int block_size, "
    "bool causal, float scale, str? backend) -> (Tensor, Tensor, Tensor)"
)


build_tiles = torch.ops.blockattn.build_tiles.default
attention = torch.ops.blockattn.attention.default
attention_backward = torch.ops.blockattn.attention_backward.default
_PLAIN = (Tensor, torch.nn.Parameter)  # tensors that no subclass or dispatch mode looks after


def _build_tiles(
    offsets: Tensor, lengths: Tensor | None, total_rows: int, block_size: int, shift: int, check: bool
) -> Tensor:
    builder = dispatch.tile_builder(offsets.device)
    tiles = builder.build(offsets, lengths, total_rows, block_size, shift)
    if check and tiles[0, 2] == _tiles.POISON:
        _tiles.check_contents(offsets, lengths, total_rows)
    return tiles


def _attention(
    q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, block_size: int, causal: bool, scale: float, return_lse: bool,
    backend: str | None,
) -> list[Tensor]:  # fmt: skip
    module = dispatch.kernels(dispatch.resolve(backend, q.device, q.dtype), "forward")
    return module.forward(q, k, v, tiles, block_size, causal, scale, return_lse)


def _attention_backward(
    grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, block_size: int,
    causal: bool, scale: float, backend: str | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    module = dispatch.kernels(dispatch.resolve(backend, q.device, q.dtype), "backward")
    return module.backward(grad_o, grad_lse, q, k, v, tiles, block_size, causal, scale)


_library.impl("build_tiles", _build_tiles, "CompositeExplicitAutograd")
_library.impl("attention", _attention, "CompositeExplicitAutograd")
_library.impl("attention_backward", _attention_backward, "CompositeExplicitAutograd")


@torch.library.register_fake("blockattn::build_tiles", lib=_library)
def _(offsets, lengths, total_rows, block_size, shift, check):
    slots = _tiles.capacity(total_rows, offsets.shape[0] - 1, block_size, shift, lengths is not None)
    return offsets.new_empty((slots, 3), dtype=torch.int64)


@torch.library.register_fake("blockattn::attention", lib=_library)
def _(q, k, v, tiles, block_size, causal, scale, return_lse, backend):
    o = q.new_empty(q.shape)
    return [o, q.new_empty(q.shape[:2], dtype=torch.float32)] if return_lse else [o]


@torch.library.register_fake("blockattn::attention_backward", lib=_library)
def _(grad_o, grad_lse, q, k, v, tiles, block_size, causal, scale, backend):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, q, k, v, tiles, block_size, causal, scale, return_lse, backend):
        ctx.save_for_backward(q, k, v, tiles)
        ctx.options = (block_size, causal, scale, backend)
        return tuple(run(q, k, v, tiles, block_size, causal, scale, return_lse, backend))

    @staticmethod
    def backward(ctx, grad_o, grad_lse=None):
        gradients = attention_backward(grad_o, grad_lse, *ctx.saved_tensors, *ctx.options)
        return None, *gradients, None, None, None, None, None, None


class _AttentionBackward(torch.autograd.Function):
    """The backward as a step of a graph of its own (create_graph=True): it runs, and refuses to be differentiated."""

    @staticmethod
    def forward(ctx, *arguments):
        return _backward_below_autograd(*arguments)

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError("block_attention has no second derivative; backend='reference' has one")


def _differentiable(run, *arguments):
    """Call `run`, which computes the forward, and record it for autograd where an input requires a gradient.

    Forward mode is recorded too, so that it raises instead of losing its tangents.
    """
    q, k, v = arguments[:3]
    reverse = (q.requires_grad or k.requires_grad or v.requires_grad) and torch.is_grad_enabled()
    if reverse or forward_ad._current_level >= 0:
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
        return _AttentionBackward.apply(*arguments)
    return _backward_below_autograd(*arguments)


_library.impl("attention", _attention_autograd, "Autograd")
_library.impl("attention_backward", _attention_backward_autograd, "Autograd")


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
    for x in arguments[:4]:
        if type(x) not in _PLAIN or x.is_neg() or x.is_meta:
            return attention(*arguments)
    return _differentiable(_attention, *arguments)


def _forward_flops(q_shape, k_shape, v_shape, tiles_shape, block_size, *_args, **_kwargs) -> int:
    """Two products of every row with a whole block: an upper bound, since the last block of a sequence may be shorter."""
    total_rows, heads, head_dim = q_shape
    return 2 * 2 * total_rows * block_size * heads * head_dim


def _backward_flops(
    grad_o_shape, grad_lse_shape, q_shape, k_shape, v_shape, tiles_shape, block_size, *_args, **_kwargs
) -> int:
    """Five products for the forward's two; the scores are recomputed."""
    return _forward_flops(q_shape, k_shape, v_shape, tiles_shape, block_size) * 5 // 2


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
