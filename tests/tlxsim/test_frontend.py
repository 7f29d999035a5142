"""From launches to IR: arguments, options, errors of the compiler, and launches that are taken over."""

import gc
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx
from corpus import cases
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.tools.tensor_descriptor import TensorDescriptor

from tlxsim import child, frontend, ir, stack
from tlxsim.budget import start_budget
from tlxsim.findings import Unsupported

SCALE = tl.constexpr(2.0)


@triton.jit
def _twice(x):
    return x * SCALE


@triton.jit
def kernel(x_ptr, n, out_ptr, factor=3.0, N: tl.constexpr = 32, FLAG: tl.constexpr = None):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    if FLAG is not None:
        x += FLAG
    tl.store(out_ptr + at, _twice(x) * factor)


@triton.jit
def described(x_desc, pair, out_ptr, N: tl.constexpr):
    bias, (scale, none) = pair
    tl.store(out_ptr + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :], x_desc.load([bias, 0]) * scale)
    tl.static_assert(none is None)


@triton.jit
def faulty(x_ptr):
    y = tl.load(x_ptr) + undefined  # noqa: F821
    tl.store(x_ptr, y)


@triton.jit
def rejected(x_ptr, N: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, N), tl.zeros((2 * N,), tl.float32))


@triton.jit
def crashing(x_ptr):
    a = tlx.local_alloc((128, 4), tl.uint8, 1, tlx.storage_kind.tmem)
    tlx.local_store(a[0], tl.zeros((128, 4), tl.uint8))


@triton.jit
def fenced_for_the_gpu(x_ptr):
    tl.store(x_ptr, 1.0)
    tlx.fence("gpu")
    tlx.prefetch(x_ptr)


@triton.jit
def printing(x_ptr, N: tl.constexpr):
    tl.static_print("compiled for", N)
    tl.store(x_ptr, 1.0)


@triton.jit
def clustered(x_ptr, N: tl.constexpr):
    tl.static_print("compiled for", N)
    tlx.cluster_barrier()


def compiled(fn, *args, arch="sm_90", level="ttir", **kwargs):
    return frontend.compile_ir(fn, *frontend.bind(fn, args, kwargs), arch, level)


def x32(dtype=torch.float32):
    return torch.zeros(32, dtype=dtype)


class TestArguments:
    def test_by_position_keyword_and_default(self):
        x, out = x32(), x32()
        found = compiled(kernel, x, 7, out_ptr=out)
        assert [name for name, _ in found.arguments] == ["x_ptr", "n", "out_ptr", "factor"]
        assert [value for _, value in found.arguments][1::2] == [7, 3.0]
        assert found.arguments[0][1] is x
        assert [kind.kind for kind in found.module.entry.arg_types] == ["pointer", "scalar", "pointer", "scalar"]

    def test_what_triton_makes_constant_is_no_argument(self):
        assert [name for name, _ in compiled(kernel, x32(), 1, x32()).arguments] == ["x_ptr", "out_ptr", "factor"]
        assert "2.500000e+00" in compiled(kernel, x32(), 7, x32(), FLAG=2.5).text
        assert "tensor<16xf32>" in compiled(kernel, x32(), 7, x32(), N=tl.constexpr(16)).text

    def test_descriptors_and_tuples_are_expanded(self):
        x = TensorDescriptor.from_tensor(torch.zeros(64, 32), [32, 32])
        found = compiled(described, x, (5, (2.0, None)), torch.zeros(32, 32), 32)
        names = ["x_desc", "x_desc.shape.0", "x_desc.shape.1", "x_desc.stride.0", "x_desc.stride.1"]
        assert [name for name, _ in found.arguments] == [*names, "pair.0", "pair.1.0", "out_ptr"]
        assert [value for _, value in found.arguments[1:7]] == [64, 32, 32, 1, 5, 2.0]
        assert found.module.entry.arg_types[0].shape == (32, 32)

    def test_without_tma_a_descriptor_is_taken_apart(self):
        x = TensorDescriptor.from_tensor(torch.zeros(64, 32), [32, 32])
        found = compiled(described, x, (5, (2.0, None)), torch.zeros(32, 32), 32, arch="sm_80")
        assert found.module.entry.arg_types[0].kind == "pointer"
        assert found.arguments[0][1] is x.base
        assert [value for _, value in found.arguments[1:7]] == [64, 32, 32, 1, False, False]

    def test_options(self):
        assert compiled(kernel, x32(), 7, x32(), num_warps=8).num_warps == 8
        assert compiled(kernel, x32(), 7, x32()).num_warps == 4
        with pytest.raises(KeyError, match="num_wraps"):
            compiled(kernel, x32(), 7, x32(), num_wraps=8)
        with pytest.raises(TypeError, match="missing a required argument"):
            compiled(kernel, x32(), 7)

    @pytest.mark.parametrize("options", [dict(num_ctas=2), dict(ctas_per_cga=(2, 1, 1))])
    def test_clusters_are_refused(self, options):
        with pytest.raises(Unsupported, match=r"kernel is launched with num_ctas=2: clusters"):
            compiled(kernel, x32(), 7, x32(), **options)

    def test_levels(self):
        with pytest.raises(ValueError, match="level must be one of ttir, fenced"):
            compiled(kernel, x32(), 7, x32(), level="ttgir")


def test_a_launch_is_compiled_once():
    first = compiled(kernel, x32(), 8, x32(), FLAG=0.125)
    again = compiled(kernel, x32(), 24, x32(), FLAG=0.125)  # not divisible by 16 either
    assert again.module is first.module
    assert again.seconds < 0.01 < first.seconds
    others = [
        compiled(kernel, x32(torch.bfloat16), 8, x32(), FLAG=0.125), compiled(kernel, x32(), 8, x32(), FLAG=0.25),
        compiled(kernel, x32(), 8, x32(), FLAG=0.125, level="fenced"),
        compiled(kernel, x32(), 8, x32(), FLAG=0.125, arch="sm_100"),
    ]  # fmt: skip
    assert all(other.module is not first.module for other in others)


def test_globals_may_not_change(monkeypatch):
    compiled(kernel, x32(), 7, x32())
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(3.0))
    with pytest.raises(RuntimeError, match=r"global SCALE has changed since kernel was compiled, from .*2\.0.* to .*3\.0"):
        compiled(kernel, x32(), 7, x32())


class TestErrors:
    def test_of_the_frontend(self):
        with pytest.raises(
            frontend.FrontendError, match=r"faulty at .*test_frontend.py:\d+ .ttir, sm_90.: the compiler"
        ) as error:
            compiled(faulty, x32())
        assert "undefined is not defined" in str(error.value)
        assert "y = tl.load(x_ptr) + undefined" in str(error.value)
        assert isinstance(error.value, triton.CompilationError)
        assert "NameError" in str(error.value.__cause__)

    def test_of_a_shape(self):
        with pytest.raises(frontend.FrontendError, match=r"rejected at (.|\n)*"):
            compiled(rejected, x32(), 32)

    def test_of_a_pass_are_shown_without_the_dump(self):
        with pytest.raises(frontend.FrontendError) as error:
            compiled(cases.plain.catted, x32(), x32(), 16, level="fenced")
        assert "failed to legalize operation 'tt.cat'" in str(error.value)
        assert "pair = tl.cat(" in str(error.value)
        assert len(str(error.value).splitlines()) < 6

    def test_of_a_launch_with_clusters(self):
        with pytest.raises(triton.CompilationError, match="undefined is not defined"):
            compiled(faulty, x32(), num_ctas=2)

    def test_a_compiler_that_dies_takes_nobody_along(self):
        with pytest.raises(frontend.FrontendError, match=r"crashing at .*the compiler died of SIG(ABRT|SEGV)") as error:
            compiled(crashing, x32(), arch="sm_100")
        assert "dummy_tmem_layout" in str(error.value)

    def test_operations_that_the_plugin_leaves_out_are_refused(self):
        with pytest.raises(Unsupported, match=r"fenced_for_the_gpu: .* leaves out ttng.fence at test_frontend.py:\d+"):
            compiled(fenced_for_the_gpu, x32())


class TestChild:
    def test_results_come_back(self):
        assert child.run(lambda: dict(a=os.getpid())) != dict(a=os.getpid())

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
            (lambda: os.kill(os.getpid(), signal.SIGSEGV), "died of SIGSEGV"),
            (lambda: os._exit(3), "exited with status 3 without a result"),
            (lambda: lambda: None, "exited with status 1 without a result"),  # cannot be pickled
            (lambda: sys.exit(2), "SystemExit: 2"),
        ],
    )
    def test_failures(self, function, message):
        with pytest.raises(child.ChildError, match=message):
            child.run(function)

    def test_stderr_is_kept(self):
        def fail():
            for n in range(100):
                print(f"line {n}", file=sys.stderr, flush=True)
            os._exit(1)

        with pytest.raises(child.ChildError) as error:
            child.run(fail)
        assert error.value.stderr.splitlines() == [f"line {n}" for n in range(80, 100)]

    def test_time_is_limited(self):
        begin = time.monotonic()
        with pytest.raises(child.ChildError, match="did not end within 0 s"):
            child.Child(lambda: time.sleep(60), timeout=0.1).result()
        assert time.monotonic() - begin < 10

    def test_a_child_that_nobody_waits_for_is_ended(self):
        one = child.Child(lambda: time.sleep(60))
        pid = one._pid
        del one
        gc.collect()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_a_kernel_prints_at_compile_time_is_seen_once(capsys):
    compiled(printing, x32(), 32)
    bound, options = frontend.bind(printing, (x32(), 32), {})
    start_budget(printing, bound, options, "sm_90").result()
    assert capsys.readouterr().out == "compiled for 32\n"


def test_what_the_compiler_dumps_when_it_fails_is_not_shown(capfd):
    with pytest.raises(frontend.FrontendError, match=r"requires ttg.num-ctas > 1"):
        compiled(clustered, x32(), 32)
    out, _ = capfd.readouterr()
    assert out == "compiled for 32\n"


@triton.autotune([triton.Config(dict(N=16)), triton.Config(dict(N=32), num_warps=8)], key=["n"])
@triton.heuristics(dict(FLAG=lambda values: float(values["N"])))
@triton.jit
def tuned(x_ptr, n, N: tl.constexpr, FLAG: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, N), FLAG + n)


class TestHooked:
    @pytest.fixture
    def launches(self):
        found = []

        def launch(fn, grid, args, kwargs):
            found.append((fn, grid, args, kwargs))
            return frontend.Launched(fn, *frontend.bind(fn, args, kwargs), "sm_90")

        with stack.hooked(launch, "sm_90"):
            yield found

    def test_a_launch_is_taken_over(self, launches):
        x = x32()
        kernel[(2,)](x, 7, x, N=16, num_warps=2)
        assert launches == [(kernel, (2,), (x, 7, x), dict(N=16, num_warps=2))]

    def test_the_first_configuration_is_taken(self, launches):
        tuned[lambda meta: (meta["N"],)](x32(), 5)
        fn, grid, _, kwargs = launches[0]
        assert frontend.unwrap(tuned) is fn
        assert (kwargs["N"], kwargs["FLAG"], kwargs["num_warps"]) == (16, 16.0, 4)
        assert grid(kwargs) == (16,)
        assert len(tuned.configs) == 2

    def test_a_launch_compiles_for_real_when_asked(self, launches):
        launched = kernel[(1,)](x32(), 7, x32())
        assert ".target sm_90a" in launched.asm["ptx"]
        assert launched.metadata.shared == 0

    def test_a_kernel_knows_its_registers(self, launches):
        warm = kernel.warmup(x32(), 7, x32(), grid=(1,))
        warm._init_handles()
        assert 8 <= warm.n_regs <= 64
        assert (warm.n_spills, warm.n_max_threads) == (0, 1024)
        assert kernel[(1,)](x32(), 7, x32()).n_regs == warm.n_regs

    def test_what_a_launch_returns_can_be_launched(self, launches):
        x = x32()
        launched = kernel[(1,)](x, 7, x, num_warps=2)
        launched[(3,)](x, 7, x, 3.0, 32, None)
        launched.run(4, 1, 1, 0, launched.function, launched.packed_metadata, None, None, None, x, 9, x, 3.0, 32, None)
        assert [grid for _, grid, _, _ in launches] == [(1,), (3,), (4, 1, 1)]
        assert all(kwargs["num_warps"] == 2 for _, _, _, kwargs in launches)

    def test_warmup_launches_nothing(self, launches):
        assert isinstance(kernel.warmup(x32(), 7, x32(), grid=(1,)), frontend.Launched)
        assert not launches

    def test_the_driver_answers_for_the_gpu(self, launches):
        active = triton.runtime.driver.active
        assert active.get_current_target().arch == 90
        assert active.get_device_capability() == (9, 0)
        assert active.get_active_torch_device() == torch.device("cpu")
        assert active.utils.get_device_properties(0)["max_shared_mem"] == 232448

    def test_all_is_as_before_afterwards(self):
        run, tune = triton.runtime.JITFunction.run, triton.runtime.Autotuner.run
        driver = triton.runtime.driver._active
        with pytest.raises(ZeroDivisionError), stack.hooked(lambda *launch: None, "sm_100"):
            raise ZeroDivisionError
        assert (triton.runtime.JITFunction.run, triton.runtime.Autotuner.run) == (run, tune)
        assert triton.runtime.driver._active is driver

    def test_a_wrapper_that_is_installed_meanwhile_stays(self, monkeypatch):
        before, calls = triton.runtime.JITFunction.run, []
        monkeypatch.setattr(triton.runtime.JITFunction, "run", lambda self, *args, **kwargs: calls.append(args))
        with stack.hooked(lambda *launch: None, "sm_90"):
            ours = triton.runtime.JITFunction.run
            wrapper = lambda self, *args, **kwargs: ours(self, *args, **kwargs)  # noqa: E731
            triton.runtime.JITFunction.run = wrapper
        assert triton.runtime.JITFunction.run is wrapper
        kernel[(1,)](1)
        assert calls == [(1,)]
        assert before is not wrapper


WITHOUT_PLUGIN = """
import sys
sys.path.insert(0, sys.argv[1])
import plain, torch
from tlxsim import frontend, stack
from tlxsim.budget import start_budget
x = torch.zeros(64, 64)
launch = frontend.bind(plain.dots, (x.half(), x.half(), x, 64), {})
lengths = [len(frontend.compile_ir(plain.dots, *launch, "sm_90", level).text) for level in frontend.LEVELS]
print(stack.current().name, min(lengths) > 1000, start_budget(plain.dots, *launch, "sm_90").result().shared > 0)
print("utlx_plugin" in sys.modules)
"""


@pytest.mark.parametrize("name", ["utlx", "triton"])
def test_plain_kernels_need_no_plugin(name):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_PLUGIN_PATHS"}
    if name == "triton":
        environment["UTLX_NO_AUTOREGISTER"] = "1"
    command = [sys.executable, "-c", WITHOUT_PLUGIN, str(cases.FOLDER)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [name, "True", "True", "False"]


def test_the_interpreter_is_no_place_for_kernels(monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set"), stack.hooked(lambda *launch: None, "sm_90"):
        pass


@gluon.jit
def in_gluon(x_ptr):
    gl.store(x_ptr, 1.0)


def test_gluon_is_refused():
    with pytest.raises(Unsupported, match="in_gluon is written in Gluon"):
        compiled(in_gluon, x32())


def test_only_the_latest_are_kept(monkeypatch):
    monkeypatch.setattr(frontend, "MOST_KNOWN", 1)
    monkeypatch.setattr(frontend, "_KNOWN", {})
    first = compiled(kernel, x32(), 7, x32())
    assert compiled(kernel, x32(), 7, x32()).module is first.module
    compiled(kernel, x32(), 7, x32(), N=16)
    assert compiled(kernel, x32(), 7, x32()).module is not first.module


@pytest.mark.parametrize("arch", ["sm_75", "hopper"])
def test_architectures_that_are_not_known(arch):
    with pytest.raises(ValueError, match=r"sm_90|invalid literal"):
        stack.FakeDriver(arch)


def test_importing_needs_neither_triton_nor_torch():
    modules = "child, stack, frontend, budget, ir"
    code = f"import sys; from tlxsim import {modules}; print([m for m in ('torch', 'triton') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(("case", "level"), [(case, level) for case in cases.CASES for level in case.levels], ids=str)
def test_the_frontend_prints_what_the_corpus_holds(case, level):
    """A Triton that prints another syntax fails here, and in no verdict."""
    golden, now = cases.forms(ir.parse(case.path(level).read_text())), cases.forms(case.compile(level).module)
    assert now - golden == set()
    assert golden - now == set()


def test_the_corpus_is_the_cases():
    expected = {case.path(level).name for case in cases.CASES for level in case.levels}
    assert {path.name for path in cases.FOLDER.glob("*.mlir")} == expected


# What of TLX the corpus lacks: other GPUs' parts, types, and what this plugin refuses for NVIDIA's.
ELSEWHERE = re.compile(r"^(?!alloc).*(amd|mfma|layout_encoding|LayoutEncoding|_type|_type_class|_ir_type)")
NO_OPERATIONS = {"buffered_tensor", "mbarrier", "clc_response", "CLCPipelineContext", "async_token", "tensor_descriptor_ptr"}
FOR_AMD = {
    "warp_pipeline_stage", "buffer_load_to_local", "buffer_atomic_add", "extract_slice", "rematerialized_range",
    "warp_predicate", "dot_operand_layout", "slice_layout",
}  # fmt: skip
REFUSED = {
    "async_store", "remote_view", "remote_shmem_store", "async_remote_shmem_store", "cluster_barrier", "cluster_size_1d",
    "clock64", "stoch_round", "vote_ballot_sync", "async_dot_scaled", "_alloc_clc_responses", "_clc_issue", "_clc_query",
    "clc_create_context", "clc_producer", "clc_consumer", "allocate_tensor_descriptor", "make_tensor_descriptor",
    "reinterpret_tensor_descriptor", "_to_mxfp8_block", "is_hip",
}  # fmt: skip


def test_the_corpus_uses_all_of_tlx():
    sources = "".join(path.read_text() for path in cases.FOLDER.glob("*.py"))
    lacking = {name for name in tlx.__all__ if not re.search(rf"tlx\.{name}\b", sources) and not ELSEWHERE.match(name)}
    assert lacking - NO_OPERATIONS - FOR_AMD - REFUSED == set()
