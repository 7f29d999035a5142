"""Code that asks for the device "cuda" runs on the CPU, and is told of a GPU of some architecture.

Inside `cuda_on_cpu` tensors made on, or moved to, a CUDA device stay on the CPU, and `torch.cuda` answers for one GPU; every
tensor's `is_cuda` is True. What it does not do: `tensor.device` says CPU, and streams and events order nothing: everything
runs at once.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import types
from collections.abc import Iterator
from typing import Any

from .stack import arch_number, shared_limit

_MEASURED = 1e-3  # ms; nothing is measured


class _Stream:
    """A stream or an event: all work before now is done."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: _Stream) -> float:
        return _MEASURED

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is left to wait for."""

    synchronize = record = wait = wait_event = wait_stream = record_event = _nothing


def _answers(arch: str, multiprocessors: int) -> dict[str, Any]:
    """What `torch.cuda` says."""
    capability = divmod(arch_number(arch), 10)
    properties = types.SimpleNamespace(
        name=f"simulated {arch}", major=capability[0], minor=capability[1], multi_processor_count=multiprocessors,
        total_memory=1 << 37, warp_size=32, shared_memory_per_block=48 << 10, regs_per_multiprocessor=1 << 16,
        shared_memory_per_block_optin=shared_limit(arch), L2_cache_size=50 << 20, max_threads_per_multi_processor=2048,
        gcnArchName="", is_integrated=0, is_multi_gpu_board=0,
    )  # fmt: skip
    values: dict[str, Any] = dict(
        is_available=True, is_initialized=True, device_count=1, current_device=0, get_device_capability=capability,
        get_device_properties=properties, get_device_name=properties.name, memory_allocated=0, max_memory_allocated=0,
        memory_reserved=0, is_bf16_supported=True, is_current_stream_capturing=False, mem_get_info=(1 << 37, 1 << 37),
    )  # fmt: skip
    answers = {name: _constant(value) for name, value in values.items()}
    for name in (
        "synchronize", "set_device", "empty_cache", "init", "reset_peak_memory_stats", "set_stream", "ipc_collect", "_sleep",
    ):  # fmt: skip
        answers[name] = _constant(None)
    for name in ("current_stream", "default_stream", "stream", "device"):
        answers[name] = lambda *args, **kwargs: _Stream()
    import torch

    for name in ("manual_seed", "manual_seed_all"):  # torch.manual_seed calls these
        answers[name] = torch.default_generator.manual_seed
    for name in ("get_rng_state", "set_rng_state", "initial_seed"):
        answers[name] = _of_cpu(getattr(torch, name))
    return {**answers, "Stream": _Stream, "Event": _Stream}


def _constant(value: Any) -> Any:
    return lambda *args, **kwargs: value


def _of_cpu(function: Any) -> Any:
    """The function without the device that CUDA's variant of it takes last."""
    parameters = len(inspect.signature(function).parameters)
    return lambda *args, device=None: function(*args[:parameters])


def _moved(value: Any) -> Any:
    """A CUDA device, or its name, becomes the CPU."""
    import torch

    if isinstance(value, str) and value.split(":")[0] == "cuda":
        return "cpu"
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


def _mode() -> Any:
    import torch
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        """Calls of torch whose arguments name a CUDA device name the CPU."""

        def __torch_function__(self, function: Any, kinds: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            if function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
                return args[0]
            if function == torch.Tensor.is_cuda.__get__:
                return True
            kwargs = {name: _moved(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
            if isinstance(kwargs.get("device"), int):  # its number
                kwargs["device"] = "cpu"
            return function(*(_moved(value) for value in args), **kwargs)

    return OnCpu()


def _generator() -> type:
    import torch

    class Generator(torch.Generator):
        """A generator for any device is one of the CPU."""

        def __new__(cls, device: Any = "cpu") -> Generator:
            return super().__new__(cls, _moved(device))

    return Generator


@contextlib.contextmanager
def cuda_on_cpu(arch: str, multiprocessors: int = 4) -> Iterator[None]:
    """Inside the block the device "cuda" is the CPU, presented as one GPU of an architecture.

    Args:
        arch: like "sm_90".
        multiprocessors: what kernels that take as many programs as there are multiprocessors get.
    """
    import torch
    import triton.testing

    def once(function: Any, *args: Any, quantiles: Any = None, return_mode: str = "mean", **kwargs: Any) -> Any:
        function()
        if quantiles is not None:
            return [_MEASURED] * len(quantiles) if len(quantiles) > 1 else _MEASURED
        return [_MEASURED] if return_mode == "all" else _MEASURED

    run = threading.Thread.run

    def run_on_cpu(thread: threading.Thread) -> None:
        with _mode():  # each thread has modes of its own
            run(thread)

    replaced = [(torch.cuda, name, value) for name, value in _answers(arch, multiprocessors).items()]
    replaced += [(torch.cuda.nvtx, name, _constant(0)) for name in ("range_push", "range_pop", "mark")]
    replaced += [(torch, "Generator", _generator()), (threading.Thread, "run", run_on_cpu), (torch.version, "cuda", "12.8")]
    replaced += [(triton.testing, name, once) for name in ("do_bench", "do_bench_cudagraph")]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced if hasattr(owner, name)]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        with _mode():
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
