"""Which backend is chosen on which GPU, and that an explicit one is never replaced."""

import subprocess
import sys

import pytest
import torch

from backends import HAS_GPU, HAS_TRITON
from blockattn import block_attention, dispatch

CUDA = torch.device("cuda", 0)
HALF = (torch.bfloat16, torch.float16)


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that cuda:0 has a given compute capability, that ROCm is or is not there, and which Triton is installed."""

    def pretend(capability=(9, 0), hip=None, obstacle=None):
        for function in (dispatch._choose, dispatch._triton_obstacle, dispatch._installed_obstacle):
            function.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Some GPU")
        monkeypatch.setattr(torch.version, "hip", hip)
        if obstacle is not None:
            monkeypatch.setattr(dispatch, "_installed_obstacle", lambda: obstacle)

    yield pretend
    monkeypatch.undo()
    for function in (dispatch._choose, dispatch._triton_obstacle, dispatch._installed_obstacle):
        function.cache_clear()


@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("dtype", HALF)
def test_sixteen_bits_take_triton_from_sm_80_on(gpu, capability, dtype):
    gpu(capability)
    assert dispatch.choose(CUDA, dtype).backend == "triton"


def test_older_gpus_take_torch_and_refuse_triton(gpu):
    gpu((7, 5), obstacle=None if HAS_TRITON else "")
    choice = dispatch.choose(CUDA, torch.float16)
    assert choice.backend == "torch"
    assert "needs compute capability 8.0 or newer, got Some GPU (sm_75)" in choice.reason or not HAS_TRITON
    with pytest.raises(ValueError, match="backend='triton' cannot serve this call"):
        dispatch.resolve("triton", CUDA, torch.float16)


@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
def test_float32_takes_triton_where_tf32_is_allowed(gpu):
    """conftest restores the flag."""
    gpu()
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert dispatch.choose(CUDA, torch.float32).backend == "torch"
    with pytest.raises(ValueError, match=r"multiplied in TF32 there, which torch\.backends\.cuda\.matmul does not allow"):
        dispatch.resolve("triton", CUDA, torch.float32)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert dispatch.choose(CUDA, torch.float32).backend == "triton"


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        ("torch.set_float32_matmul_precision('high')", True),
        ("torch.set_float32_matmul_precision('highest')", False),
        ("torch.backends.cuda.matmul.allow_tf32 = True", True),
        ("torch.backends.fp32_precision = 'tf32'", True),
        ("torch.backends.cuda.matmul.fp32_precision = 'ieee'", False),
        ("pass", False),
    ],
)
def test_every_way_to_allow_tf32_is_read(setting, allowed):
    """In a process of its own, since torch refuses to mix its older and newer flags."""
    code = f"import torch\nfrom blockattn import dispatch\n{setting}\nprint(dispatch.tf32_allowed())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(allowed)


def test_amd_is_opt_in(gpu):
    gpu((9, 4), hip="6.0")
    assert dispatch.choose(CUDA, torch.float16) == dispatch.Choice(
        "torch", "the Triton kernels are opt-in on AMD: backend='triton'"
    )
    if HAS_TRITON:
        assert dispatch.resolve("triton", CUDA, torch.float16) == "triton"


def test_without_triton_the_reason_says_so(gpu):
    gpu(obstacle="it needs Triton 3.6 or newer, which is not installed")
    assert dispatch.choose(CUDA, torch.float16) == dispatch.Choice(
        "torch", "it needs Triton 3.6 or newer, which is not installed"
    )
    with pytest.raises(ValueError, match=r"it needs Triton 3\.6 or newer, which is not installed"):
        dispatch.resolve("triton", CUDA, torch.float16)


def test_an_old_triton_is_refused(monkeypatch):
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(dispatch.importlib.metadata, "version", lambda name: "3.5.1")
    dispatch._installed_obstacle.cache_clear()
    assert dispatch._installed_obstacle() == "it needs Triton 3.6 or newer, got 3.5.1"
    dispatch._installed_obstacle.cache_clear()


def test_float64_takes_torch(gpu):
    gpu()
    assert dispatch.choose(torch.device("cpu"), torch.float64).backend == "torch"
    if HAS_TRITON:
        with pytest.raises(ValueError, match="cannot serve this call"):
            dispatch.resolve("triton", CUDA, torch.float64)


@pytest.mark.skipif(HAS_GPU or not HAS_TRITON, reason="Triton's interpreter runs here without a GPU")
def test_the_interpreter_refuses_bfloat16():
    q = torch.randn(10, 1, 16, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"interpreter computes torch\.bfloat16 wrongly"):
        block_attention(q, q, q, torch.tensor([0, 10]), backend="triton")


def test_other_devices_take_torch():
    assert dispatch.choose(torch.device("mps"), torch.float16).backend == "torch"


def test_triton_on_the_cpu_says_what_it_needs(monkeypatch):
    if not HAS_TRITON:
        pytest.skip("needs triton")
    monkeypatch.setattr(dispatch, "interpreting", lambda: False)
    dispatch._triton_obstacle.cache_clear()
    with pytest.raises(ValueError, match="needs an NVIDIA GPU"):
        dispatch.resolve("triton", torch.device("cpu"), torch.float16)
    dispatch._triton_obstacle.cache_clear()
