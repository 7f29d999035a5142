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
    assert x.device == y.device == DEVICE
    assert torch.randn(100, device=DEVICE).is_cuda
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
    os.write(2, b"last words\\n")
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
        [
            "*TLX008 out of bounds (error) at *tt.store of 4-byte elements past the end of out*",
            "*died of SIGSEGV*",
            "last words",
            "tlxsim: 3 launches of 3 tests simulated for sm_90, level ttir, 2 schedules each",
            "tlxsim: TLX008 out of bounds: 2 findings in 2 tests",
        ]
    )


def test_a_suite_is_told_what_a_gpu_tells(pytester):
    pytester.makepyfile(AS_ON_A_GPU)
    result = pytester.runpytest_subprocess("--tlxsim", "--tlxsim-schedules", "1", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["tlxsim: 9 launches of 2 tests simulated for *"])


def test_without_the_option_nothing_is_simulated(pytester):
    pytester.makepyfile("import sys\ndef test_nothing():\n    assert 'tlxsim.session' not in sys.modules")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_an_unknown_architecture_is_named(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("--tlxsim", "--tlxsim-arch", "hopper")
    result.stderr.fnmatch_lines(["*arch must be like \"sm_90\", got 'hopper'*"])


CONFTEST = """
import torch

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
"""
PHASES = """
import pytest, torch, triton, triton.language as tl, triton.language.extra.tlx as tlx
from conftest import HOPPER


@triton.jit
def copy(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


@triton.jit
def of_a_thread(out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), tlx.thread_id(0))


@triton.jit
def left_over(out, N: tl.constexpr):
    # in tensor memory to registers: a warning
    accumulator = tlx.local_alloc((128, N), tl.float32, 1, tlx.storage_kind.tmem)
    read = tlx.local_load(accumulator[0])
    tl.store(out + tl.arange(0, 128)[:, None] * N + tl.arange(0, N)[None, :], read)


def launch(size):
    copy[(1,)](torch.randn(64, device="cuda"), torch.empty(size, device="cuda"), BLOCK=64)


@pytest.fixture
def wrong_before():
    launch(32)


@pytest.fixture
def wrong_after():
    yield
    launch(32)


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
def test_the_gpu_is_there_for_conftest():
    launch(64)


def test_setup(wrong_before):
    pass


def test_teardown(wrong_after):
    pass


@pytest.mark.tlxsim_allow("TLX008")
def test_accepted(wrong_before, wrong_after):
    pass


@pytest.mark.tlxsim_allow("TLX08")
def test_typo():
    pass


def test_refused():
    of_a_thread[(1,)](torch.zeros(64, dtype=torch.int32, device="cuda"), N=64)


@pytest.mark.skipif(torch.cuda.get_device_capability() < (10, 0), reason="tensor memory")
@pytest.mark.parametrize("turn", range(3))
def test_warned(turn):
    left_over[(1,)](torch.empty(128, 64, device="cuda"), N=64)


@pytest.mark.xfail(strict=True)
def test_expected():
    launch(32)
"""


@pytest.fixture
def phases(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(PHASES)
    return pytester


@pytest.mark.parametrize(
    "options", [[], ["-p", "tlxsim.pytest_plugin"], ["--tlxsim-no-fork"], ["-n", "2"]], ids=["fork", "p", "no fork", "xdist"]
)
def test_findings_of_every_phase(phases, options):
    result = phases.runpytest_subprocess("--tlxsim", "--tlxsim-schedules", "1", "-p", "no:cacheprovider", *options)
    # test_teardown passes and has an error then
    result.assert_outcomes(passed=3, failed=2, errors=2, xfailed=1, skipped=3)
    result.stdout.fnmatch_lines(["tlxsim: 6 launches of 5 tests simulated for *"])


def test_refusals_are_short_and_warnings_are_told(phases):
    options = ["--tlxsim", "--tlxsim-arch", "sm_100", "--tlxsim-schedules", "1", "-p", "no:cacheprovider"]
    result = phases.runpytest_subprocess(*options, "-k", "refused or warned or typo or conftest", "-rs")
    result.assert_outcomes(passed=3, failed=1, errors=1, skipped=1)
    text = result.stdout.str()
    assert "gpu.thread_id at test_refusals_are_short_and_warnings_are_told.py" in text
    assert "registry.py" not in text
    result.stdout.fnmatch_lines(
        [
            "tlxsim_allow: there is no code TLX08, see `tlxsim codes`",
            "tlxsim: TLX007 uninitialised read (warning) at *accumulator*",
            "    in *test_warned?0? and 2 more",
            "tlxsim: 3 launches of 3 tests simulated for sm_100, level ttir, 1 schedules each",
            "tlxsim: TLX007 uninitialised read: 3 findings in 3 tests",
            "SKIPPED * needs a Hopper GPU",
        ]
    )


def test_stops_at_the_first_failure(phases):
    options = ["--tlxsim", "--tlxsim-schedules", "1", "-p", "no:cacheprovider", "-x"]
    phases.runpytest_subprocess(*options, "-k", "setup or teardown").assert_outcomes(failed=1)


@pytest.mark.parametrize(("option", "message"), [
    ("--tlxsim-arch=sm_99", "arch must be one of sm_80, *got 'sm_99'"),
    ("--tlxsim-schedules=0", "schedules must be at least 1, got 0"),
])  # fmt: skip
def test_wrong_options_are_named(pytester, option, message):
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("--tlxsim", option)
    result.stderr.fnmatch_lines([f"ERROR: --tlxsim: {message}"])
    assert "Traceback" not in result.stderr.str()
