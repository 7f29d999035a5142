"""What differs between Triton and its TLX plugins, one adapter each, found by what is there and not by version numbers;
and how launches reach the simulator: `hooked`, and a driver for a GPU that is not there.

An adapter runs in the forked child of `frontend`, so it may patch the compiler. Operations keep the names that each stack
prints: `tlx.warp_barrier_arrive` (the plugin's own) and `ttng.arrive_barrier_named` are all that differ so far.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

_SHARED_KB = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 101: 227, 103: 227, 120: 99, 121: 99}


def shared_limit(arch: str) -> int:
    """Bytes of shared memory that one program may have; ValueError for an architecture that is not known."""
    number = arch_number(arch)
    if number not in _SHARED_KB:
        known = ", ".join(f"sm_{n}" for n in _SHARED_KB)
        raise ValueError(f"arch must be one of {known}, got {arch!r}")
    return _SHARED_KB[number] * 1024


def arch_number(arch: str) -> int:
    """90 of "sm_90"."""
    return int(arch.removeprefix("sm_"))


class Triton:
    """Triton 3.8 without plugins."""

    name = "triton"

    def make_ttir(self, module: Any, backend: Any, options: Any, arch: int) -> Any:
        """The kernel as written, functions inlined."""
        return backend.make_ttir(module, {}, options, arch)

    def lower_aliases(self, module: Any) -> None:
        """Give buffers that share storage their places in it."""

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[int]]:
        """While a module is made inside, collects the `registers=` of its default tasks, which no IR shows."""
        yield []

    def to_fenced(self, module: Any, backend: Any, options: Any) -> Any:
        """What the compiler makes of it before it leaves the GPU dialects, from the module that `make_ir` gave.

        These are the compiler's own stages. The last, make_llir, is stopped where its pass manager would go on to LLVM;
        until there it has allocated memory and warps and inserted proxy fences.
        """
        from triton._C.libtriton import nvidia
        from triton.backends.compiler import Language

        stages: dict[str, Callable] = {}
        backend.add_stages(stages, options, Language.TRITON)
        metadata: dict[str, Any] = {}
        for stage in ("ttir", "ttgir"):
            module = stages[stage](module, metadata)

        def stop(passes: Any, *_: Any) -> None:
            passes.run(module, "fenced")
            raise _Reached

        nvidia.passes.ttgpuir.add_to_llvmir = stop
        try:
            stages["llir"](module, metadata)
        except _Reached:
            return module
        raise RuntimeError("make_llir of this Triton does not call add_to_llvmir: the level fenced is not available")

    def left_out(self, stderr: str) -> list[str]:
        """Operations that a successful compile has left out of the kernel, with their lines, by what it said on stderr."""
        return []


class Utlx(Triton):
    """Triton with the plugin triton-utlx, whose passes are `passes.plugin.utlx_*`."""

    name = "utlx"

    def lower_aliases(self, module: Any) -> None:
        from triton._C.libtriton import ir, passes

        if "storage_alias" in module.str_nodebug():
            manager = ir.pass_manager(module.context)
            passes.plugin.utlx_storage_alias_lowering(manager, [])
            manager.run(module, "aliases")

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[int]]:
        tasks = sys.modules.get("utlx_plugin.async_task_utils")
        requests: list[int] = []
        if tasks is None:  # a kernel without tasks
            yield requests
            return
        original = tasks.async_task.__init__

        def init(task: Any, *args: Any, **kwargs: Any) -> None:
            original(task, *args, **kwargs)
            if task.is_default and task.num_regs:
                requests.append(task.num_regs)

        tasks.async_task.__init__ = init
        try:
            yield requests
        finally:
            tasks.async_task.__init__ = original

    def left_out(self, stderr: str) -> list[str]:
        # The plugin builds some operations only if Triton has them, else it goes on without. Prefetches change no result.
        found = re.findall(r'"([^"]*)":(\d+):\d+.*error: uTLX: .([\w.]+). is not registered', stderr)
        return [
            f"{operation} at {os.path.basename(file)}:{line}"
            for file, line, operation in found
            if "prefetch" not in operation
        ]


class _Reached(Exception):
    """Thrown out of make_llir."""


def current() -> Triton:
    """The adapter for what is installed."""
    from triton._C.libtriton import passes

    return Utlx() if hasattr(getattr(passes, "plugin", None), "utlx_storage_alias_lowering") else Triton()


class FakeDriver:
    """Answers Triton's and TLX's questions about a GPU of an architecture, with tensors on the CPU.

    Args:
        arch: like "sm_90".
        multiprocessors: what kernels that take as many programs as there are multiprocessors get.
    """

    def __init__(self, arch: str, multiprocessors: int = 4):
        self.arch = arch_number(arch)
        properties = dict(
            max_shared_mem=shared_limit(arch), multiprocessor_count=multiprocessors, warpSize=32, max_num_regs=65536,
            sm_clock_rate=1_000_000, mem_clock_rate=1_000_000, mem_bus_width=1024,
        )  # fmt: skip
        self.utils = types.SimpleNamespace(
            get_device_properties=lambda device: dict(properties),
            load_binary=_load_binary,
            unload_module=lambda module: None,
        )

    def launcher_cls(self, source: Any, metadata: Any) -> None:
        """Of a compiled kernel, which is never launched as such."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, 32)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return divmod(self.arch, 10)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        """There is one."""

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def is_active(self) -> bool:
        return True


def _load_binary(name: str, kernel: bytes, shared: int, device: int) -> tuple[None, None, int, int, int]:
    """No module and no function; then the registers, spilled words and most threads that a GPU's driver would tell."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    usage = re.search(rf"Function {re.escape(name)}:\s+REG:(\d+) .*LOCAL:(\d+)", text)
    registers, local = (int(n) for n in usage.groups())
    return None, None, registers, local // 4, min(1024, 65536 // registers // 32 * 32)


@contextlib.contextmanager
def hooked(launch: Callable[[Any, Any, tuple, dict[str, Any]], Any], arch: str) -> Iterator[None]:
    """Inside the block `kernel[grid](*args, **kwargs)` calls `launch(kernel, grid, args, kwargs)`, one launch at a time.

    The active driver is a `FakeDriver`; an autotuned kernel takes the first configuration that its pruning leaves, and
    `kernel.warmup` launches nothing.
    """
    from triton import knobs
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    if knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: kernels are then no kernels that could be compiled; unset it")
    original, tune = JITFunction.run, Autotuner.run
    active, one = True, threading.RLock()

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if not active:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        if warmup:
            from .frontend import Launched, bind

            return Launched(self, *bind(self, args, kwargs), arch)
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        with one:
            return launch(self, grid, args, kwargs)

    def run_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        configs = self.configs
        self.nargs = dict(zip(self.arg_names, args))
        self.configs = self.prune_configs(kwargs)[:1]
        try:
            return tune(self, *args, **kwargs)
        finally:
            self.configs = configs

    before = driver._active
    driver.set_active(FakeDriver(arch))
    JITFunction.run, Autotuner.run = run, run_first
    try:
        yield
    finally:
        active = False
        driver.set_active(before)
        Autotuner.run = tune
        if JITFunction.run is run:  # else a plugin imported meanwhile has wrapped it, and calls it
            JITFunction.run = original
