"""Inputs, the error budget and the comparison behind every parity test, here and on a GPU.

A `Case` names a batch and how its tensors lie in memory; `compare` runs a backend on it, forward and backward, against the
fp64 oracle, with NaN in every row that no sequence uses. The budget is not chosen: it is the error that the oracle's own
loop makes when it computes in the working dtype. That loop rounds all that a kernel may round (p, ds and the results) and
more (s, dp and each sum), so a right kernel stays below it on average (RMS); the largest of many errors may come out up to
twice as large. Two terms are added to both: one rounding of the result, and one rounding of fp32 (fp64 for fp64) of what
the sums would be if nothing cancelled, since sums in another order cancel differently.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from . import reference
from .api import block_attention, block_attention_packed
from .rotary import RotaryTable, turn

RESULTS = ("o", "lse", "dq", "dk", "dv")
LAYOUTS = ("contiguous", "packed", "heads_first", "odd_rows", "mixed")


@dataclasses.dataclass(frozen=True)
class Case:
    """A jagged batch and the options of a call.

    spans: rows of each sequence; used: how many of them are used (None: all); before, after: rows outside every sequence;
    layout: how q, k and v lie in memory (LAYOUTS); grad_layout: "contiguous", "packed" or "expanded" (stride 0). rotary: ""
    for none, "token" or "position", for a table of table_dtype that turns dim channels (0: all); starts: whether sequences
    have start positions. packed: "" or the shape of one tensor, "flat" `[T, heads · D]`, "heads" `[T, heads, D]` or "three"
    `[T, 3, H, D]`, which then lies as grad_layout says.
    """

    spans: tuple[int, ...]
    used: tuple[int, ...] | None = None
    before: int = 0
    after: int = 0
    q_heads: int = 4
    kv_heads: int = 4
    head_dim: int = 64
    block_size: int = 64
    shift: int = 0
    causal: bool = False
    scale: float | None = None
    dtype: torch.dtype = torch.float32
    layout: str = "contiguous"
    grad_layout: str = "contiguous"
    rotary: str = ""
    dim: int = 0
    interleaved: bool = True
    rotate_v: bool = False
    starts: bool = False
    table_dtype: torch.dtype = torch.float32
    packed: str = ""

    def __str__(self) -> str:
        parts = ["x".join(map(str, self.spans[:6])) + ("..." if len(self.spans) > 6 else "") or "empty"]
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                parts.append(f"{field.name}={value}".replace("torch.", "").replace(" ", ""))
        return "-".join(parts)

    @property
    def total_rows(self) -> int:
        return self.before + sum(self.spans) + self.after

    def offsets(self, device: torch.device | str) -> Tensor:
        return torch.tensor([*itertools.accumulate(self.spans, initial=self.before)], device=device)

    def lengths(self, device: torch.device | str) -> Tensor | None:
        return None if self.used is None else torch.tensor(self.used, device=device)

    def options(self) -> dict:
        return dict(block_size=self.block_size, shift=self.shift, causal=self.causal, scale=self.scale)

    def used_rows(self, device: torch.device | str) -> Tensor:
        """`[T]` bool: the rows that some sequence uses."""
        mask = torch.zeros(self.total_rows, dtype=torch.bool)
        for begin, rows in zip(self.offsets("cpu").tolist(), self.spans if self.used is None else self.used, strict=False):
            mask[begin : begin + rows] = True
        return mask.to(device)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """q, k, v (leaves that require grad), the gradients of o and lse, offsets, lengths, and the rotary table if any."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad_o: Tensor
    grad_lse: Tensor
    offsets: Tensor
    lengths: Tensor | None
    rotary: RotaryTable | None = None
    start_positions: Tensor | None = None

    def rotary_options(self, case: Case) -> dict:
        """The rotary arguments of a call."""
        if self.rotary is None:
            return {}
        options = dict(interleaved=case.interleaved, rotate_v=case.rotate_v, start_positions=self.start_positions)
        return dict(rotary=self.rotary, **options)


def make_inputs(case: Case, device: torch.device | str = "cpu", seed: int = 0, unused: float = torch.nan) -> Inputs:
    """Normal random inputs of a case, `unused` in every row that no sequence uses, gradients included."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    used = case.used_rows("cpu")[:, None, None]

    def normal(heads: int, *rest: int) -> Tensor:
        x = torch.randn(case.total_rows, heads, *rest, generator=generator)
        return x.where(used if rest else used[..., 0], unused)

    heads = (case.q_heads, case.kv_heads, case.kv_heads)
    q, k, v = place([normal(h, case.head_dim).to(device, case.dtype) for h in heads], case.layout)
    if case.grad_layout == "expanded":
        grad_o = torch.ones((), dtype=case.dtype, device=device).expand(q.shape)
    else:
        grad_o = place([normal(case.q_heads, case.head_dim).to(device, case.dtype)], case.grad_layout)[0]
    grad_lse = normal(case.q_heads).to(device)
    leaves = (x.detach().requires_grad_() for x in (q, k, v))
    rotary, starts = _make_rotary(case, device, generator)
    return Inputs(*leaves, grad_o, grad_lse, case.offsets(device), case.lengths(device), rotary, starts)


def _make_rotary(case: Case, device: torch.device | str, generator) -> tuple[RotaryTable | None, Tensor | None]:
    """A table of random angles, its cosine and sine as views of one tensor, and start positions up to 100."""
    if not case.rotary:
        return None, None
    starts = torch.randint(0, 100, (len(case.spans),), generator=generator) if case.starts else None
    lines = case.total_rows if case.rotary == "token" else max([1, *case.spans]) + (100 if case.starts else 0)
    half = (case.dim or case.head_dim) // 2
    angles = torch.rand(lines, half, generator=generator, dtype=torch.float64) * 6.3
    table = torch.cat([angles.sin(), angles.cos()], 1).to(device, case.table_dtype)
    sin, cos = table.chunk(2, 1)
    return RotaryTable(cos, sin, per_token=case.rotary == "token"), None if starts is None else starts.to(device)


def place(tensors: list[Tensor], layout: str) -> list[Tensor]:
    """The same values, lying in memory as the layout says."""
    if layout == "contiguous":
        return tensors
    if layout == "heads_first":
        return [x.transpose(0, 1).contiguous().transpose(0, 1) for x in tensors]
    if layout == "mixed":  # each tensor has strides of its own
        return [place([x], other)[0] for x, other in zip(tensors, ("odd_rows", "heads_first", "contiguous"), strict=False)]
    widths = [x[0].numel() for x in tensors] if tensors[0].shape[0] else [x.shape[1] * x.shape[2] for x in tensors]
    spare = {"packed": 0, "odd_rows": 3}[layout]
    buffer = tensors[0].new_full((tensors[0].shape[0], sum(widths) + spare), torch.nan)
    views = buffer[:, : sum(widths)].split(widths, 1)
    placed = []
    for x, view in zip(tensors, views, strict=True):
        view = view.unflatten(1, x.shape[1:])
        placed.append(view.copy_(x))
    return placed


def run(case: Case, inputs: Inputs, backend: str | None, table=None, with_lse: bool = True) -> dict[str, Tensor]:
    """o, lse, dq, dk and dv of a backend."""
    options = dict(lengths=inputs.lengths, block_size=case.block_size, shift=case.shift) if table is None else {}
    options |= dict(causal=case.causal, scale=case.scale, return_lse=True, backend=backend)
    options |= inputs.rotary_options(case)
    index = inputs.offsets if table is None else table
    if case.packed:
        leaves = [pack(case, [x.detach() for x in (inputs.q, inputs.k, inputs.v)]).requires_grad_()]
        o, lse = block_attention_packed(leaves[0], index, num_heads=case.q_heads, num_kv_heads=case.kv_heads, **options)
    else:
        leaves = [x.detach().requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
        o, lse = block_attention(*leaves, index, **options)
    outputs, weights = ([o, lse], [inputs.grad_o, inputs.grad_lse]) if with_lse else ([o], [inputs.grad_o])
    gradients = torch.autograd.grad(outputs, leaves, weights)
    if case.packed:
        gradient = gradients[0].reshape(case.total_rows, case.q_heads + 2 * case.kv_heads, case.head_dim)
        gradients = gradient.split([case.q_heads, case.kv_heads, case.kv_heads], 1)
    return dict(zip(RESULTS, (o.detach(), lse.detach(), *gradients), strict=True))


def pack(case: Case, tensors: list[Tensor]) -> Tensor:
    """q, k and v as one tensor of the case's packed shape; a view of wider rows unless grad_layout is "contiguous"."""
    qkv = torch.cat(tensors, 1)
    if case.grad_layout != "contiguous":
        qkv = torch.cat([qkv, torch.full_like(qkv[:, :1], torch.nan)], 1)[:, :-1]
    shapes = {"flat": (-1,), "heads": (-1, case.head_dim), "three": (3, case.q_heads, case.head_dim)}
    return qkv.flatten(1).unflatten(1, shapes[case.packed]) if case.packed != "heads" else qkv


def oracle(
    case: Case, inputs: Inputs, compute_dtype: torch.dtype, with_lse: bool = True, matmul: Callable = torch.matmul
) -> dict[str, Tensor]:
    """o, lse, dq, dk and dv of the reference loop in compute_dtype; zeros stand in for the rows that no sequence uses."""
    used = case.used_rows(inputs.q.device)[:, None, None]
    leaves = [x.detach().where(used, 0).to(compute_dtype).requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
    o, lse = reference.block_attention(
        *leaves, inputs.offsets, lengths=inputs.lengths, compute_dtype=compute_dtype, matmul=matmul, **case.options(),
        **inputs.rotary_options(case),
    )  # fmt: skip
    loss = (o * inputs.grad_o.where(used, 0).to(compute_dtype)).sum(dtype=torch.float64)
    if with_lse:
        used_lse = lse.where(used[..., 0], 0).double()
        loss = loss + (used_lse * inputs.grad_lse.where(used[..., 0], 0)).sum()
    gradients = torch.autograd.grad(loss, leaves)
    return dict(zip(RESULTS, (o.detach(), lse.detach(), *gradients), strict=True))


def _tf32(x: Tensor) -> Tensor:
    """Cut fp32 to TF32's ten bits of mantissa, as the tensor cores do with an fp32 operand."""
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


class Tf32Matmul(torch.autograd.Function):
    """A product of fp32 matrices whose operands and result are TF32, in both directions."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        a, b = _tf32(a), _tf32(b)
        ctx.save_for_backward(a, b)
        return _tf32(a @ b)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        grad = _tf32(grad)
        return _tf32(grad @ b.mT), _tf32(a.mT @ grad)


def uncancelled(case: Case, inputs: Inputs, with_lse: bool = True) -> dict[str, Tensor]:
    """To first order, how far each result moves for a relative error of 1 in every product and sum: Σ of absolute terms."""
    device = inputs.q.device
    sizes = [
        torch.zeros(x.shape, dtype=torch.float64, device=device)
        for x in (inputs.q, inputs.grad_lse, inputs.q, inputs.k, inputs.v)
    ]
    numbers = _tile_numbers(case).to(device)
    angles = _angles(case, inputs)
    for number in numbers.unique().tolist():
        if number < 0:
            continue
        rows = (numbers == number).nonzero().squeeze(1)
        tensors = (inputs.q, inputs.k, inputs.v, inputs.grad_o, inputs.grad_lse[..., None] * with_lse)
        tile = [x.detach()[rows].double().transpose(0, 1) for x in tensors]
        turned = 0 if angles is None else 3 if case.rotate_v else 2
        cos_sin = [x[rows] for x in angles] if turned else ()
        tile[:turned] = [turn(x, *cos_sin, case.interleaved) for x in tile[:turned]]
        values = list(_uncancelled_tile(case, *tile))
        for i in range(2, 2 + turned):
            values[i] = _turned_size(values[i], *cos_sin, case.interleaved)
        for size, value in zip(sizes, values, strict=True):
            size[rows] = value.transpose(0, 1)
    return dict(zip(RESULTS, sizes, strict=True))


def _angles(case: Case, inputs: Inputs) -> tuple[Tensor, Tensor] | None:
    """Cosine and sine `[T, R/2]` in fp64 of each row; those of rows outside sequences are not used."""
    if inputs.rotary is None:
        return None
    lines = torch.arange(case.total_rows)
    if case.rotary == "position":
        for b, (begin, rows) in enumerate(zip(case.offsets("cpu").tolist(), case.spans, strict=False)):
            first = 0 if inputs.start_positions is None else int(inputs.start_positions[b])
            lines[begin : begin + rows] = torch.arange(first, first + rows)
        lines.clamp_(max=inputs.rotary.cos.shape[0] - 1)
    return tuple(x[lines.to(x.device)].double() for x in (inputs.rotary.cos, inputs.rotary.sin))


def _turned_size(size: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Σ of absolute terms of a rotation, either way."""
    cos, sin = cos.abs(), sin.abs()
    return torch.maximum(turn(size, cos, sin, interleaved), turn(size, cos, -sin, interleaved))


def _uncancelled_tile(case: Case, q: Tensor, k: Tensor, v: Tensor, do: Tensor, dlse: Tensor) -> tuple[Tensor, ...]:
    """The same for one tile, heads first: q, do `[Hq, n, D]`, k, v `[Hk, n, D]`, dlse `[Hq, n, 1]`."""
    group = case.q_heads // case.kv_heads
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    hidden = torch.full((q.shape[1], q.shape[1]), case.causal, device=q.device).triu(1)
    p = (q @ k.mT * scale).masked_fill(hidden, -torch.inf).softmax(-1)
    s_size = (q.abs() @ k.abs().mT * abs(scale)).masked_fill(hidden, 0)
    p_size = p * (1 + s_size + (p * s_size).sum(-1, keepdim=True))
    dp, dp_size = do @ v.mT, do.abs() @ v.abs().mT
    slope = dp - (p * dp).sum(-1, keepdim=True) + dlse
    slope_size = dp_size + (p_size * dp_size).sum(-1, keepdim=True) + dlse.abs()
    ds_size = abs(scale) * (p * slope_size + p_size * slope.abs())

    def of_kv_heads(x: Tensor) -> Tensor:
        return x.unflatten(0, (case.kv_heads, group)).sum(1)

    return (
        p_size @ v.abs(),
        1 + (p * s_size).sum(-1),
        ds_size @ k.abs(),
        of_kv_heads(ds_size.mT @ q.abs()),
        of_kv_heads(p_size.mT @ do.abs()),
    )


def _tile_numbers(case: Case) -> Tensor:
    """`[T]`: a number for each row that only the rows of its block share; -1 in unused rows."""
    numbers = torch.full((case.total_rows,), -1)
    used = case.spans if case.used is None else case.used
    for b, (begin, rows) in enumerate(zip(case.offsets("cpu").tolist(), used, strict=False)):
        place = torch.arange(rows) + (case.block_size - case.shift if case.shift else 0)
        numbers[begin : begin + rows] = b * (case.total_rows + 1) + place // case.block_size
    return numbers


def compare(
    case: Case, inputs: Inputs, results: dict[str, Tensor], multiplies_in_tf32: bool = False, with_lse: bool = True
) -> list[str]:
    """What is wrong with the results, a line each; empty when all are within budget and unused rows are 0 (lse -inf)."""
    truth = oracle(case, inputs, torch.float64, with_lse)
    matmul = Tf32Matmul.apply if multiplies_in_tf32 and case.dtype == torch.float32 else torch.matmul
    working = oracle(case, inputs, case.dtype, with_lse, matmul)
    sizes = uncancelled(case, inputs, with_lse)
    used = case.used_rows(inputs.q.device)
    sum_eps = torch.finfo(torch.promote_types(case.dtype, torch.float32)).eps
    wrong = []
    for name in RESULTS:
        result = results[name]
        unused_value = -torch.inf if name == "lse" else 0
        if not (result[~used] == unused_value).all():
            wrong.append(f"{name}: rows that no sequence uses must be {unused_value}")
        got, want, loop = (x[used].double() for x in (result, truth[name], working[name]))
        spare = sum_eps * sizes[name][used] + torch.finfo(result.dtype).eps / 2 * want.abs()
        wrong += [f"{name}: {line}" for line in over_budget(got, want, loop, spare)]
    return wrong


def over_budget(got: Tensor, want: Tensor, loop: Tensor, spare: Tensor) -> list[str]:
    """Compare with the truth `want`; `loop` is the working dtype's own result, `spare` what is added to its error."""
    if got.numel() == 0:
        return []
    if not got.isfinite().all():
        return [f"{int((~got.isfinite()).sum())} of {got.numel()} values are not finite"]
    error, allowed = (got - want).abs(), (loop - want).abs()
    rms, rms_budget = error.square().mean().sqrt(), allowed.square().mean().sqrt() + spare.square().mean().sqrt()
    largest, budget = error.max(), 2 * allowed.max() + spare.max()
    found = []
    if rms > rms_budget:
        found.append(f"RMS error {rms:.3g} > {rms_budget:.3g}")
    if largest > budget:
        found.append(f"largest error {largest:.3g} > {budget:.3g}")
    return found
