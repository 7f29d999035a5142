"""Which backend computes a call, and why.

`choose` gives the default for a device and dtype; `require` refuses a backend that cannot serve a call, with the
reason, and never replaces it by another. `kernels` imports a backend's module when it is first used.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
from types import ModuleType

import torch

BACKENDS = ("reference", "torch", "triton")
SPARE_ROWS = {"torch": 1, "triton": 0}  # that a backend's backward wants after the last row of each gradient
MIN_TRITON = (3, 6)
MIN_CAPABILITY = (8, 0)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The backend that serves a call by default, and the reason in words."""

    backend: str
    reason: str


def choose(device: torch.device, dtype: torch.dtype) -> Choice:
    """The default backend for tensors of this dtype on this device."""
    return _choose(device, dtype, dtype == torch.float32 and tf32_allowed())


def require(backend: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise a ValueError with the reason when this backend cannot serve the device and dtype."""
    obstacle = _triton_obstacle(device, dtype, dtype == torch.float32 and tf32_allowed()) if backend == "triton" else None
    if obstacle:
        raise ValueError(f"backend='triton' cannot serve this call: {obstacle}. backend=None picks one that can")


def resolve(backend: str | None, device: torch.device, dtype: torch.dtype) -> str:
    """The backend to run: the default for None, else the one named, or a ValueError."""
    if backend is None:
        return choose(device, dtype).backend
    require(backend, device, dtype)
    return backend


@functools.cache
def kernels(backend: str, direction: str, rotary: bool) -> ModuleType:
    """The module that computes `direction` ("forward" or "backward") for a backend, with rotary embedding or without."""
    name = "torch_backend" if backend == "torch" else f"kernels.{backend}_{'rotary_' * rotary}{direction}"
    return importlib.import_module(f".{name}", __package__)


@functools.cache
def tile_builder(device: torch.device) -> ModuleType:
    """The module whose `build` makes a tile table on this device: two Triton kernels on a GPU, else torch operations."""
    name = "kernels.triton_tiles" if device.type == "cuda" and _installed_obstacle() is None else "tiles"
    return importlib.import_module(f".{name}", __package__)


@functools.cache
def _choose(device: torch.device, dtype: torch.dtype, tf32: bool) -> Choice:
    if device.type != "cuda":
        return Choice("torch", f"no kernels for {device.type}")
    if torch.version.hip is not None:
        return Choice("torch", "the Triton kernels are opt-in on AMD: backend='triton'")
    obstacle = _triton_obstacle(device, dtype, tf32)
    if obstacle:
        return Choice("torch", obstacle)
    return Choice("triton", f"{_architecture(device)}, Triton {importlib.metadata.version('triton')}")


@functools.cache
def _triton_obstacle(device: torch.device, dtype: torch.dtype, tf32: bool) -> str | None:
    """Why the Triton kernels cannot compute tensors of this dtype on this device; None when they can."""
    obstacle = _installed_obstacle()
    if obstacle:
        return obstacle
    if device.type == "cpu" and interpreting():
        if dtype not in (torch.float16, torch.float32):
            return f"Triton's interpreter computes {dtype} wrongly: use float16 or float32 there"
        return None
    if device.type != "cuda":
        return f"it needs an NVIDIA GPU (or TRITON_INTERPRET=1 on the CPU), got {device.type} tensors"
    if dtype == torch.float64:
        return "its kernels compute bfloat16, float16 and float32, got float64"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return f"it needs compute capability 8.0 or newer, got {_architecture(device)}"
    if dtype == torch.float32 and not tf32:
        return (
            "float32 tensors are multiplied in TF32 there, which torch.backends.cuda.matmul does not allow "
            "(fp32_precision is not 'tf32')"
        )
    return None


@functools.cache
def _installed_obstacle() -> str | None:
    wanted = ".".join(map(str, MIN_TRITON))
    if importlib.util.find_spec("triton") is None:
        return f"it needs Triton {wanted} or newer, which is not installed"
    version = importlib.metadata.version("triton")
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_TRITON:
        return f"it needs Triton {wanted} or newer, got {version}"
    return None


def interpreting() -> bool:
    """Whether Triton kernels run in its CPU interpreter (TRITON_INTERPRET=1)."""
    return bool(importlib.import_module("triton").knobs.runtime.interpret)


def tf32_allowed() -> bool:
    """Whether torch may multiply float32 matrices in TF32.

    `fp32_precision` is read first, since torch refuses to read its older flags once that one is set.
    """
    matmul = torch.backends.cuda.matmul
    if matmul.fp32_precision != "none":
        return matmul.fp32_precision == "tf32"
    try:
        return bool(matmul.allow_tf32)
    except RuntimeError:
        return False


def _architecture(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (sm_{major}{minor})"
