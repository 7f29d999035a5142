"""Plain Triton kernels from launch to result: the library's own in bf16, and small ones that use what those do not."""

import dataclasses

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

import tlxsim
from blockattn import dispatch, testing, tiles
from blockattn.kernels import launch, triton_tiles
from blockattn.testing import Case
from tlxsim import Code

QUICK = dict(arch="sm_90", schedules=1, budgets=False, trace=False)


class Forgetful(dict):
    """A cache of compiled kernels that keeps none: a launch past Triton's own processing reaches no simulator."""

    def __setitem__(self, key, value):
        pass


@pytest.fixture
def on_cpu(monkeypatch):
    """backend="triton" takes CPU tensors, with the plans of Hopper."""
    monkeypatch.setattr(dispatch, "_triton_obstacle", lambda *_: None)
    monkeypatch.setattr(launch, "capability", lambda device: (9, 0))
    for direction in ("forward", "backward"):
        for rotary in (False, True):
            monkeypatch.setattr(dispatch.kernels("triton", direction, rotary)._launch, "_compiled", Forgetful())


SMALL = Case((0, 1, 40, 65), used=(0, 1, 37, 65), before=3, after=2, q_heads=2, kv_heads=1, dtype=torch.bfloat16)
CASES = [
    SMALL,
    dataclasses.replace(SMALL, causal=True, shift=17, layout="packed", grad_layout="expanded"),
    dataclasses.replace(SMALL, dtype=torch.float16, head_dim=72, block_size=32, shift=5),
    dataclasses.replace(SMALL, dtype=torch.float32, head_dim=32, layout="mixed"),
    dataclasses.replace(SMALL, head_dim=256, q_heads=1),
    dataclasses.replace(SMALL, rotary="token", dim=32, table_dtype=torch.bfloat16),
    dataclasses.replace(SMALL, rotary="position", starts=True, interleaved=False, rotate_v=True, causal=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_equals_the_oracle(case, on_cpu):
    """Forward and backward, within the error that the dtype's own loop has, NaN in all rows that no sequence uses."""
    inputs = testing.make_inputs(case)
    with tlxsim.simulate(**QUICK) as sim:
        results = testing.run(case, inputs, "triton")
    assert testing.compare(case, inputs, results, multiplies_in_tf32=True) == []
    assert sim.report.findings == []
    assert len(sim.report.launches) == 2


def test_the_tile_table():
    case = dataclasses.replace(SMALL, spans=(0, 300, 1, 65, 64), used=None)
    offsets = case.offsets("cpu")
    for lengths, shift in ((None, 0), (torch.tensor([0, 250, 1, 0, 64]), 17)):
        with tlxsim.simulate(**QUICK) as sim:
            table = triton_tiles.build(offsets, lengths, case.total_rows, 64, shift)
        torch.testing.assert_close(table, tiles.build(offsets, lengths, case.total_rows, 64, shift), rtol=0, atol=0)
        assert sim.report.findings == []


@triton.jit
def softmax_kernel(x_ptr, o_ptr, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(o_ptr + row * columns + at, e / tl.sum(e, 0), mask=at < columns)


@pytest.mark.parametrize("level", ["ttir", "fenced"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax(level, dtype):
    x = torch.randn(9, 100, generator=torch.Generator().manual_seed(0)).to(dtype)
    o = torch.empty_like(x)
    with tlxsim.simulate(level=level, **QUICK) as sim:
        softmax_kernel[(9,)](x, o, 100, BLOCK=128)
    assert sim.report.findings == []
    torch.testing.assert_close(o, x.float().softmax(1).to(dtype), rtol=2**-7 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)


@triton.jit
def layer_norm_backward_kernel(x_ptr, sum_ptr, lock_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * N + at)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(sum_ptr + at, tl.load(sum_ptr + at) + x)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


def test_programs_that_share_rows_under_a_lock():
    x, total, lock = torch.randn(6, 32), torch.zeros(32), torch.zeros(1, dtype=torch.int32)
    with tlxsim.simulate(**QUICK) as sim:
        layer_norm_backward_kernel[(6,)](x, total, lock, N=32)
    assert sim.report.findings == []
    torch.testing.assert_close(total, x.sum(0))


@triton.jit
def faulty_kernel(x_ptr, o_ptr, n, BLOCK: tl.constexpr, STEP: tl.constexpr, MASKED: tl.constexpr):
    at = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    mask = at < n if MASKED else None
    tl.store(o_ptr + at, tl.load(x_ptr + at, mask=mask) + 1, mask=mask)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("step", [64, 48])
def test_bounds_and_conflicts(masked, step):
    """Without the mask the last program leaves both tensors; with a step below the block programs overlap."""
    n = 100
    x, o = torch.randn(n), torch.zeros(n)
    with tlxsim.simulate(**QUICK) as sim:
        faulty_kernel[(2,)](x, o, n, BLOCK=64, STEP=step, MASKED=masked)
    expected = [] if masked else [Code.OUT_OF_BOUNDS] * 2
    expected += [Code.WRITE_CONFLICT] if step < 64 else []
    assert [one.code for one in sim.report.findings] == expected
    torch.testing.assert_close(o, x + 1, rtol=0, atol=0)
    for one in sim.report.findings:
        assert one.places[0].source.startswith("tl.store(o_ptr + at, tl.load")


@triton.jit
def _affine(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def _larger(a, b):
    if a > b:
        return a - b
    else:
        return b


@triton.jit
def many_kernel(x_ptr, o_ptr, N: tl.constexpr):
    """One of most value operations that the attention kernels do not use; each writes its row of o."""
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    row = tl.arange(0, N)
    tl.store(o_ptr + row, tl.argmax(x, 1).to(tl.float32))
    tl.store(o_ptr + N + row, tl.cumsum(tl.sum(x, 0), 0, reverse=True))
    _, b = tl.associative_scan((x, x), 1, _affine)
    tl.store(o_ptr + 2 * N + row, tl.sum(tl.where(row[None, :] == N - 1, b, 0.0), 1))
    tl.store(o_ptr + 3 * N + row, tl.sort(tl.max(x, 1), descending=True))
    tl.store(o_ptr + 4 * N + row, tl.histogram((tl.max(x, 1) * 100).to(tl.int32) % N, N).to(tl.float32))
    even, odd = tl.split(tl.reshape(x, (N, N // 2, 2)))
    tl.store(o_ptr + 5 * N + row, tl.sum(tl.trans(tl.interleave(odd, even)), 0))
    tl.store(o_ptr + 6 * N + row, tl.gather(tl.min(x, 1), N - 1 - row, 0))
    tl.store(o_ptr + 7 * N + row, libdevice.tanh(tl.sum(x, 1)) + tl.rand(7, row))
    tl.store(o_ptr + 8 * N + row, tl.map_elementwise(_larger, tl.sum(x, 0), tl.sum(x, 1)))
    tl.store(o_ptr + 9 * N + row, tl.sum(tl.dot(x, x, input_precision="ieee"), 1))


@pytest.mark.parametrize("level", ["ttir", "fenced"])
def test_many_operations(level):
    n = 16
    x = torch.randn(n, n, generator=torch.Generator().manual_seed(3))
    o = torch.zeros(10, n)
    with tlxsim.simulate(level=level, **QUICK) as sim:
        many_kernel[(1,)](x, o, N=n)
    assert sim.report.findings == []
    torch.testing.assert_close(o[0], x.argmax(1).float())
    torch.testing.assert_close(o[1], x.sum(0).flip(0).cumsum(0).flip(0), rtol=1e-5, atol=1e-5)
    shift = torch.zeros(n)
    for column in x.double().unbind(1):
        shift = shift * column + column
    torch.testing.assert_close(o[2].double(), shift, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(o[3], x.max(1).values.sort(descending=True).values)
    bins = (x.max(1).values * 100).int() % n
    torch.testing.assert_close(o[4], torch.bincount(bins, minlength=n).float())
    torch.testing.assert_close(o[5], x.sum(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(o[6], x.min(1).values.flip(0))
    assert ((o[7] - x.sum(1).tanh() > 0) & (o[7] - x.sum(1).tanh() < 1)).all()
    assert len(set(o[7].tolist())) == n
    a, b = x.sum(0), x.sum(1)
    torch.testing.assert_close(o[8], torch.where(a > b, a - b, b), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(o[9], (x @ x).sum(1), rtol=1e-5, atol=1e-5)


@triton.jit
def descriptor_kernel(x_ptr, o_desc, rows, columns, BLOCK: tl.constexpr):
    x_desc = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    first = tl.program_id(0) * BLOCK
    for column in range(0, columns, BLOCK):
        tile = x_desc.load([first, column])
        o_desc.store([first, column], tile + 1)


@pytest.mark.parametrize("level", ["ttir", "fenced"])
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_descriptors_of_host_and_kernel(level, arch):
    """At the level fenced both are TMA copies through shared memory, and the kernel's own a tensor map in scratch memory."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    x = torch.randn(40, 48, generator=torch.Generator().manual_seed(1)).bfloat16()
    o = torch.zeros_like(x)
    with tlxsim.simulate(**(QUICK | dict(arch=arch, level=level))) as sim:
        descriptor_kernel[(3,)](x, TensorDescriptor.from_tensor(o, [16, 16]), 40, 48, BLOCK=16)
    assert sim.report.findings == []
    torch.testing.assert_close(o, x + 1, rtol=0, atol=0)
