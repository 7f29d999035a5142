"""Rotary embedding and packed tensors: every backend equals the oracle, which rotates by products of complex numbers."""

import dataclasses

import pytest
import torch

from backends import BACKENDS, DTYPES, HAS_GPU, multiplies_in_tf32
from blockattn import RotaryTable, TileTable, block_attention, block_attention_packed
from blockattn.rotary import Rotation, turn
from blockattn.testing import Case, compare, make_inputs, pack, run

USUAL = Case((0, 1, 63, 64, 65, 150, 0), used=(0, 1, 60, 64, 32, 147, 0), before=3, after=2, q_heads=2, kv_heads=2)
TOKEN = dataclasses.replace(USUAL, rotary="token")
POSITION = dataclasses.replace(USUAL, rotary="position", starts=True)
GQA = dict(q_heads=4, kv_heads=2)

CASES = [
    TOKEN,
    dataclasses.replace(TOKEN, interleaved=False, rotate_v=True, **GQA),
    dataclasses.replace(TOKEN, dim=48, rotate_v=True, layout="packed", table_dtype=torch.bfloat16),
    dataclasses.replace(TOKEN, dim=48, interleaved=False, layout="mixed", causal=True),
    POSITION,
    dataclasses.replace(POSITION, starts=False, shift=17, interleaved=False),
    dataclasses.replace(POSITION, dim=2, shift=5, causal=True, **GQA),
    dataclasses.replace(POSITION, grad_layout="expanded", scale=-0.7),
    *[dataclasses.replace(USUAL, packed=packed, grad_layout=layout)
      for packed, layout in (("flat", "contiguous"), ("heads", "packed"), ("three", "packed"))],
    dataclasses.replace(TOKEN, packed="flat", rotate_v=True, **GQA),
    dataclasses.replace(POSITION, packed="three", grad_layout="packed", interleaved=False, dim=16, q_heads=3, kv_heads=3),
    Case((), after=70, rotary="token", packed="heads"),
    Case((0, 0), rotary="position", packed="flat"),
    *[
        Case((1, n - 1, n + 5), None, 0, 2, 2, 1, d, n, rotary="position", dim=r, interleaved=i, rotate_v=v)
        for n, d, r, i, v in (
            (16, 16, 16, True, False), (16, 256, 256, False, True), (32, 24, 8, True, True), (32, 72, 40, False, False),
            (64, 136, 136, True, True), (128, 40, 40, False, False), (128, 128, 128, True, True),
        )
    ],
    Case((3, 65), before=1, after=65, head_dim=256, rotary="token", rotate_v=True, q_heads=2, kv_heads=2, layout="mixed"),
]  # fmt: skip


def with_dtypes(backend):
    for case in CASES:
        every = case in (TOKEN, CASES[-2])
        for dtype in DTYPES[backend] if every else DTYPES[backend][:1]:
            yield dataclasses.replace(case, dtype=dtype)


@pytest.mark.parametrize(("backend", "case"), [pytest.param(b, c, id=f"{b}-{c}") for b in BACKENDS for c in with_dtypes(b)])
def test_both_directions_equal_the_oracle(backend, case, device):
    inputs = make_inputs(case, device)
    assert compare(case, inputs, run(case, inputs, backend), multiplies_in_tf32(backend)) == []


@pytest.mark.parametrize("name", ["dq", "dk", "dv", "o"])
def test_the_comparison_rejects_wrong_results(name, device):
    inputs = make_inputs(TOKEN, device)
    results = run(TOKEN, inputs, "torch")
    results[name][TOKEN.used_rows(device)] *= 1.01
    assert any(line.startswith(name) for line in compare(TOKEN, inputs, results, multiplies_in_tf32("torch")))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrong", ["interleaved", "start_positions", "rotate_v", "sign"])
def test_the_comparison_rejects_another_rotation(backend, wrong, device):
    inputs = make_inputs(POSITION, device)
    other, case = inputs, POSITION
    if wrong == "interleaved":
        case = dataclasses.replace(POSITION, interleaved=False)
    elif wrong == "rotate_v":
        case = dataclasses.replace(POSITION, rotate_v=True)
    elif wrong == "sign":
        table = RotaryTable(inputs.rotary.cos, -inputs.rotary.sin, per_token=False)
        other = dataclasses.replace(inputs, rotary=table)
    else:
        other = dataclasses.replace(inputs, start_positions=inputs.start_positions + torch.arange(7, device=device) % 2)
    assert compare(POSITION, inputs, run(case, other, backend), multiplies_in_tf32(backend))


def test_a_turn_is_a_product_of_complex_numbers():
    x = torch.randn(5, 3, 12, dtype=torch.float64)
    angle = torch.randn(5, 1, 4, dtype=torch.float64)
    turned = turn(x, angle.cos(), angle.sin(), interleaved=True)
    pairs = torch.view_as_complex(x[..., :8].unflatten(-1, (4, 2)).contiguous()) * torch.polar(torch.ones_like(angle), angle)
    assert torch.allclose(turned, torch.cat([torch.view_as_real(pairs).flatten(-2), x[..., 8:]], -1))
    halves = turn(x, angle.cos(), angle.sin(), interleaved=False)
    order = [0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11]
    assert torch.allclose(halves[..., order], turn(x[..., order], angle.cos(), angle.sin(), interleaved=True))
    assert torch.allclose(turn(turned, angle.cos(), -angle.sin(), interleaved=True), x)


def call(backend, rotary, device, dtype=torch.float32, **options):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(100, 2, 32, generator=generator).to(device, dtype).requires_grad_() for _ in range(3))
    o = block_attention(q, k, v, torch.tensor([0, 30, 100], device=device), rotary=rotary, backend=backend, **options)
    return o.detach(), *torch.autograd.grad(o, (q, k, v), torch.ones_like(o))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("interleaved", [True, False])
def test_a_common_angle_leaves_the_scores_unchanged(backend, interleaved, device):
    angle = torch.full((100, 16), 0.7, device=device)
    turned = call(backend, RotaryTable(angle.cos(), angle.sin(), per_token=True), device, interleaved=interleaved)
    for got, want in zip(turned, call(backend, None, device), strict=True):
        assert torch.allclose(got, want, rtol=1e-3, atol=2e-3 if HAS_GPU else 2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_angle_of_zero_is_no_rotation(backend, device):
    table = RotaryTable(torch.ones(100, 16, device=device), torch.zeros(100, 16, device=device), per_token=True)
    for got, want in zip(call(backend, table, device), call(backend, None, device), strict=True):
        assert torch.allclose(got, want, rtol=1e-3 if HAS_GPU else 2e-6, atol=1e-3 if HAS_GPU else 2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", [TOKEN, dataclasses.replace(POSITION, interleaved=False, rotate_v=True)], ids=str)
def test_errors_are_those_of_turning_in_fp32_outside(backend, case, device):
    """RMS error of each result at most 1.02 times that of turning in fp32 outside, rounding, and turning back in fp32."""
    case = dataclasses.replace(case, dtype=torch.bfloat16 if HAS_GPU or backend == "torch" else torch.float16)
    inputs = make_inputs(case, device, unused=0.0)
    from blockattn.testing import _angles, oracle

    cos, sin = (x.float()[:, None] for x in _angles(case, inputs))
    leaves = [x.detach().float().requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
    turned = [turn(x, cos, sin, case.interleaved).to(case.dtype) if i < 2 + case.rotate_v else x.to(case.dtype)
              for i, x in enumerate(leaves)]  # fmt: skip
    o = block_attention(*turned, inputs.offsets, lengths=inputs.lengths, backend=backend)
    outside = dict(zip(("o", "dq", "dk", "dv"), (o, *torch.autograd.grad(o, leaves, inputs.grad_o)), strict=True))
    fused = run(case, inputs, backend, with_lse=False)
    truth = oracle(case, inputs, torch.float64, with_lse=False)
    used = case.used_rows(device)
    for name, other in outside.items():
        mine, theirs = ((x.to(case.dtype).double() - truth[name])[used].square().mean().sqrt() for x in (fused[name], other))
        assert mine <= 1.02 * theirs, name


def test_from_theta_is_exact_to_fp32_far_out():
    table = RotaryTable.from_theta(64, 100_001)
    position, pair = 100_000, torch.arange(32, dtype=torch.float64)
    angle = position * 1e4 ** (-2 * pair / 64)
    assert (table.cos[position].double() - angle.cos()).abs().max() <= 2**-24
    assert (table.sin[position].double() - angle.sin()).abs().max() <= 2**-24
    assert table.dim == 64


def test_from_sin_cos_are_views():
    table = torch.randn(10, 8)
    rotary = RotaryTable.from_sin_cos(table)
    assert rotary.per_token
    assert rotary.sin.data_ptr() == table.data_ptr()
    assert rotary.cos.equal(table[:, 4:])


HALF = torch.ones(70, 16)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: RotaryTable([1], HALF, per_token=True), TypeError, "cos must be a tensor, got list"),
        (lambda: RotaryTable(HALF[0], HALF, per_token=True), ValueError, "cos must have shape"),
        (lambda: RotaryTable(HALF, HALF[:3], per_token=True), ValueError, "sin must have cos's shape"),
        (lambda: RotaryTable(HALF, HALF.half(), per_token=True), ValueError, "sin must have cos's dtype"),
        (lambda: RotaryTable(HALF.double(), HALF.double(), per_token=True), ValueError, "cos must be float32, bfloat16"),
        (lambda: RotaryTable(HALF, HALF.clone().requires_grad_(), per_token=True), ValueError, "sin must not require"),
        (lambda: RotaryTable(HALF, HALF, per_token=1), TypeError, "per_token must be True or False"),
        (lambda: RotaryTable(HALF[:0], HALF[:0], per_token=False), ValueError, "at least one position"),
        (lambda: RotaryTable.from_sin_cos(torch.ones(3, 5)), ValueError, "an even R"),
        (lambda: RotaryTable.from_theta(63, 10), ValueError, "dim must be even"),
        (lambda: RotaryTable.from_theta(64.0, 10), TypeError, "dim must be an integer"),
        (lambda: RotaryTable.from_theta(64, 0), ValueError, "max_position must be at least 1"),
        (lambda: RotaryTable.from_theta(64, 4, theta=0), ValueError, "theta must be above 0"),
    ],
)
def test_a_wrong_table_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def attend(**options):
    q = torch.randn(70, 2, 32)
    return block_attention(q, q, q, torch.tensor([0, 70]), **options)


TABLE, BY_POSITION = RotaryTable(HALF, HALF, per_token=True), RotaryTable(HALF, HALF, per_token=False)
WIDE = RotaryTable(torch.ones(70, 17), torch.ones(70, 17), per_token=True)
SHORT = RotaryTable(HALF[:69], HALF[:69], per_token=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(rotary=HALF), TypeError, "rotary must be a RotaryTable or None, got Tensor"),
        (dict(rotary=WIDE), ValueError, "rotary must turn at most the 32 channels of q, got R = 34"),
        (dict(rotary=SHORT), ValueError, "rotary must hold a line for each of q's 70 rows, got 69"),
        (dict(rotary=TABLE, interleaved=1), TypeError, "interleaved must be True or False"),
        (dict(rotary=TABLE, rotate_v=None), TypeError, "rotate_v must be True or False"),
        (dict(rotate_v=True), ValueError, "options of rotary"),
        (dict(start_positions=torch.tensor([0])), ValueError, "options of rotary"),
        (dict(rotary=TABLE, start_positions=torch.tensor([0])), ValueError, "table by position, got a table per token"),
        (dict(rotary=BY_POSITION, start_positions=[0]), TypeError, "start_positions must be a tensor"),
        (dict(rotary=BY_POSITION, start_positions=torch.tensor([0.0])), ValueError, "must be int32 or int64"),
        (dict(rotary=BY_POSITION, start_positions=torch.tensor([0, 0])), ValueError, r"must have shape \[1\]"),
        (
            dict(rotary=BY_POSITION, start_positions=torch.tensor([1])),
            ValueError,
            r"reaches 70 from start_positions\[0\] = 1",
        ),
        (dict(rotary=BY_POSITION, start_positions=torch.tensor([-1])), ValueError, r"start_positions\[0\] = -1"),
    ],
)
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_wrong_rotary_arguments_are_named(options, error, message, backend):
    with pytest.raises(error, match=message):
        attend(backend=backend, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start", [-1, 41, 2**40, -(2**62), 2**63 - 30, 2**63 - 1])
def test_a_position_outside_the_table_makes_its_block_nan(backend, start, device):
    """Every row of such a tile, gradients too, even where a position passes int64; the other tiles are as they were."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(200, 2, 32, generator=generator).to(device).requires_grad_() for _ in range(3))
    ones, offsets = torch.ones(110, 8, device=device), torch.tensor([0, 100, 200], device=device)

    def results(first):
        starts = torch.tensor([first, 0], device=device)
        options = dict(start_positions=starts, check_offsets=False, backend=backend, return_lse=True)
        o, lse = block_attention(q, k, v, offsets, rotary=RotaryTable(ones, ones, per_token=False), **options)
        return o, lse, *torch.autograd.grad([o, lse], [q, k, v], [torch.ones_like(o), torch.ones_like(lse)])

    bad = slice(64, 100) if start == 41 else slice(0, 64) if start == -1 else slice(0, 100)
    rows = torch.zeros(200, dtype=torch.bool, device=device)
    rows[bad] = True
    for x, inside in zip(results(start), results(0), strict=True):
        assert x[rows].isnan().all()
        assert torch.allclose(x[~rows], inside[~rows], rtol=1e-4, atol=1e-5)
        assert inside.isfinite().all()


@pytest.mark.parametrize(
    ("qkv", "options", "message"),
    [
        (torch.ones(5, 100), dict(num_heads=4), r"qkv must have shape \[T, 12 \* D\], \[T, 12, D\]"),
        (torch.ones(5, 11, 32), dict(num_heads=4), "qkv must have shape"),
        (torch.ones(5, 3, 4, 32), dict(num_heads=4, num_kv_heads=2), "qkv must have shape"),
        (torch.ones(5, 2, 4, 32), dict(num_heads=4), "qkv must have shape"),
        (torch.ones(5), dict(num_heads=1), "qkv must have shape"),
        (torch.ones(5, 12, 20), dict(num_heads=4), "multiple of 8"),
        (torch.ones(5, 12, 32), dict(num_heads=4, num_kv_heads=3), "num_heads must be a multiple of num_kv_heads"),
        (torch.ones(5, 12, 32), dict(num_heads=0), "num_heads must be at least 1"),
    ],
)
def test_wrong_packed_arguments_are_named(qkv, options, message):
    with pytest.raises(ValueError, match=message):
        block_attention_packed(qkv, torch.tensor([0, 5]), **options)


def test_wrong_packed_types_are_named():
    with pytest.raises(TypeError, match="qkv must be a tensor"):
        block_attention_packed([1], torch.tensor([0]), num_heads=1)
    with pytest.raises(TypeError, match="num_heads must be an integer"):
        block_attention_packed(torch.ones(1, 96), torch.tensor([0, 1]), num_heads=1.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("interleaved", [True, False])
def test_fp32_tables(backend, interleaved, device):
    """q in 16 bits, tables in fp32, positions to 10⁵: the error is that of tables in fp64 (flash-attention#823)."""
    dtype = torch.bfloat16 if HAS_GPU or backend == "torch" else torch.float16
    generator = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(70, 2, 64, generator=generator).to(device, dtype) for _ in range(4))
    offsets, starts = torch.tensor([0, 3, 70], device=device), torch.tensor([99_900, 5], device=device)
    table = RotaryTable.from_theta(64, 100_001, device=device)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    options = dict(interleaved=interleaved, start_positions=starts)
    o = block_attention(*leaves, offsets, rotary=table, backend=backend, **options)
    results = [o, *torch.autograd.grad(o, leaves, do)]

    positions = torch.cat([torch.arange(99_900, 99_903), torch.arange(5, 72)]).to(device).double()
    angles = positions[:, None] * 1e4 ** (-torch.arange(0, 64, 2, device=device, dtype=torch.float64) / 64)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]

    def outside(round_to):
        inputs = [x.double().requires_grad_() for x in (q, k, v)]
        turned = [turn(x, cos, sin, interleaved).to(round_to) for x in inputs[:2]]
        exact = round_to == torch.float64
        o = block_attention(*turned, inputs[2].to(round_to), offsets, backend="reference" if exact else backend)
        return [o, *torch.autograd.grad(o, inputs, do.to(o.dtype))]

    if HAS_GPU:
        truth = [x.to(device) for x in _truth_on_the_cpu(q, k, v, do, cos, sin, interleaved, offsets)]
    else:
        truth = outside(torch.float64)
    for mine, theirs, true in zip(results, outside(dtype), truth, strict=True):
        errors = [(x.to(dtype).double() - true).square().mean().sqrt() for x in (mine, theirs)]
        assert errors[0] <= 1.02 * errors[1]


def _truth_on_the_cpu(q, k, v, do, cos, sin, interleaved, offsets):
    """fp64 is computed on the CPU only."""
    inputs = [x.cpu().double().requires_grad_() for x in (q, k, v)]
    turned = [turn(x, cos.cpu(), sin.cpu(), interleaved) for x in inputs[:2]]
    o = block_attention(*turned, inputs[2], offsets.cpu(), backend="reference")
    return [o.detach(), *torch.autograd.grad(o, inputs, do.cpu().double())]


@pytest.mark.skipif("triton" not in BACKENDS, reason="needs triton")
@pytest.mark.parametrize(
    "case",
    [
        dataclasses.replace(TOKEN, dim=48),
        dataclasses.replace(TOKEN, dim=48, interleaved=False, packed="flat", grad_layout="packed"),
        dataclasses.replace(POSITION, packed="heads", grad_layout="packed", **GQA),
        dataclasses.replace(POSITION, packed="three", grad_layout="packed", rotate_v=True),
        dataclasses.replace(TOKEN, layout="mixed", **GQA),
    ],
    ids=str,
)
def test_the_fused_kernel_runs_and_nothing_is_copied(case, monkeypatch, device):
    from blockattn import torch_backend
    from blockattn.kernels import triton_backward, triton_forward, triton_rotary_backward, triton_rotary_forward

    launched = []
    for module in (triton_forward, triton_backward, triton_rotary_forward, triton_rotary_backward):
        launch = module._launch

        def recorded(*arguments, launch=launch):
            launched.append(launch.kernel.fn.__name__)
            launch(*arguments)

        monkeypatch.setattr(module, "_launch", recorded)
    for name in ("forward", "backward"):
        monkeypatch.setattr(torch_backend, name, lambda *_: pytest.fail("sent to torch"))
    inputs = make_inputs(case, device)
    leaves = pack(case, [x.detach() for x in (inputs.q, inputs.k, inputs.v)]) if case.packed else None
    leaves = [leaves] if case.packed else [inputs.q, inputs.k, inputs.v]
    leaves = [x.detach().requires_grad_() for x in leaves]
    call = block_attention if not case.packed else block_attention_packed
    heads = dict(num_heads=case.q_heads, num_kv_heads=case.kv_heads) if case.packed else {}
    with monkeypatch.context() as patch:
        for name in ("contiguous", "clone", "copy_"):
            unchanged = name == "contiguous"
            patch.setattr(
                torch.Tensor, name,
                lambda x, *_, ok=unchanged, **__: x if ok and x.is_contiguous() else pytest.fail("a copy was made"),
            )  # fmt: skip
        o = call(*leaves, inputs.offsets, lengths=inputs.lengths, backend="triton", **heads, **inputs.rotary_options(case))
        gradients = torch.autograd.grad(o, leaves, torch.ones(o.shape, device=device))
    assert launched == ["rotary_forward_kernel", "rotary_backward_kernel"]
    assert [x.shape for x in gradients] == [x.shape for x in leaves]
    assert all(x.is_contiguous() for x in gradients)


@pytest.mark.gpu
@pytest.mark.parametrize("packed", ["flat", "heads", "three"])
def test_peak_memory(packed):
    """A forward allocates o, and a backward the gradient; what is kept is qkv, the table and the tiles."""
    case = Case((6400,) * 20, head_dim=64, dtype=torch.bfloat16, rotary="token", packed=packed, dim=48, interleaved=False)
    inputs = make_inputs(case, "cuda")
    qkv = pack(case, [x.detach() for x in (inputs.q, inputs.k, inputs.v)]).requires_grad_()
    options = dict(num_heads=4, backend="triton", rotary=inputs.rotary, interleaved=False)
    table = TileTable.from_offsets(inputs.offsets, total_rows=case.total_rows)
    o = block_attention_packed(qkv, table, **options)
    torch.autograd.grad(o, qkv, inputs.grad_o)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        o = block_attention_packed(qkv, table, **options)
        assert torch.cuda.max_memory_allocated() - before <= 1.01 * o.nbytes
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}
    assert sum(storages.values()) <= 1.05 * (qkv.nbytes + inputs.rotary.cos.untyped_storage().nbytes())
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(o, qkv, inputs.grad_o)
    assert torch.cuda.max_memory_allocated() - before <= 1.01 * qkv.nbytes


@pytest.mark.skipif("triton" not in BACKENDS, reason="needs triton")
def test_a_table_per_token_compiles_nothing_anew_for_another_batch():
    """The integers that Triton compiles for do not change with the rows of the batch."""
    from blockattn.kernels import pairs

    found = set()
    for rows in (16, 17, 33):
        ones = torch.ones(rows, 8)
        _, integers, shape = pairs.arguments(Rotation(ones, ones, None, True, True, False))
        found.add((integers, shape))
    assert len(found) == 1
