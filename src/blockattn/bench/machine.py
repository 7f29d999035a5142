"""Where a run took place: GPU, driver and versions, and the bandwidth that the GPU's datasheet states."""

from __future__ import annotations

import importlib.metadata
import pathlib
import platform
import shutil
import subprocess

import torch

import blockattn

# TB/s, from NVIDIA's datasheets; the longest name that occurs in the device's name counts.
DATASHEET_TBS = {
    "A100-SXM4-40GB": 1.555,
    "A100-SXM4-80GB": 2.039,
    "A10": 0.6,
    "A40": 0.696,
    "B200": 8.0,
    "GeForce RTX 3090": 0.936,
    "GeForce RTX 4090": 1.008,
    "GeForce RTX 5090": 1.792,
    "H100 80GB HBM3": 3.35,
    "H100 PCIe": 2.0,
    "H200": 4.8,
    "L4": 0.3,
    "L40S": 0.864,
}

PEERS = ("flash-attn", "flash-attn-4", "xformers", "mslk")


def describe(device: torch.device, commit: str | None) -> dict[str, str]:
    """Names and versions for a result's JSON."""
    found = {"blockattn": blockattn.__version__, "commit": commit or _commit() or "unknown", "torch": torch.__version__}
    found |= {"triton": _version("triton"), "python": platform.python_version()}
    if device.type != "cuda":
        return {"device": f"CPU, {torch.get_num_threads()} threads", **found}
    cudnn = torch.backends.cudnn.version()
    found |= {"cudnn": str(cudnn)} | {name: _version(name) for name in PEERS if _version(name) != "not installed"}
    major, minor = torch.cuda.get_device_capability(device)
    return {"device": torch.cuda.get_device_name(device), "capability": f"sm_{major}{minor}", "driver": _driver(), **found}


def datasheet_tbs(device: torch.device) -> float | None:
    """Memory bandwidth of the GPU as its maker states it, where it is known here."""
    name = torch.cuda.get_device_name(device)
    known = [part for part in DATASHEET_TBS if part in name]
    return DATASHEET_TBS[max(known, key=len)] if known else None


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return (_output(command).splitlines() or ["unknown"])[0]


def _commit() -> str:
    """Of the checkout that the package runs from, marked where files differ from it; nothing for an installed package."""
    folder = pathlib.Path(blockattn.__file__).parents[2]
    if not (folder / ".git").exists():
        return ""
    return _output(["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])


def _output(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
