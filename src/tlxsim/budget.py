"""What a kernel takes of a GPU, from the real compile in a forked child, and what of it a GPU does not have.

Shared memory, tensor memory and warps are read from the compiler's own result before it turns to LLVM (level "fenced" of
`frontend`), where they are final.

Registers of a warp-specialised kernel: at launch each thread has the same number, `maxnreg`, which Triton takes as large as
64 K registers allow; threads times that is a pool. Tasks that ask for more than others get it from the pool by `setmaxnreg`
(PTX: multiples of 8 in 24..256, for whole warp groups of 4 warps), and the default task gets what is left. If that is less
than 24, Triton's pass allocate-warp-groups drops all requests without a word. That rule is applied here to the requests as
written; from sm_100 on Triton replaces them by estimates of its own, and what it grants is a note.
"""

from __future__ import annotations

import dataclasses
import linecache
import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import child, frontend, stack
from .findings import Severity
from .ir import Op
from .ir.module import Region
from .naming import task_line

TMEM_COLUMNS, THREADS, REGISTERS = 512, 1024, 64 * 1024
LEAST, MOST = 24, 256  # registers a thread that setmaxnreg takes
WARP, GROUP = 32, 4  # threads of a warp, warps of a warp group


@dataclasses.dataclass(frozen=True)
class TaskRegisters:
    """A task as written, and its registers a thread: asked for, and granted by the compiler; None where there is none."""

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
        maxnreg: registers a thread at launch that the kernel was launched with; None leaves them to the compiler.
        tasks: the default task first; empty without tasks.
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
        return budgets + [("REGISTERS", message, severity) for message, severity in self._register_faults()]

    def _register_faults(self) -> list[tuple[str, Severity]]:
        found = []
        if self.maxnreg and self.maxnreg * self.threads > REGISTERS:
            need = f"maxnreg={self.maxnreg} for {self.threads} threads is {self.maxnreg * self.threads:,} registers"
            found.append((f"{need}, there are {REGISTERS:,}", Severity.ERROR))
        asking = [task for task in self.tasks if task.requested]
        for task in asking:
            if not LEAST <= task.requested <= MOST:
                message = f"{task.name} asks for {task.requested} registers a thread, {LEAST} to {MOST} can be had"
                found.append((message, Severity.ERROR))
        pool = Pool.of(self.tasks, self.maxnreg)
        if any(task.requested for task in self.tasks[1:]) and pool.left < LEAST:
            why = f"the compiler drops them all, since the default task needs {LEAST}"
            return [*found, (f"no request for registers can be granted, {why}: {pool}", Severity.ERROR)]
        for task in asking:
            if task is self.tasks[0] and task.requested > pool.left:
                found.append((f"{task.name} asks for {task.requested} registers a thread: {pool}", Severity.ERROR))
            elif task.granted is not None and task.granted < min(task.requested, MOST):
                message = f"{task.name} asks for {task.requested} registers a thread, the compiler gives it {task.granted}"
                found.append((message, Severity.NOTE))
        return found


@dataclasses.dataclass(frozen=True)
class Pool:
    """Registers at launch, and those that the tasks besides the default one ask for.

    Args:
        total: threads at launch times registers a thread.
        threads: of the launch, idle ones that fill up the last warp group included.
        asked: a warp group takes what the most demanding of its tasks asks for, in steps of 8.
        default_threads: of the default task.
    """

    total: int
    threads: int
    asked: int
    default_threads: int

    @classmethod
    def of(cls, tasks: Sequence[TaskRegisters], maxnreg: int | None) -> Pool:
        """By the rule of Triton's allocate-warp-groups: larger tasks first, then as they come."""
        default, workers = tasks[0].num_warps if tasks else 0, sorted(tasks[1:], key=lambda task: -task.num_warps)
        groups: dict[int, int] = {}
        begin = 0
        for task in workers:
            for group in range(begin // GROUP, (begin + task.num_warps - 1) // GROUP + 1):
                groups[group] = max(groups.get(group, 0), -(-(task.requested or 0) // 8) * 8)
            begin += task.num_warps
        threads = (default + len(groups) * GROUP) * WARP
        each = maxnreg or REGISTERS // max(threads, 1) // 8 * 8
        return cls(threads * each, threads, sum(groups.values()) * GROUP * WARP, default * WARP)

    @property
    def left(self) -> int:
        """Registers for each thread of the default task."""
        return max(0, (self.total - self.asked) // max(self.default_threads, 1) // 8 * 8)

    def __str__(self) -> str:
        return (
            f"the others ask for {self.asked:,} of the {self.total:,} registers that {self.threads} threads start with, "
            f"and that leaves {self.left} for each of its {self.default_threads} threads"
        )


class Handle:
    """A budget being found in a child; `result()` waits for it."""

    def __init__(self, source: frontend.Source, ptx: bool):
        self._source = source
        self._written = frontend.Pending(source, "ttir")
        self._fenced = frontend.Pending(source, "fenced")
        self._ptx = child.Child(lambda: _ptx(source)) if ptx else None

    def result(self) -> Budget:
        """The budget; of a kernel that does not compile with its `error`."""
        fn, arch = self._source.fn, self._source.arch
        place = (fn.file_name, fn.starting_line_number, linecache.getline(fn.file_name, fn.starting_line_number).strip())
        try:
            written, fenced = self._written.result(), self._fenced.result()
            with frontend.explained(self._source, "PTX"):
                ptx = self._ptx.result() if self._ptx is not None else None
        except frontend.FrontendError as error:
            return Budget(arch, place, error=str(error))
        attributes = fenced.module.attributes
        return Budget(
            arch,
            place,
            shared=_number(attributes["ttg.shared"]),
            tmem_columns=_number(attributes.get("ttg.tensor_memory_size", "0")),
            num_warps=_number(attributes["ttg.total-num-warps"]),
            maxnreg=self._source.options.maxnreg,
            tasks=_tasks(written, fenced, self._source.options.num_warps),
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


def _specialisations(ir: frontend.Ir) -> list[Op]:
    """All `ttg.warp_specialize`, in the order of the text."""
    found: list[Op] = []

    def walk(region: Region) -> None:
        for block in region:
            for op in block.ops:
                if op.name == "ttg.warp_specialize":
                    found.append(op)
                for inner in op.regions:
                    walk(inner)

    for function in ir.module.functions.values():
        walk(function.region)
    return found


def _tasks(written: frontend.Ir, fenced: frontend.Ir, num_warps: int) -> tuple[TaskRegisters, ...]:
    """The tasks of the specialisation that asks for the most; where the compiler has removed one, nothing is granted."""
    ops, final = _specialisations(written), _specialisations(fenced)
    grants = [_numbers(op.attributes.get("actualRegisters")) for op in final] if len(ops) == len(final) else [[]] * len(ops)
    found = []
    for op, granted in zip(ops, grants, strict=True):
        requested = _numbers(op.attributes.get("requestedRegisters"))
        tasks = [TaskRegisters("the default task", num_warps, written.default_registers or None, _capped(granted, 0))]
        for number, partition in enumerate(op.partitions):
            name = f"task {number + 1} (line {task_line(partition.region, op.loc)})"
            asked = requested[number] if requested else None
            tasks.append(TaskRegisters(name, partition.num_warps, asked, _capped(granted, number + 1)))
        found.append(tuple(tasks))
    return max(found, key=lambda tasks: Pool.of(tasks, None).asked, default=())


def _capped(granted: list[int], place: int) -> int | None:
    """Lowering to LLVM grants no more than setmaxnreg can."""
    return min(MOST, granted[place]) if granted else None


def _numbers(text: str | None) -> list[int]:
    """[160, 24] of "array<i32: 160, 24>"."""
    return [int(n) for n in re.findall(r"\d+", (text or "").partition(":")[2])]


def _number(text: str) -> int:
    """4 of "4 : i32"."""
    return int(text.split(":")[0])
