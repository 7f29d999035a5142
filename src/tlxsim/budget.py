"""What a kernel takes of a GPU, from the real compile in a forked child, and what of it a GPU does not have.

Shared memory, tensor memory, warps and registers are read from the compiler's own result before it turns to LLVM (level
"fenced" of `frontend`), where they are final.

Registers of a warp-specialised kernel: at launch each thread has the same number, `maxnreg`, which Triton takes as large as
64 K registers allow; threads times that is a pool. Tasks that ask for more than others get it from the pool by `setmaxnreg`
(PTX: multiples of 8 in 24..256, by warp groups of 4 warps), and the default task gets what is left. If less than 24 is left
for it, Triton drops all requests without a word.
"""

from __future__ import annotations

import dataclasses
import linecache
import re
from collections.abc import Iterator, Mapping
from typing import Any

from . import child, frontend, stack
from .findings import Severity
from .ir import Op
from .ir.module import Region
from .naming import task_line

TMEM_COLUMNS, THREADS, REGISTERS = 512, 1024, 64 * 1024
LEAST, MOST = 24, 256  # registers a thread that setmaxnreg takes
WARP = 32


@dataclasses.dataclass(frozen=True)
class TaskRegisters:
    """A task of a warp-specialised kernel: registers a thread asked for and granted, None where there is none."""

    name: str
    num_warps: int
    requested: int | None
    granted: int | None


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a kernel takes; sizes are 0 and tasks empty if it does not compile, and `error` says why.

    Args:
        arch: the GPU.
        place: file, line and source text of the kernel.
        shared: bytes of shared memory of a program.
        tmem_columns: of tensor memory.
        num_warps: of a program, idle ones that fill warp groups included.
        maxnreg: registers a thread at launch, None if the compiler leaves them to ptxas.
        tasks: the default task first; empty without tasks.
        asked: registers that the requests add up to; a warp group takes what the most demanding of its tasks asks for.
        proxy_fences: `fence.proxy.async` in the PTX, None unless asked for.
        error: the compiler's message.
    """

    arch: str
    place: tuple[str, int, str]
    shared: int = 0
    tmem_columns: int = 0
    num_warps: int = 0
    maxnreg: int | None = None
    tasks: tuple[TaskRegisters, ...] = ()
    asked: int = 0
    proxy_fences: int | None = None
    error: str = ""

    @property
    def threads(self) -> int:
        return self.num_warps * WARP

    def faults(self) -> list[tuple[str, str, Severity]]:
        """What the GPU cannot give: name of a code of `findings`, message, severity."""
        if self.error:
            return [("COMPILE", f"it does not compile for {self.arch}: {self.error}", Severity.WARNING)]
        found = []
        limit = stack.shared_limit(self.arch)
        if self.shared > limit:
            found.append(f"{self.shared:,} bytes of shared memory, {self.arch} has {limit:,} for a program")
        if self.tmem_columns > TMEM_COLUMNS:
            found.append(f"{self.tmem_columns} columns of tensor memory, there are {TMEM_COLUMNS}")
        if self.threads > THREADS:
            found.append(f"{self.num_warps} warps are {self.threads:,} threads, a program has at most {THREADS:,}")
        budgets = [("BUDGET", message, Severity.ERROR) for message in found]
        return budgets + [("REGISTERS", message, Severity.ERROR) for message in self._register_faults()]

    def _register_faults(self) -> list[str]:
        pool = (self.maxnreg or REGISTERS // max(self.threads, 1) // 8 * 8) * self.threads
        found = []
        if pool > REGISTERS:
            found.append(f"maxnreg={self.maxnreg} for {self.threads} threads is {pool:,} registers, there are {REGISTERS:,}")
        asking = [task for task in self.tasks if task.requested]
        for task in asking:
            if not LEAST <= task.requested <= MOST:
                found.append(f"{task.name} asks for {task.requested} registers a thread, {LEAST} to {MOST} can be had")
            elif task.granted is not None and task.granted < task.requested:
                found.append(
                    f"{task.name} asks for {task.requested} registers a thread and gets {task.granted}: {self._sum(pool)}"
                )
        if asking and all(task.granted is None for task in self.tasks):
            why = f"the compiler drops them all, since the default task needs {LEAST}"
            found.append(f"no request can be granted, {why}: {self._sum(pool)}")
        return found

    def _sum(self, pool: int) -> str:
        """The other tasks' requests against the pool, and what that leaves for the default task."""
        parts = [f"{task.num_warps} warps x {task.requested}" for task in self.tasks[1:]]
        default = self.tasks[0].num_warps * WARP
        left = max(0, (pool - self.asked) // default)
        return (
            f"the others ask for {self.asked:,} registers ({', '.join(parts)}, in whole warp groups) of the {pool:,} that "
            f"{self.threads} threads start with, which leaves {left} for each of its {default} threads"
        )


class Handle:
    """A budget being found in a child; `result()` waits for it."""

    def __init__(self, source: frontend.Source, ptx: bool):
        self._source = source
        self._fenced = frontend.Pending(source, "fenced")
        self._ptx = child.Child(lambda: _ptx(source)) if ptx else None

    def result(self) -> Budget:
        """The budget; of a kernel that does not compile with its `error`."""
        fn, arch = self._source.fn, self._source.arch
        place = (fn.file_name, fn.starting_line_number, linecache.getline(fn.file_name, fn.starting_line_number).strip())
        try:
            ir = self._fenced.result()
            with frontend.explained(self._source, "PTX"):
                ptx = self._ptx.result() if self._ptx is not None else None
        except frontend.FrontendError as error:
            return Budget(arch, place, error=str(error))
        attributes = ir.module.attributes
        num_warps = _number(attributes["ttg.num-warps"])
        found = [op for function in ir.module.functions.values() for op in _specialisations(function.region)]
        widest = max(found, key=_asked, default=None)
        return Budget(
            arch,
            place,
            shared=_number(attributes.get("ttg.shared")) or 0,
            tmem_columns=_number(attributes.get("ttg.tensor_memory_size")) or 0,
            num_warps=_number(attributes.get("ttg.total-num-warps")) or num_warps,
            maxnreg=_number(attributes.get("ttg.maxnreg")),
            tasks=_tasks(widest, num_warps, ir.default_registers) if widest else (),
            asked=_asked(widest) if widest else 0,
            proxy_fences=None if ptx is None else ptx.count("fence.proxy.async"),
        )


def start_budget(fn: Any, bound: Mapping[str, Any], options: Mapping[str, Any], arch: str, ptx: bool = False) -> Handle:
    """Begin to find a launch's budget; arguments as those of `frontend.compile_ir`, `ptx` counts fences in the PTX too."""
    return Handle(frontend.specialize(fn, bound, options, arch), ptx)


def _ptx(source: frontend.Source) -> str:
    """In a child: the PTX, without ptxas."""
    from triton.backends.compiler import Language

    stages: dict[str, Any] = {}
    source.backend.add_stages(stages, source.options, Language.TRITON)
    module, metadata = frontend.make_module(source), {}
    for stage in ("ttir", "ttgir", "llir", "ptx"):
        module = stages[stage](module, metadata)
    return module


def _specialisations(region: Region) -> Iterator[Op]:
    """All `ttg.warp_specialize` of a region, those in control flow included."""
    for block in region:
        for op in block.ops:
            if op.name == "ttg.warp_specialize":
                yield op
            for inner in op.regions:
                yield from _specialisations(inner)


def _tasks(op: Op, num_warps: int, default_registers: int) -> tuple[TaskRegisters, ...]:
    requested = _numbers(op.attributes.get("requestedRegisters"))
    granted = [min(MOST, n) for n in _numbers(op.attributes.get("actualRegisters"))]
    tasks = [TaskRegisters("the default task", num_warps, default_registers or None, granted[0] if granted else None)]
    for number, partition in enumerate(op.partitions):
        if all(inner.name == "ttg.warp_return" for block in partition.region for inner in block.ops):
            continue  # warps that fill up a warp group
        name = f"task {number + 1} (line {task_line(partition.region, op.loc)})"
        asked = requested[number] if requested else None
        tasks.append(TaskRegisters(name, partition.num_warps, asked, granted[number + 1] if granted else None))
    return tuple(tasks)


def _asked(op: Op) -> int:
    """Registers that the requests of all partitions take: setmaxnreg works on whole warp groups, in steps of 8."""
    requested, starts = _numbers(op.attributes.get("requestedRegisters")), _numbers(op.attributes.get("warpGroupStartIds"))
    groups: dict[int, int] = {}
    for registers, start, partition in zip(requested, starts, op.partitions):
        for group in {warp // 4 for warp in range(start, start + partition.num_warps)}:
            groups[group] = max(groups.get(group, 0), -(-registers // 8) * 8)
    return sum(groups.values()) * 4 * WARP


def _numbers(text: str | None) -> list[int]:
    """[160, 24] of "array<i32: 160, 24>"."""
    return [int(n) for n in re.findall(r"\d+", (text or "").partition(":")[2])]


def _number(text: str | None) -> int | None:
    return None if text is None else int(text.split(":")[0])
