"""`pytest --tlxsim`: a suite written for a GPU runs on the CPU and fails on findings."""

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import os, signal
import pytest, torch, triton, triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()
assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def beyond(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


def run_beyond():
    beyond[(1,)](torch.randn(128, device="cuda"), torch.empty(64, device="cuda:0"), BLOCK=128)


def test_right():
    x, y = torch.randn(100, device="cuda"), torch.randn(100).to(DEVICE).cuda()
    out = torch.empty_like(x)
    add[(2,)](x, y, out, 100, BLOCK=64)
    torch.cuda.synchronize()
    torch.testing.assert_close(out, x + y)


def test_out_of_bounds():
    run_beyond()


@pytest.mark.tlxsim_allow("TLX008")
def test_allowed():
    run_beyond()


def test_dies():
    os.kill(os.getpid(), signal.SIGSEGV)


def test_fails():
    assert DEVICE is None
"""


AS_ON_A_GPU = """
from concurrent.futures import ThreadPoolExecutor

import pytest, torch, triton, triton.language as tl


@triton.jit
def scale(x, out, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * factor)


@triton.jit
def faulty(x):
    tl.store(x, undefined)


def launch(factor):
    x = torch.randn(256, device="cuda")
    out = torch.empty_like(x)
    scale[(2,)](x, out, factor, BLOCK=128)
    torch.testing.assert_close(out, x * factor)


def test_seeds():
    torch.manual_seed(1)
    first = torch.randn(4, device="cuda")
    torch.cuda.manual_seed(1)
    assert torch.equal(first, torch.randn(4, device="cuda"))
    generator = torch.Generator(device="cuda").manual_seed(1)
    assert torch.equal(first, torch.randn(4, generator=generator, device="cuda"))
    assert first.is_cuda and isinstance(generator, torch.Generator)
    torch.cuda.set_rng_state(torch.cuda.get_rng_state(0), device=0)


def test_devices():
    assert torch.zeros(2, device=0).pin_memory().cuda(0, non_blocking=True).is_cuda
    assert torch.version.cuda.split(".")
    torch.cuda.nvtx.range_push("nothing")


def test_benchmarks_run_once():
    runs = []
    time, low, high = triton.testing.do_bench(lambda: runs.append(1), quantiles=[0.5, 0.2, 0.8])
    assert isinstance(triton.testing.do_bench(lambda: runs.append(1)), float)
    assert len(triton.testing.do_bench(lambda: runs.append(1), return_mode="all")) == len(runs) - 2 == 1


@pytest.fixture
def scaled():
    x, out = torch.ones(128, device="cuda"), torch.empty(128, device="cuda")
    scale[(1,)](x, out, 2.0, BLOCK=128)
    return out


def test_fixtures_launch(scaled):
    assert (scaled == 2).all()


def test_threads():
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(launch, [1.5, 2.5] * 4))


def test_errors_are_of_the_compilers_classes():
    with pytest.raises(triton.CompilationError, match="undefined is not defined") as error:
        faulty[(1,)](torch.zeros(1, device="cuda"))
    assert "NameError" in str(error.value.__cause__)
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONFAULTHANDLER", "0")
    pytester.makepyfile(SUITE)
    return pytester


def test_findings_and_deaths_fail_tests(suite):
    result = suite.runpytest_subprocess(
        "--tlxsim", "--tlxsim-schedules", "2", "-p", "no:faulthandler", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines(
        ["*TLX008 out of bounds (error) at *tt.store of 4-byte elements past the end of out*", "*died of SIGSEGV*"]
    )
    result.stdout.fnmatch_lines(["tlxsim: 3 launches simulated for sm_90, level ttir, 2 schedules each"])


def test_a_suite_is_told_what_a_gpu_tells(pytester):
    pytester.makepyfile(AS_ON_A_GPU)
    result = pytester.runpytest_subprocess("--tlxsim", "--tlxsim-schedules", "1", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["tlxsim: 9 launches simulated for *"])


def test_without_the_option_nothing_is_simulated(pytester):
    pytester.makepyfile("import sys\ndef test_nothing():\n    assert 'tlxsim.session' not in sys.modules")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_an_unknown_architecture_is_named(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("--tlxsim", "--tlxsim-arch", "hopper")
    result.stderr.fnmatch_lines(["*arch must be like \"sm_90\", got 'hopper'*"])
