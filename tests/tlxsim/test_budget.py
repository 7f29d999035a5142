"""Budgets from the real compile: sizes against the architecture's, registers against the launch, fences against the PTX."""

import dataclasses

import pytest
import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx
from corpus import cases

from tlxsim import frontend
from tlxsim.budget import Budget, Pool, TaskRegisters, start_budget
from tlxsim.findings import Code, Severity


@triton.jit
def allocating(x_ptr, C: tl.constexpr, T: tl.constexpr, S: tl.constexpr):
    """T buffers of C columns in tensor memory, S buffers of 16 KB in shared memory."""
    smem = tlx.local_alloc((64, 64), tl.float32, S)
    bar = tlx.alloc_barriers(1)
    x = tl.zeros((64, 64), tl.float32)
    tlx.local_store(smem[0], x)
    if T > 0:
        tmem = tlx.local_alloc((128, C), tl.float32, T, tlx.storage_kind.tmem)
        tlx.tcgen05_commit(bar[0])
        tl.store(x_ptr, tl.sum(tlx.local_load(tmem[0])))
    tl.store(x_ptr, tl.sum(tlx.local_load(smem[0])))


@triton.jit
def asking(x_ptr, R0: tl.constexpr, W1: tl.constexpr, R1: tl.constexpr, W2: tl.constexpr, R2: tl.constexpr):
    """Three tasks that ask for registers."""
    done = tlx.alloc_barriers(1, arrive_count=2)
    with tlx.async_tasks():
        with tlx.async_task("default", registers=R0):
            tlx.barrier_wait(done[0], 0)
        with tlx.async_task(num_warps=W1, registers=R1):
            tl.store(x_ptr, 1.0)
            tlx.barrier_arrive(done[0], 1)
        with tlx.async_task(num_warps=W2, registers=R2):
            tl.store(x_ptr + 1, 1.0)
            tlx.barrier_arrive(done[0], 1)


@triton.jit
def wgmma(a_ptr, out_ptr, FENCES: tl.constexpr, N: tl.constexpr):
    """Generic writes, then wgmma and a TMA-free store; FENCES of two user fences."""
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    smem = tlx.local_alloc((N, N), tl.float16, 2)
    tlx.local_store(smem[0], tl.load(a_ptr + at))
    if FENCES > 0:
        tlx.fence_async_shared()
    c = tlx.async_dot_wait(0, tlx.async_dot(smem[0], smem[0]))
    tlx.local_store(smem[1], c.to(tl.float16))
    if FENCES > 1:
        tlx.fence_async_shared()
    tl.store(out_ptr + at, tlx.async_dot_wait(0, tlx.async_dot(smem[1], smem[0])))


@triton.jit
def _fill(a_ptr, smem, full, FENCES: tl.constexpr, N: tl.constexpr):
    tlx.local_store(smem[0], tl.load(a_ptr + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]))
    if FENCES > 0:
        tlx.fence_async_shared()
    tlx.barrier_arrive(full[0], 1)


@triton.jit
def tcgen05(a_ptr, out_ptr, FENCES: tl.constexpr, BY_DEFAULT: tl.constexpr, N: tl.constexpr):
    """The default task, or another one, writes shared memory that a third one's MMA reads."""
    smem = tlx.local_alloc((N, N), tl.float16, 1)
    acc = tlx.local_alloc((N, N), tl.float32, 1, tlx.storage_kind.tmem)
    full, done = tlx.alloc_barriers(1), tlx.alloc_barriers(1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            if BY_DEFAULT:
                _fill(a_ptr, smem, full, FENCES, N)
            tlx.barrier_wait(done[0], 0)
            tl.store(out_ptr + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :], tlx.local_load(acc[0]))
        with tlx.async_task(num_warps=4):
            if not BY_DEFAULT:
                _fill(a_ptr, smem, full, FENCES, N)
        with tlx.async_task(num_warps=1):
            tlx.barrier_wait(full[0], 0)
            tlx.async_dot(smem[0], smem[0], acc[0], use_acc=False, mBarriers=[done[0]])


def budget(fn, *args, arch="sm_90", ptx=False, **kwargs):
    return start_budget(fn, *frontend.bind(fn, args, kwargs), arch, ptx=ptx).result()


def faults(found, severity=Severity.ERROR):
    return [(code, message) for code, message, how in found.faults() if how is severity]


x = torch.zeros(64 * 64)


class TestSizes:
    def test_of_a_kernel_that_fits(self):
        found = budget(allocating, x, 64, 2, 1, arch="sm_100")
        assert (found.tmem_columns, found.num_warps, found.threads) == (128, 4, 128)
        assert 64 * 64 * 4 + 8 <= found.shared < 64 * 64 * 4 + 1024
        assert found.faults() == []
        assert found.place[0] == __file__
        assert found.place[2] == "@triton.jit"

    def test_shared_memory(self):
        assert faults(budget(allocating, x, 64, 0, 14)) == []
        found = budget(allocating, x, 64, 0, 15)
        assert faults(found) == [("BUDGET", f"{found.shared:,} bytes of shared memory, sm_90 has 232,448 for a program")]

    @pytest.mark.parametrize(("arch", "fits"), [("sm_80", 10), ("sm_86", 6), ("sm_89", 6), ("sm_90", 14), ("sm_120", 6)])
    def test_limits(self, arch, fits):
        exact = Budget(arch, ("", 0, ""), shared={6: 99, 10: 163, 14: 227}[fits] * 1024, num_warps=4)
        assert exact.faults() == []
        assert dataclasses.replace(exact, shared=exact.shared + 1).faults()[0][0] == "BUDGET"

    def test_tensor_memory(self):
        assert faults(budget(allocating, x, 128, 4, 1, arch="sm_100")) == []
        found = budget(allocating, x, 128, 5, 1, arch="sm_100")
        assert faults(found) == [("BUDGET", "640 columns of tensor memory, there are 512")]

    def test_threads(self):
        assert faults(budget(asking, x, None, 8, None, 8, None, num_warps=16)) == []
        found = budget(asking, x, None, 8, None, 16, None, num_warps=16)
        assert faults(found) == [("BUDGET", "40 warps are 1,280 threads, a program has at most 1,024")]

    def test_a_kernel_that_does_not_compile(self):
        found = budget(cases.plain.catted, x, x, 64)
        assert faults(found) == []
        ((code, message),) = faults(found, Severity.WARNING)
        assert code == "COMPILE"
        assert "does not compile for sm_90" in message
        assert "tt.cat" in message

    def test_codes_exist(self):
        assert all(name in Code.__members__ for name in ("BUDGET", "REGISTERS", "COMPILE"))


class TestRegisters:
    """64 K registers; 12 warps start with 168 a thread, 64,512 in all."""

    def test_what_is_left_is_the_default_tasks(self):
        found = budget(asking, x, None, 4, 160, 4, 160)
        assert [(task.requested, task.granted) for task in found.tasks] == [(None, 184), (160, 160), (160, 160)]
        assert faults(found) == []

    @pytest.mark.parametrize("default", [None, 24])
    def test_all_is_asked_for(self, default):
        assert faults(budget(asking, x, default, 4, 240, 4, 240)) == []

    def test_too_much_is_asked_for(self):
        ((code, message),) = faults(budget(asking, x, None, 4, 248, 4, 240))
        assert code == "REGISTERS"
        assert message == (
            "no request for registers can be granted, the compiler drops them all, since the default task needs 24: the "
            "others ask for 62,464 of the 64,512 registers that 384 threads start with, and that leaves 16 for each of its "
            "128 threads"
        )

    def test_the_default_task_asks_for_what_is_not_left(self):
        assert faults(budget(asking, x, 40, 4, 232, 4, 232)) == []
        ((code, message),) = faults(budget(asking, x, 48, 4, 232, 4, 232))
        assert code == "REGISTERS"
        assert message.startswith("the default task asks for 48 registers a thread: the others ask for 59,392 of the 64,512")
        assert "leaves 40 for each" in message

    @pytest.mark.parametrize("asked", [16, 264, 300])
    def test_no_warp_group_can_have_that(self, asked):
        messages = [message for _, message in faults(budget(asking, x, None, 4, asked, 4, 24))]
        assert any(f"asks for {asked} registers a thread, 24 to 256 can be had" in message for message in messages)

    def test_a_launch_with_more_than_there_are(self):
        found = budget(asking, x, None, 4, 160, 4, 160, maxnreg=200)
        assert faults(found) == [("REGISTERS", "maxnreg=200 for 384 threads is 76,800 registers, there are 65,536")]

    def test_a_launch_with_few(self):
        assert faults(budget(asking, x, None, 4, 160, 4, 160, maxnreg=120)) == []
        ((_, message),) = faults(budget(asking, x, None, 4, 160, 4, 160, maxnreg=112))
        assert "40,960 of the 43,008 registers that 384 threads start with, and that leaves 16" in message

    def test_without_requests_there_is_nothing_to_grant(self):
        assert budget(asking, x, None, 4, None, 4, None).faults() == []
        assert budget(wgmma, x.half(), x, 2, 64).faults() == []

    def test_triton_goes_by_its_own_estimates_from_sm_100_on(self):
        found = budget(asking, x, None, 4, 152, 4, 152, arch="sm_100")
        assert faults(found) == []
        notes = [message for _, message in faults(found, Severity.NOTE)]
        assert [task.granted < 152 for task in found.tasks[1:]] == [True, True]
        assert len(notes) == 2
        assert all("asks for 152 registers a thread, the compiler gives it" in note for note in notes)

    @pytest.mark.parametrize("warps", [(4, 4), (1, 4), (1, 2), (8, 1), (2, 2)])
    @pytest.mark.parametrize("registers", [(24, 24), (152, 24), (232, 40), (161, 90)])
    def test_the_rule_is_the_compilers(self, warps, registers):
        (w1, w2), (r1, r2) = warps, registers
        found = budget(asking, x, None, w1, r1, w2, r2)
        left = Pool.of(found.tasks, None).left
        granted = found.tasks[0].granted
        assert granted == (min(256, left) if left >= 24 else None)
        assert bool(faults(found)) == (granted is None)


def test_tasks_of_a_warp_group_take_what_the_most_demanding_asks():
    tasks = [TaskRegisters("", 4, None, None), TaskRegisters("", 1, 24, None), TaskRegisters("", 2, 90, None)]
    pool = Pool.of(tasks, None)
    assert (pool.threads, pool.total, pool.asked, pool.left) == (256, 65536, 96 * 128, 416)


FENCED = [
    *((wgmma, (x.half(), x, fences, 64), "sm_90") for fences in (0, 1, 2)),
    *((tcgen05, (x.half(), x, fences, default, 64), "sm_100") for fences in (0, 1) for default in (True, False)),
    *(
        (case.kernel, case.arguments, case.arch)
        for case in [*cases.HOPPER, *cases.BLACKWELL]
        if "fenced" in case.levels
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "args", "arch"), FENCED, ids=[f"{fn.__name__}-{n}" for n, (fn, *_) in enumerate(FENCED)])
def test_the_level_fenced_has_the_fences_of_the_ptx(fn, args, arch):
    """That level is stopped inside of make_llir: were fences inserted later, they would be missing there."""
    bound, options = frontend.bind(fn, args, {})
    found = start_budget(fn, bound, options, arch, ptx=True).result()
    assert not found.error
    fenced = frontend.compile_ir(fn, bound, options, arch, "fenced")
    fences = [op for op in cases.operations(fenced.module.entry.region) if op.name == "ttng.fence_async_shared"]
    assert len(fences) == found.proxy_fences


@pytest.mark.parametrize(
    ("fn", "args", "arch", "expected"),
    [
        (wgmma, (), "sm_90", [2, 2, 2]),  # those of a task's own wgmma are put in, if the kernel has none
        (tcgen05, (True,), "sm_100", [1, 2]),  # one before an MMA that reads what the default task has written
        (tcgen05, (False,), "sm_100", [0, 1]),  # none if another task has: the kernel's own is the only one
    ],
)
def test_which_fences_the_compiler_inserts(fn, args, arch, expected):
    found = [budget(fn, x.half(), x, fences, *args, 64, arch=arch, ptx=True).proxy_fences for fences in range(len(expected))]
    assert found == expected
