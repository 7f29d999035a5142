"""The command line: `blockattn info`, `demo`, `bench` and `accuracy`."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys

import torch

from . import __version__, demo, dispatch
from .bench import command
from .tiles import BLOCK_SIZES


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="blockattn", description="Block-diagonal attention for jagged batches.")
    parser.add_argument("--version", action="version", version=f"blockattn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="device, versions, and which backend serves which dtype, head dim and block")
    info.set_defaults(run=lambda _: print(describe()))
    demonstration = commands.add_parser("demo", help="train a next-item recommender on MovieLens-100K")
    demo.add_arguments(demonstration)
    demonstration.set_defaults(run=demo.run)
    bench = commands.add_parser("bench", help="time this library and its peers against the streaming limit")
    command.add_bench_arguments(bench)
    bench.set_defaults(run=command.bench)
    accuracy = commands.add_parser("accuracy", help="errors of this library and its peers against fp64")
    command.add_accuracy_arguments(accuracy)
    accuracy.set_defaults(run=command.accuracy)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments) or 0
    except KeyboardInterrupt:
        print("\nblockattn: interrupted", file=sys.stderr)
        return 130


def describe() -> str:
    """What `blockattn info` prints."""
    versions = {"Python": platform.python_version(), "torch": torch.__version__}
    versions |= {"Triton": _version("triton"), "TLX": _version("triton-utlx")}
    lines = [", ".join([f"blockattn {__version__}", *(f"{name} {version}" for name, version in versions.items())])]
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())] or [torch.device("cpu")]
    for device in devices:
        lines += ["", f"{_device_name(device)}: default backend", *_backends(device)]
    if devices[0].type == "cpu":
        lines += ["", "No GPU is visible: torch sees none, or CUDA_VISIBLE_DEVICES hides it."]
    return "\n".join(lines)


def _backends(device: torch.device) -> list[str]:
    """A line for each dtype: the backend, for which head dims and blocks, and why."""
    shapes = f"D 16 to 256, blocks {', '.join(map(str, BLOCK_SIZES))}"
    lines = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        if dtype == torch.float64 and device.type != "cpu":
            lines.append(f"  {name:9} none    float64 is computed on the CPU only")
            continue
        choice = dispatch.choose(device, dtype)
        lines.append(f"  {name:9} {choice.backend:7} {shapes}: {choice.reason}")
    return lines


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return f"cpu ({torch.get_num_threads()} threads)"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{device} {torch.cuda.get_device_name(device)} (sm_{major}{minor})"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    sys.exit(main())
