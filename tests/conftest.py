"""Shared fixtures: where the Triton kernels run, and memory that is NaN until a kernel writes it."""

import os

import pytest
import torch

HAS_GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton


def pytest_collection_modifyitems(items):
    for item in items:
        if "gpu" in item.keywords and not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU of compute capability 8.0 or newer"))
        if "multi_gpu" in item.keywords and torch.cuda.device_count() < 2:
            item.add_marker(pytest.mark.skip(reason="needs two GPUs"))


def pytest_configure():
    torch.set_num_threads(1)  # one worker a core


@pytest.fixture(scope="session")
def device():
    return "cuda" if HAS_GPU else "cpu"


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """Fill what torch.empty and torch.empty_like return: NaN, or a large number for integers."""

    def poisoned(function):
        def filled(*arguments, **options):
            out = function(*arguments, **options)
            with torch.no_grad():
                if out.is_floating_point():
                    out.fill_(torch.nan)
                elif not out.is_complex() and out.dtype != torch.bool:
                    out.fill_(torch.iinfo(out.dtype).max // 3)
            return out

        return filled

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))


@pytest.fixture(autouse=True)
def tf32_on_the_gpu():
    """fp32 tensors are served by the Triton kernels only where TF32 is allowed."""
    before = torch.backends.cuda.matmul.fp32_precision
    if HAS_GPU:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before
