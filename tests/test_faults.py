"""Faults that users of similar libraries reported, as small inputs with the right value, each named after its kind."""

import dataclasses
import inspect
import subprocess
import sys
import zipfile

import pytest
import torch

from backends import BACKENDS, DTYPES, HAS_GPU, HAS_TRITON, multiplies_in_tf32
from blockattn import RotaryTable, TileTable, block_attention, block_attention_packed
from blockattn.testing import Case, compare, make_inputs, run

DEVICE = "cuda" if HAS_GPU else "cpu"


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


FORMS = {
    "plain": {},
    "rotary": dict(rotary="token", rotate_v=True, interleaved=False),
    "packed": dict(packed="flat", rotary="position", starts=True),
}


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


def in_form(form: str, q, k, v, qkv=None, positions=None, **options):
    """The form's leaves, q, k and v or one tensor (qkv where given), and attention to them as a function of offsets."""
    call, inputs = block_attention, [q, k, v]
    if form != "plain":
        table = RotaryTable.from_theta(q.shape[2], positions or max(1, len(q)), device=q.device)
        options |= dict(rotary=table, rotate_v=True)
    if form == "packed":
        call, inputs = block_attention_packed, [torch.cat([q, k, v], 1) if qkv is None else qkv]
        options |= dict(num_heads=q.shape[1], num_kv_heads=k.shape[1])
    leaves = [x.detach().requires_grad_() for x in inputs]
    return leaves, lambda offsets, **more: call(*leaves, offsets, **options, **more)


def assert_right(case: Case, backend: str, device: str, unused: float = torch.nan) -> None:
    """The case in two dtypes, and in the first one packed in one tensor and with rotary embedding."""
    packed = dataclasses.replace(case, packed="flat", rotary="position", starts=True, rotate_v=True)
    first, second = DTYPES[backend][:2]
    for form, dtype in ((case, first), (case, second), (packed, first)):
        typed = dataclasses.replace(form, dtype=dtype)
        inputs = make_inputs(typed, device, unused=unused)
        assert compare(typed, inputs, run(typed, inputs, backend), multiplies_in_tf32(backend)) == []


def test_uncovered_rows(backend, device):
    """Rows after the last sequence are 0 in everything; memory was NaN (pytorch#176793, flash-attention#1228)."""
    assert_right(Case((144, 288, 512), after=2, q_heads=16, kv_heads=16), backend, device)


def test_neighbour_nan(backend, device):
    """NaN after a sequence's end changes nothing (sglang#15757)."""
    assert_right(Case((21,), after=3), backend, device)
    assert_right(Case((24,), used=(21,)), backend, device)


@pytest.mark.parametrize("unused", [torch.inf, -torch.inf, 6e4])
def test_ragged_tail_inf(backend, unused, device):
    """A huge row after a tail of one row stays out (sglang-jax#1073)."""
    assert_right(Case((65,), after=1), backend, device, unused)


def test_gaps(backend, device):
    """Rows between the used parts of sequences (flash-attention#1990, TransformerEngine#3331)."""
    assert_right(Case((3, 4, 2), used=(2, 3, 1)), backend, device)


@pytest.mark.parametrize("first", [1, 33, 65, 97])
def test_every_length(backend, first, device):
    """Lengths 1 to 130, as one batch a quarter (SeerAttention#33)."""
    assert_right(Case(tuple(range(first, min(first + 32, 98)) if first < 97 else range(97, 131)), q_heads=1, kv_heads=1),
                 backend, device)  # fmt: skip


def test_a_long_sequence(backend, device):
    assert_right(Case((4095,), q_heads=1, kv_heads=1, head_dim=16), backend, device)


def test_empty_and_one(backend, device):
    """Empty sequences beside sequences of one row (flash-attention#1537)."""
    assert_right(Case((0, 1, 0, 1)), backend, device)


@pytest.mark.parametrize("spans", [(64, 0, 64), (0, 0, 64, 64), (64, 64, 0, 0), (0, 5, 0, 0, 70, 0)])
def test_repeated_offsets(backend, spans, device):
    """Equal neighbours in offsets drop no tile and no head (fla#103)."""
    assert_right(Case(spans, q_heads=2, kv_heads=2), backend, device)


@pytest.mark.parametrize("spans", [(0, 0), ()])
@pytest.mark.parametrize(
    ("packed", "rotary"),
    [("", ""), ("", "token"), ("", "position"), ("flat", ""), ("heads", "token"), ("three", "position")],
)
def test_all_empty(backend, spans, packed, rotary, device, monkeypatch):
    """No rows at all: empty outputs, zero-size gradients, no launch (FBGEMM#1187, flash-attention#2421)."""
    if backend == "triton":
        from blockattn.kernels.launch import Launcher

        monkeypatch.setattr(Launcher, "__call__", lambda *_: pytest.fail("launched"))
    case = Case(spans, packed=packed, rotary=rotary, starts=rotary == "position")
    results = run(case, make_inputs(case, device), backend)
    assert results["o"].shape == results["dq"].shape == results["dk"].shape == results["dv"].shape == (0, 4, 64)
    assert results["lse"].shape == (0, 4)


def test_first_offset(backend, device):
    """Sequences that begin after row 0 and end before the last: the right rows for every head."""
    assert_right(Case((64, 64), before=64, after=64), backend, device)


@pytest.mark.gpu
@pytest.mark.slow
def test_int32_wrap(form):
    """Row times stride passes 2³¹, in results and gradients too (sglang#20389, fla#1080)."""
    rows = 1048577 + 64
    x = torch.zeros(rows, 16, 128, device="cuda", dtype=torch.bfloat16)
    last = torch.randn(64, 16, 128, device="cuda", dtype=torch.bfloat16)
    x[-64:] = last

    def last_rows(value, *bounds):
        leaves, attend = in_form(form, value, value, value, backend="triton")
        o = attend(torch.tensor(bounds, device="cuda"))
        return [y[-64:].clone() for y in (o.detach(), *torch.autograd.grad(o, leaves, value))]

    for got, want in zip(last_rows(x, 0, rows - 64, rows), last_rows(last, 0, 64), strict=True):
        assert got.equal(want)


@pytest.mark.parametrize(
    ("offsets", "rows"), [((0, 100, 50, 200), 200), ((5, 64), 40), ((0, 300), 200), ((0, 2**40), 64), ((-5, 64), 64)]
)
def test_corrupt_offsets(backend, form, offsets, rows, device):
    """An error where contents are checked; else all NaN, and nothing outside is touched (FBGEMM#5879)."""
    leaves, attend = in_form(form, *torch.randn(3, rows, 2, 16, device=device), backend=backend)
    offsets = torch.tensor(offsets, device=device)
    with pytest.raises(ValueError, match="offsets"):
        attend(offsets, check_offsets=True)
    o = attend(offsets, check_offsets=False)
    assert all(x.isnan().all() for x in (o, *torch.autograd.grad(o, leaves, torch.ones_like(o))))
    for wrong in (offsets.float(), offsets[None]):
        with pytest.raises(ValueError, match="offsets must"):
            attend(wrong)


def test_fused_buffer_views(backend, form, device, monkeypatch):
    """q, k and v as views of one projection, or packed in one view, are read in place (generative-recommenders#583)."""
    heads, head_dim, options = 4, 128, dict(block_size=16, backend=backend)
    buffer = torch.randn(17, 2048, device=device, dtype=torch.float16)
    q, k, v = (buffer[:, i * 512 : (i + 1) * 512].unflatten(1, (heads, head_dim)) for i in range(3))
    assert q.stride() == (2048, 128, 1)
    offsets, ones = torch.tensor([0, 17], device=device), torch.ones_like(q, memory_format=torch.contiguous_format)
    copies, attend = in_form(form, *(x.contiguous() for x in (q, k, v, buffer[:, :1536])), **options)
    o = attend(offsets)
    want = o.detach(), *torch.autograd.grad(o, copies, ones)
    views, attend = in_form(form, q, k, v, buffer[:, :1536], **options)
    if backend == "triton":
        monkeypatch.setattr(torch.Tensor, "contiguous", lambda x: x if x.is_contiguous() else pytest.fail("a copy was made"))
        monkeypatch.setattr(torch.Tensor, "clone", lambda *_: pytest.fail("a copy was made"))
    o = attend(offsets)
    for got, wanted in zip((o, *torch.autograd.grad(o, views, ones)), want, strict=True):
        assert got.equal(wanted)


def test_expanded_grad(backend, device):
    """sum().backward() hands over a gradient of stride 0 (flash-attention#355, fla#1138)."""
    case = Case((65, 3), grad_layout="expanded")
    assert_right(case, backend, device)
    inputs = make_inputs(case, device)
    whole = dataclasses.replace(inputs, grad_o=inputs.grad_o.contiguous())
    one, other = run(case, inputs, backend), run(case, whole, backend)
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
def test_other_device(monkeypatch):
    """A launch makes the tensors' device current (triton#2441, xformers#681)."""
    from blockattn.kernels import launch

    entered = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or launch._CURRENT)

    class Elsewhere:
        is_cuda, device = True, torch.device("cuda", 1)

    with launch.device_of(Elsewhere()):
        assert entered == [torch.device("cuda", 1)]


@pytest.mark.multi_gpu
@pytest.mark.gpu
def test_other_device_for_real():
    q = torch.randn(100, 2, 64, device="cuda:1", dtype=torch.bfloat16)
    offsets = torch.tensor([0, 100], device="cuda:1")
    assert block_attention(q, q, q, offsets).cpu().equal(block_attention(*[q.to("cuda:0")] * 3, offsets.to("cuda:0")).cpu())


def test_gqa_ragged(backend, device):
    """Eight query heads on two kv heads (xformers#1392)."""
    assert_right(Case((129,), q_heads=8, kv_heads=2), backend, device)


def test_gqa_ragged_repeated(backend, form, device):
    """The same bits a hundred times."""
    case = Case((129,), q_heads=8, kv_heads=2, head_dim=16, dtype=torch.float16, **FORMS[form])
    inputs = make_inputs(case, device)
    first = run(case, inputs, backend)
    for _ in range(100 if HAS_GPU or backend == "torch" else 1):
        again = run(case, inputs, backend)
        assert all(again[name].equal(first[name]) for name in first)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("layout", ["contiguous", "packed"])
def test_mqa_map(backend, kv_heads, layout, device):
    """dk and dv are sums over the group's query heads."""
    assert_right(Case((70, 5), q_heads=4, kv_heads=kv_heads, layout=layout), backend, device)


@pytest.mark.parametrize(("spans", "shift"), [((34,) * 8192, 0), ((63136, *[1] * 2400), 0), ((34,) * 8192, 5)])
def test_grid_size(spans, shift, device):
    """Programs launched per head stay near the number of tiles (flash-attention#2521, TransformerEngine#2866)."""
    case = Case(spans)
    table = TileTable.from_offsets(case.offsets(device), total_rows=case.total_rows, shift=shift)
    assert table.tiles.shape[0] <= case.total_rows // 64 + (3 if shift else 2) * len(spans) + 2


@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
def test_programs_are_at_most_tiles_times_heads(monkeypatch, device):
    from blockattn.kernels import triton_backward, triton_forward, triton_rotary_backward, triton_rotary_forward
    from blockattn.kernels.launch import Launcher

    launched = {}

    class Recorder:
        def __init__(self, name):
            self.name = name

        def __getitem__(self, grid):
            launched[self.name] = grid[0]
            return lambda *arguments, **options: None

    for module in (triton_forward, triton_backward, triton_rotary_forward, triton_rotary_backward):
        monkeypatch.setattr(module, "_launch", Launcher(Recorder(module.__name__), module._configure))
    case = Case((34,) * 20, q_heads=8, kv_heads=2, block_size=128, head_dim=256)
    per_head = case.total_rows // 128 + 2 * 20 + 2
    for rotary, forward, backward in (
        ("", triton_forward, triton_backward), ("token", triton_rotary_forward, triton_rotary_backward)
    ):  # fmt: skip
        rotated = dataclasses.replace(case, rotary=rotary)
        run(rotated, make_inputs(rotated, device), "triton")
        assert 0 < launched[forward.__name__] <= 8 * per_head
        assert 0 < launched[backward.__name__] <= 2 * per_head


@pytest.mark.gpu
@pytest.mark.parametrize(("sequences", "rows"), [(1024, 1024), (1, 200_000 * 16)])
def test_many_tiles(form, sequences, rows):
    """65,536 and 200,000 tiles: no dimension of a grid is limited to 65,535."""
    q = torch.randn(sequences * rows, 1, 16, device="cuda", dtype=torch.float16)

    def last_rows(x, offsets, start):
        leaves, attend = in_form(form, x, x, x, positions=rows, block_size=16, backend="triton")
        starts = torch.full((len(offsets) - 1,), start, device="cuda")
        o = attend(offsets, **({} if form == "plain" else dict(start_positions=starts)))
        return [y[-48:] for y in (o.detach(), *torch.autograd.grad(o, leaves, torch.ones_like(o)))]

    everywhere = last_rows(q, torch.arange(0, sequences * rows + 1, rows, device="cuda"), 0)
    alone = last_rows(q[-48:], torch.tensor([0, 48], device="cuda"), rows - 48)
    assert all(got.equal(want) for got, want in zip(everywhere, alone, strict=True))


@pytest.mark.gpu
def test_plan_cost():
    """Two kernels make the table of 1152 sequences, and nothing waits for the host (attention-gym#149, flashinfer#4554)."""
    offsets = torch.arange(0, 1153 * 1400, 1400, device="cuda")
    TileTable.from_offsets(offsets, total_rows=1152 * 1400)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            TileTable.from_offsets(offsets, total_rows=1152 * 1400)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    on_gpu = {event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA}
    # conftest fills fresh memory with NaN, which launches kernels of its own.
    assert {name for name in on_gpu if "fill" not in name.lower()} == {"count_kernel", "expand_kernel"}


@pytest.mark.gpu
def test_recompiles():
    """Fifty random T, and T from 1 to 40: at most two compilations of a kernel (pytorch#141486, flash-attention#2635)."""
    from blockattn.kernels import (
        triton_backward,
        triton_forward,
        triton_rotary_backward,
        triton_rotary_forward,
        triton_tiles,
    )  # fmt: skip

    kernels = [triton_forward.forward_kernel, triton_backward.backward_kernel]
    kernels += [triton_rotary_forward.rotary_forward_kernel, triton_rotary_backward.rotary_backward_kernel]
    kernels += [triton_tiles.count_kernel, triton_tiles.expand_kernel]

    def compiled():
        return [sum(len(cache[0]) for cache in kernel.device_caches.values()) for kernel in kernels]

    before = compiled()
    generator = torch.Generator().manual_seed(0)
    for rows in (*torch.randint(1, 5000, (50,), generator=generator).tolist(), *range(1, 41)):
        q, k, v = (torch.randn(rows, 6, 48, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3))
        offsets = torch.tensor([0, rows // 2, rows], device="cuda")
        rotary = RotaryTable(*torch.randn(2, rows, 16, device="cuda"), per_token=True)
        for table in (None, rotary):
            block_attention(q, k, v, offsets, rotary=table, backend="triton").sum().backward()
    assert all(after - earlier <= 2 for after, earlier in zip(compiled(), before, strict=True))


def test_capacity_padding(backend, device):
    """Offsets padded to a capacity, rows after the last one unused (torchtitan#4158)."""
    assert_right(Case((100, 64, 0, 0, 0), after=28), backend, device)


@pytest.mark.parametrize("rows", [0, 1])
def test_no_alias(backend, form, rows, device):
    """No result shares memory with an input or a gradient, not even for one row or none (pytorch#134278)."""
    leaves, attend = in_form(form, *torch.randn(3, rows, 2, 16, device=device), backend=backend)
    o, lse = attend(torch.tensor([0, rows], device=device), return_lse=True)
    given = [torch.randn_like(o), torch.randn_like(lse)]
    results = [o.detach(), lse.detach(), *torch.autograd.grad([o, lse], leaves, given)]
    tensors = [*given, *(x.detach() for x in leaves), *results]
    before = [x.clone() for x in tensors]
    for i, x in enumerate(results, len(tensors) - len(results)):
        x.add_(1)
        before[i].add_(1)
        assert all(y.equal(old) for y, old in zip(tensors, before, strict=True))


def test_pure_wheel(tmp_path, pytestconfig):
    """The wheel holds Python files only and imports from an empty folder (flash-attention#1421)."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(pytestconfig.rootpath)],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    assert all(name.endswith(".py") or ".dist-info/" in name for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"blockattn", "tlxsim"}
    code = f"import sys; sys.path.insert(0, {str(site)!r}); import blockattn; print(blockattn.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(site))


@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
def test_two_tritons():
    """Stock Triton without TLX is enough; nothing looks for TLX (triton-ascend#306, facebookexperimental/triton#3305)."""
    code = inspect.cleandoc(
        f"""
        import sys, torch, triton
        before = set(sys.modules)
        import blockattn
        q = torch.randn(20, 1, 16, dtype=torch.float16, device="{DEVICE}")
        blockattn.block_attention(q, q, q, torch.tensor([0, 20], device="{DEVICE}"), backend="triton")
        print([name for name in set(sys.modules) - before if "tlx" in name])
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
