"""`simulate`: launches of Triton kernels run on the CPU, under several schedules each, and what they find is reported.

A launch is compiled to IR by the real frontend (`frontend`), and every program of its grid is interpreted once per schedule
from the same contents of memory; the last schedule's results stay. Programs run one after another: a kernel whose programs
wait for each other is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import frontend, stack
from .budget import start_budget
from .descriptor import Descriptor
from .findings import Code, Finding, Place, Report, Severity, Unsupported
from .global_memory import GlobalMemory
from .machine import Launch, Program
from .ops.control import Body
from .sites import arrive_sites
from .tasks import Task
from .trace import Trace

SETTLED = ("eager", "late")  # the schedules that come before the random ones


@dataclasses.dataclass(frozen=True)
class Options:
    """How a session simulates.

    Args:
        arch: the GPU, like "sm_90" (Hopper) or "sm_100" (Blackwell).
        schedules: how many schedules (eager, late, then random ones by seed), or their names ("eager", "random:7").
        level: "ttir", the kernel as written, or "fenced", as the compiler has made it (proxy fences, final warp counts).
        seed: of the first random schedule.
        budgets: compile for real beside the simulation and check shared memory, tensor memory, threads and registers.
        trace: keep what happened when, for `Session.trace` and `Session.picture`.
    """

    arch: str = "sm_90"
    schedules: int | Sequence[str] = 8
    level: str = "ttir"
    seed: int = 0
    budgets: bool = True
    trace: bool = True

    def __post_init__(self) -> None:
        if not (isinstance(self.arch, str) and self.arch.startswith("sm_") and self.arch[3:].isdigit()):
            raise ValueError(f'arch must be like "sm_90", got {self.arch!r}')
        if self.level not in frontend.LEVELS:
            raise ValueError(f"level must be one of {', '.join(frontend.LEVELS)}, got {self.level!r}")
        if not self.names():
            raise ValueError(f"schedules must be at least 1, got {self.schedules!r}")

    def names(self) -> list[str]:
        """The schedules in the order that they run."""
        if isinstance(self.schedules, int):
            drawn = (f"random:{self.seed + n}" for n in itertools.count())
            return list(itertools.islice(itertools.chain(SETTLED, drawn), self.schedules))
        for name in self.schedules:
            if name not in SETTLED and not (name.startswith("random:") and name[7:].isdigit()):
                raise ValueError(f'a schedule must be "eager", "late" or "random:N", got {name!r}')
        return list(self.schedules)


class Session:
    """What `simulate` yields: the report of all launches so far, and the trace of the last one."""

    def __init__(self, options: Options):
        self.options = options
        self.report = Report()
        self.last_trace: Trace | None = None
        self._bodies: dict[int, tuple[Any, Body, dict[str, Body], dict]] = {}

    def trace(self, path: str) -> None:
        """Write the last launch's first schedule as a trace that Perfetto and chrome://tracing open."""
        self._traced().write(path)

    def picture(self, path: str) -> None:
        """Draw it, a lane for each task, as PNG, SVG or HTML by the file's suffix."""
        self._traced().draw(path)

    def launch(self, kernel: Any, grid: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Simulate one launch; returns an object that compiles for real when `.asm` or `.metadata` is asked for."""
        fn = frontend.unwrap(kernel)
        bound, options = frontend.bind(fn, args, kwargs)
        begin = time.perf_counter()
        compiled = frontend.compile_ir(fn, bound, options, self.options.arch, self.options.level)
        budget = start_budget(fn, bound, options, self.options.arch) if self.options.budgets else None
        name, shape = fn.__name__, _grid(grid, bound)
        before = _contents(compiled.arguments)
        names = self.options.names()
        for number, schedule in enumerate(names):
            if number:
                _restore(before)
            self._run(compiled, name, shape, schedule, keep_trace=self.options.trace and number == 0)
        if budget is not None:
            self._check_budget(name, budget.result())
        self.report.launches.append(
            dict(kernel=name, grid=list(shape), arch=self.options.arch, level=self.options.level, schedules=names,
                 frontend_seconds=round(compiled.seconds, 4), seconds=round(time.perf_counter() - begin, 4))
        )  # fmt: skip
        return frontend.Launched(fn, bound, options, self.options.arch)

    def _run(self, compiled: Any, name: str, grid: tuple, schedule: str, keep_trace: bool) -> None:
        """All programs of a launch under one schedule."""
        module, body, bodies, sites = self._prepared(compiled)
        memory = GlobalMemory()
        trace = Trace(name) if keep_trace else None

        def function(called: str) -> tuple:
            if called not in bodies:
                bodies[called] = Body(module.functions[called].region)
            return module.functions[called].args, bodies[called]

        launch = Launch(
            name, grid, memory, self.report.add, schedule, _seed(schedule), self.options.level == "fenced",
            trace.events if trace else None, lambda barrier: sites.get(barrier, []), function,
        )  # fmt: skip
        values = _values(module.entry, compiled.arguments, memory, launch)
        with np.errstate(all="ignore"), _one_thread():
            for z, y, x in itertools.product(*(range(n) for n in reversed(grid))):
                program = Program(launch, (x, y, z))
                task = Task(program, "kernel", compiled.num_warps, program.agents)
                task.generator = body.run(dict(zip(module.entry.args, values)), task)
                program.add_task(task)
                program.run()
        if trace is not None:
            self.last_trace = trace

    def _prepared(self, compiled: Any) -> tuple[Any, Body, dict[str, Body], dict]:
        module = compiled.module
        if id(module) not in self._bodies:
            self._bodies[id(module)] = (module, Body(module.entry.region), {}, arrive_sites(module.entry.region))
        return self._bodies[id(module)]

    def _check_budget(self, name: str, budget: Any) -> None:
        for code, message, severity in budget.faults():
            finding = Finding(Code[code], message, (Place(*budget.place),), name, (0, 0, 0), "compile", severity=severity)
            self.report.add(finding)

    def _traced(self) -> Trace:
        if self.last_trace is None:
            raise RuntimeError("nothing has been traced: launch a kernel inside simulate(trace=True) first")
        return self.last_trace


@contextlib.contextmanager
def simulate(
    arch: str = "sm_90", schedules: int | Sequence[str] = 8, *, level: str = "ttir", seed: int = 0, budgets: bool = True,
    trace: bool = True,
) -> Iterator[Session]:  # fmt: skip
    """Inside the block every launch of a Triton kernel on CPU tensors is simulated.

    Args: as those of `Options`.

    Yields:
        a `Session` with `.report` (`.raise_if_errors()`, `.findings`, `.text()`, `.to_json()`), `.trace(path)` and
        `.picture(path)`.

    Raises:
        Unsupported: the kernel uses what the simulator does not model; named with its line.
        FrontendError: Triton's frontend refuses the kernel, or dies on it.

    >>> with tlxsim.simulate(arch="sm_90") as sim:                    # doctest: +SKIP
    ...     kernel[grid](x, y, BLOCK=64)
    >>> sim.report.raise_if_errors()                                  # doctest: +SKIP
    """
    session = Session(Options(arch, schedules, level, seed, budgets, trace))
    with stack.hooked(session.launch, arch):
        yield session


def _grid(grid: Any, bound: dict[str, Any]) -> tuple[int, int, int]:
    found = grid(dict(bound)) if callable(grid) else grid
    found = (found,) if isinstance(found, int) else tuple(int(n) for n in found)
    return found + (1,) * (3 - len(found))


def _seed(schedule: str) -> int:
    return int(schedule.partition(":")[2] or 0)


def _values(entry: Any, arguments: Sequence[tuple[str, Any]], memory: GlobalMemory, launch: Launch) -> list[Any]:
    """What the entry function takes: addresses, descriptors and numbers."""
    values = []
    for (name, value), kind in zip(arguments, entry.arg_types, strict=True):
        if kind.kind == "descriptor":
            memory.add(name, value.base)
            values.append(Descriptor.from_host(name, value, launch))
        elif hasattr(value, "data_ptr"):
            memory.add(name, value)
            values.append(value.data_ptr())
        elif kind.dtype is not None and kind.dtype.kind not in "iub":
            values.append(kind.dtype.type(value))
        else:
            values.append(value)
    return values


def _contents(arguments: Sequence[tuple[str, Any]]) -> list[tuple[Any, Any]]:
    """Each storage that a launch can reach, and a copy of its bytes."""
    kept = {}
    for _, value in arguments:
        tensor = getattr(value, "base", value)
        if hasattr(tensor, "untyped_storage"):
            storage = tensor.untyped_storage()
            kept.setdefault(storage.data_ptr(), (storage, storage.clone()))
    return list(kept.values())


def _restore(contents: list[tuple[Any, Any]]) -> None:
    for storage, copy in contents:
        storage.copy_(copy)


@functools.cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _one_thread() -> Any:
    """Tiles are small: BLAS threads that wait for each other make a busy machine many times slower."""
    return _blas().limit(limits=1, user_api="blas")


__all__ = ["Options", "Session", "Severity", "Unsupported", "simulate"]
