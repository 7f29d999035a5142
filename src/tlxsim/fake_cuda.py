"""Code that asks for the device "cuda" runs on the CPU, and is told of a GPU of some architecture.

Inside `cuda_on_cpu` all memory is the CPU's, and each storage stands for memory of the CPU or of the GPU: `is_cuda` and
`device` answer so, and copies between the two are copies, so that a kernel that works in place spares the original. What no
call of torch is seen to make on the CPU (a gradient that autograd hands on, torch.Tensor(...)) counts as the GPU's. The
simulator's own modules are told the truth.

What it does not do: mixing tensors of both devices raises nothing, streams and events order nothing since everything runs at
once, `torch.autocast("cuda")` casts nothing, and there are no CUDA graphs. `torch.compile` leaves functions as they are: its
kernels would run past the simulator.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from .stack import FakeDriver, arch_number, shared_limit

_MEASURED = 1e-3  # ms; nothing is measured
_ON_CPU = "tlxsim_on_cpu"  # attribute of storages that stand for the CPU's memory


class _Stream:
    """A stream or an event: all work before now is done."""

    cuda_stream = device_index = stream_id = priority = 0

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def elapsed_time(self, other: _Stream) -> float:
        return _MEASURED

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is left to wait for."""

    synchronize = record = wait = wait_event = wait_stream = record_event = _nothing


def _answers(arch: str, multiprocessors: int) -> dict[str, Any]:
    """What `torch.cuda` says."""
    import torch

    capability, limit = divmod(arch_number(arch), 10), shared_limit(arch)
    properties = types.SimpleNamespace(
        name=f"simulated {arch}", major=capability[0], minor=capability[1], multi_processor_count=multiprocessors,
        total_memory=1 << 37, warp_size=32, shared_memory_per_block=48 << 10, regs_per_multiprocessor=1 << 16,
        shared_memory_per_block_optin=limit, shared_memory_per_multiprocessor=limit + 1024, L2_cache_size=50 << 20,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024, gcnArchName="", is_integrated=0,
        is_multi_gpu_board=0,
    )  # fmt: skip
    stream = _Stream()
    values: dict[str, Any] = dict(
        is_available=True, is_initialized=True, device_count=1, current_device=0, get_device_capability=capability,
        get_device_properties=properties, get_device_name=properties.name, get_arch_list=[arch], memory_allocated=0,
        max_memory_allocated=0, memory_reserved=0, is_bf16_supported=True, is_current_stream_capturing=False,
        mem_get_info=(1 << 37, 1 << 37), current_stream=stream, default_stream=stream, stream=stream, synchronize=None,
        set_device=None, empty_cache=None, init=None, reset_peak_memory_stats=None, reset_max_memory_allocated=None,
        set_stream=None, ipc_collect=None, _sleep=None,
    )  # fmt: skip
    answers = {name: _constant(value) for name, value in values.items()}
    answers |= dict.fromkeys(("manual_seed", "manual_seed_all"), torch.default_generator.manual_seed)
    answers |= dict.fromkeys(("seed", "seed_all"), torch.default_generator.seed)
    for name in ("get_rng_state", "set_rng_state", "initial_seed"):
        answers[name] = _of_cpu(getattr(torch, name))
    device = type("device", (_Stream,), dict(idx=0))
    return {**answers, "Stream": _Stream, "Event": _Stream, "device": device, "device_of": device}


def _constant(value: Any) -> Any:
    return lambda *args, **kwargs: value


def _of_cpu(function: Any) -> Any:
    """The function without the device that CUDA's variant of it takes last."""
    parameters = len(inspect.signature(function).parameters)
    return lambda *args, device=None: function(*args[:parameters])


def _kind(value: Any) -> str | None:
    """ "cuda", "cpu", ... where a value names a device."""
    import torch

    kind = value.type if isinstance(value, torch.device) else value.split(":")[0] if isinstance(value, str) else None
    return kind if kind in ("cuda", "cpu", "meta") else None


def _moved(value: Any) -> Any:
    """A CUDA device, or its name, becomes the CPU."""
    return "cpu" if _kind(value) == "cuda" else value


def _place(tensor: Any) -> str:
    """The device that a tensor stands for; its real device is asked for outside of the mode."""
    if tensor.device.type != "cpu":
        return tensor.device.type
    return "cpu" if hasattr(_storage(tensor), _ON_CPU) else "cuda"


def _storage(tensor: Any) -> Any:
    """None of sparse and nested tensors."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def _tensors(values: Any) -> Iterator[Any]:
    """Those among arguments or results, in lists too."""
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _simulator_asks(frame: Any) -> bool:
    """Whether the question comes from a module of the simulator, perhaps by way of torch's own."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("torch."):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("tlxsim.")


@functools.cache
def _mode_class() -> type:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._device import _device_constructors

    tensor = torch.Tensor
    cuda = torch.device("cuda", 0)
    told: dict[Any, Callable[[str], Any]] = {
        tensor.is_cuda.__get__: lambda place: place == "cuda",
        tensor.is_cpu.__get__: lambda place: place == "cpu",
        tensor.device.__get__: lambda place: cuda if place == "cuda" else torch.device(place),
        tensor.get_device: lambda place: 0 if place == "cuda" else -1,
    }
    constructors = _device_constructors()
    numbered = {torch.device: 0, torch._C._nn._parse_to: 0, tensor.to: 1}  # where a device may be a number

    class OnCpu(TorchFunctionMode):
        """Calls of torch whose arguments name a CUDA device name the CPU; results know for which device they stand."""

        active = False
        default: str | None = None  # what torch.set_default_device has named

        def __torch_function__(self, function: Any, kinds: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            if function in told:
                return function(*args) if _simulator_asks(sys._getframe(1)) else told[function](_place(args[0]))
            if function is tensor.pin_memory:
                return args[0]
            kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
            if type(kwargs.get("device")) is int:
                kwargs["device"] = cuda
            at = numbered.get(function, len(args))
            if at < len(args) and type(args[at]) is int:
                args = (*args[:at], torch.device("cuda", args[at]), *args[at + 1 :])
            if function in (torch.device, torch._C._nn._parse_to):
                return function(*args, **kwargs)
            named = self._named(function, args, kwargs)
            moved = {name: _moved(value) for name, value in kwargs.items()}
            result = args[0] if function is tensor.cuda else function(*map(_moved, args), **moved)
            if not isinstance(result, (tensor, list, tuple)) or isinstance(result, torch.Size):
                return result
            sources = list(_tensors((*args, *kwargs.values())))
            if function in (tensor.to, tensor.cpu, tensor.cuda) and named not in (None, _place(args[0])):
                if _storage(result) is _storage(args[0]):  # a copy, as between devices
                    result = result.clone()
            elif named is None:
                named = "cpu" if all(_place(source) == "cpu" for source in sources) else "cuda"
            if named == "cpu":
                taken = [_storage(source) for source in sources]
                for made in _tensors((result,)):
                    storage = _storage(made)
                    if storage is not None and not any(storage is other for other in taken):
                        setattr(storage, _ON_CPU, True)
            return result

        @staticmethod
        def _named(function: Any, args: tuple, kwargs: dict) -> str | None:
            """The device that a call asks for, None where it goes by its tensors or by the default."""
            if function in (tensor.cuda, tensor.cpu):
                return "cuda" if function is tensor.cuda else "cpu"
            device = kwargs.get("device")
            if function is tensor.to:
                (target,) = args[1:2] or (device if device is not None else kwargs.get("other"),)
                return _place(target) if isinstance(target, tensor) else _kind(target)
            return OnCpu.default if device is None and function in constructors else _kind(device)

    return OnCpu


def _marking(function: Callable) -> Callable:
    """A function that makes a tensor of the CPU, and that no mode is told of."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        setattr(_storage(result), _ON_CPU, True)
        return result

    return called


def _in_mode(function: Callable) -> Callable:
    """The function with the mode on: threads have modes of their own, and torch turns it off while it calls back."""
    mode = _mode_class()

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with mode() if mode.active else contextlib.nullcontext():
            return function(*args, **kwargs)

    return called


def _registration(original: Callable) -> Callable:
    """`torch.library.Library.impl`, of whose kernels for CUDA and for the CPU that one is called for which tensors stand."""
    kernels: dict[str, dict[str, Callable]] = {}

    def impl(library: Any, operator: Any, kernel: Any, key: str = "", **options: Any) -> Any:
        key = key or library.dispatch_key
        if not inspect.isfunction(kernel):
            return original(library, operator, kernel, key, **options)
        if key not in ("CUDA", "CPU"):
            return original(library, operator, _in_mode(kernel), key, **options)
        known = kernels.setdefault(f"{library.ns}::{operator}", {})
        known[key.lower()] = _in_mode(kernel)

        def chosen(*args: Any, **kwargs: Any) -> Any:
            places = {_place(tensor) for tensor in _tensors((*args, *kwargs.values()))} or set(known)
            place = "cuda" if "cuda" in places else "cpu"
            if place not in known:
                raise NotImplementedError(f"{operator} has no kernel for {place} tensors")
            return known[place](*args, **kwargs)

        return original(library, operator, chosen, "CPU", **options) if len(known) == 1 else None

    return impl


def _generator() -> type:
    import torch

    class Generator(torch.Generator):
        """A generator for any device is one of the CPU."""

        def __new__(cls, device: Any = "cpu") -> Generator:
            return super().__new__(cls, _moved(device))

    return Generator


def _once(function: Any, *args: Any, quantiles: Any = None, return_mode: str = "mean", **kwargs: Any) -> Any:
    """Triton's do_bench, which runs the function once."""
    function()
    if quantiles is not None:
        return [_MEASURED] * len(quantiles) if len(quantiles) > 1 else _MEASURED
    return [_MEASURED] if return_mode == "all" else _MEASURED


def _as_it_is(function: Any = None, **options: Any) -> Any:
    """torch.compile, as a function and as a decorator with or without options."""
    return function if function is not None else lambda decorated: decorated


def _replacements(arch: str, multiprocessors: int) -> Iterator[tuple[Any, str, Any]]:
    """What is another while CUDA is on the CPU: (owner, name, value)."""
    import torch
    import triton.testing

    for name, value in _answers(arch, multiprocessors).items():
        yield torch.cuda, name, value
    for name in ("range_push", "range_pop", "mark"):
        yield torch.cuda.nvtx, name, _constant(0)
    accelerator = dict(
        is_available=True, device_count=1, current_accelerator=torch.device("cuda"), current_device_index=0,
        set_device_index=None, synchronize=None, empty_cache=None, current_stream=_Stream(),
    )  # fmt: skip
    for name, value in accelerator.items():
        yield torch.accelerator, name, _constant(value)
    yield FakeDriver, "get_active_torch_device", _constant(torch.device("cuda", 0))
    yield torch, "Generator", _generator()
    set_default, mode = torch.set_default_device, _mode_class()

    def set_default_device(wanted: Any) -> None:
        mode.default = _kind(wanted)
        set_default(_moved(wanted))

    yield torch, "set_default_device", set_default_device
    get_default = torch.get_default_device
    yield torch, "get_default_device", lambda: torch.device(mode.default) if mode.default else get_default()
    yield torch, "from_numpy", _marking(torch.from_numpy)
    yield torch, "compile", _as_it_is
    yield torch.nn.Module, "compile", _constant(None)
    yield torch.version, "cuda", "12.8"
    yield torch.autograd, "_engine_run_backward", _in_mode(torch.autograd._engine_run_backward)
    yield torch.library.Library, "impl", _registration(torch.library.Library.impl)
    yield threading.Thread, "run", _in_mode(threading.Thread.run)
    for name in ("do_bench", "do_bench_cudagraph"):
        yield triton.testing, name, _once


@contextlib.contextmanager
def cuda_on_cpu(arch: str, multiprocessors: int = 4) -> Iterator[None]:
    """Inside the block the device "cuda" is the CPU, presented as one GPU of an architecture.

    Args:
        arch: like "sm_90".
        multiprocessors: what kernels that take as many programs as there are multiprocessors get.
    """
    missing = object()
    replaced = list(_replacements(arch, multiprocessors))
    before = [(owner, name, vars(owner).get(name, missing)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    mode = _mode_class()
    outer, mode.active = mode.active, True
    try:
        with mode():
            yield
    finally:
        mode.active, mode.default = outer, None
        for owner, name, value in before:
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
