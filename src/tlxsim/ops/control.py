"""Control flow: regions run as generators; a body in which nothing can wait runs as a plain loop over its steps."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

from ..clocks import join
from ..findings import Code, Unsupported
from ..machine import Stop, Wait, spawn
from ..naming import task_line
from ..tasks import Task
from .mma import Pending
from .registry import VALUE, op_step, pure, refuse

TERMINATORS = {
    "scf.yield", "tt.return", "ttg.warp_yield", "ttg.warp_return", "tt.reduce.return", "tt.scan.return", "scf.condition",
    "cf.br", "cf.cond_br", "tt.map_elementwise.return", "llvm.unreachable",
}  # fmt: skip
MAX_TURNS = 10_000_000  # of a loop that nothing else can end


class Body:
    """A region ready to run: the steps of each block, and its terminator."""

    def __init__(self, region: list):
        self.blocks = [_Block(block) for block in region]
        self.by_label = {block.label: block for block in self.blocks}
        self.waits = any(block.waits for block in self.blocks)

    def run(self, env: dict, task: Task, values: tuple | list = ()) -> Generator[Wait | None, None, list]:
        """Run to the terminator; its operands' values."""
        block = self.blocks[0]
        while True:
            for name, value in zip(block.args, values):
                env[name] = value
            op = None
            try:
                for waits, step, op in block.steps:  # noqa: B007
                    if waits:
                        yield from step(env, task)
                    else:
                        step(env, task)
            except (Stop, Unsupported):
                raise
            except Exception as error:
                raise _named(error, op, env, task) from error
            if block.jump is None:
                return [env[name] for name in block.operands]
            block, values = block.jump(self.by_label, env)

    def run_now(self, env: dict, task: Task, values: tuple | list = ()) -> list:
        """The same for a body that cannot wait."""
        try:
            next(self.run(env, task, values))
        except StopIteration as end:
            return end.value
        raise AssertionError("a body that cannot wait has waited")


class _Block:
    def __init__(self, block: Any):
        self.label, self.args = block.label, block.args
        self.operands: tuple[str, ...] = ()
        self.jump = None
        ops = list(block.ops)
        if ops and ops[-1].name in TERMINATORS:
            last = ops.pop()
            self.operands = last.operands
            self.jump = _jump(last) if last.name.startswith("cf.") else None
        self.steps = [(*op_step(op), op) for op in ops]
        self.waits = any(waits for waits, _, _ in self.steps)


def _named(error: Exception, op: Any, env: dict, task: Task) -> Exception:
    """What went wrong in a step, with the operation's line; the use of a result that is still computed is a finding."""
    if op is not None and isinstance(error, SimulatorError):
        return error
    if op is not None and any(isinstance(env.get(name), Pending) for name in op.operands):
        message = f"{task.name} uses the result of an async_dot that no async_dot_wait has waited for"
        return task.program.stop(Code.EARLY_USE, message, op.loc)
    where = f"{op.name} at {op.loc}\n    {op.loc.source}" if op is not None else "a kernel"
    return SimulatorError(f"tlxsim failed in {where}\n    {type(error).__name__}: {error}")


class SimulatorError(RuntimeError):
    """A fault of the simulator itself, with the line of the kernel that it met."""


def _jump(op: Any) -> Any:
    """For cf.br and cf.cond_br: a function that gives the next block and its arguments."""
    targets = []
    for label, arguments in re.findall(r"\^(\w+)(?:\(([^)]*)\))?", op.text):
        targets.append((label, tuple(re.findall(VALUE, arguments.split(" : ")[0]))))
    if op.name == "cf.br":
        ((label, names),) = targets
        return lambda blocks, env: (blocks[label], [env[name] for name in names])
    condition = op.operands[0]

    def choose(blocks: dict, env: dict) -> tuple:
        label, names = targets[0] if env[condition] else targets[1]
        return blocks[label], [env[name] for name in names]

    return choose


def _iteration(text: str, pattern: str) -> list[tuple[str, str]]:
    """Pairs (block argument, initial value) of `iter_args(%a = %x, ...)`."""
    found = re.search(pattern, text)
    return re.findall(rf"({VALUE}) = ({VALUE})", found[1]) if found else []


@pure("scf.for", attributes="tt.num_stages tt.loop_unroll_factor tt.warp_specialize tt.disallow_acc_multi_buffer tt.flatten "
      "tt.scheduled_max_stage llvm.loop_annotation tt.disable_licm loop_annotation tt.merge_epilogue "
      "tlx.enable_warp_pipelining tt.separate_epilogue_store tt.data_partition_factor tt.smem_alloc_algo")  # fmt: skip
def _for(op, m):
    head = re.match(rf"(?:unsigned )?({VALUE}) = ({VALUE}) to ({VALUE}) step ({VALUE})", op.text)
    if head is None or op.text.startswith("unsigned"):
        raise refuse(op, "this form of a loop is not modelled")
    variable, low, high, step = head.groups()
    carried = _iteration(op.text, r"iter_args\((.*?)\)(?: ->|$)")
    names, initial = [n for n, _ in carried], [v for _, v in carried]
    body, results = Body(op.regions[0]), op.results

    def finish(env: dict, values: list) -> None:
        for result, value in zip(results, values):
            env[result] = value

    def waiting(env: dict, task: Task) -> Generator:
        values = [env[v] for v in initial]
        for turn in range(env[low], env[high], env[step]):
            env[variable] = turn
            for name, value in zip(names, values):
                env[name] = value
            values = yield from body.run(env, task)
        finish(env, values)

    def plain(env: dict, task: Task) -> None:
        values = [env[v] for v in initial]
        for turn in range(env[low], env[high], env[step]):
            env[variable] = turn
            for name, value in zip(names, values):
                env[name] = value
            values = body.run_now(env, task)
        finish(env, values)

    return (True, waiting) if body.waits else (False, plain)


@pure("scf.if")
def _if(op, m):
    condition, results = op.operands[0], op.results
    bodies = [Body(region) for region in op.regions]

    def finish(env: dict, values: list) -> None:
        for result, value in zip(results, values):
            env[result] = value

    def waiting(env: dict, task: Task) -> Generator:
        place = 0 if env[condition] else 1
        if place < len(bodies):
            finish(env, (yield from bodies[place].run(env, task)))

    def plain(env: dict, task: Task) -> None:
        place = 0 if env[condition] else 1
        if place < len(bodies):
            finish(env, bodies[place].run_now(env, task))

    return (True, waiting) if any(body.waits for body in bodies) else (False, plain)


@pure("scf.while", attributes="tt.num_stages tt.loop_unroll_factor")
def _while(op, m):
    carried = _iteration(op.text, r"^\((.*?)\)")
    names, initial = [n for n, _ in carried], [v for _, v in carried]
    before, after = (Body(region) for region in op.regions)

    def run(env: dict, task: Task) -> Generator:
        values = [env[v] for v in initial]
        for _ in range(MAX_TURNS):
            for name, value in zip(names, values):
                env[name] = value
            go_on, *rest = yield from before.run(env, task)
            if not go_on:
                break
            values = yield from after.run(env, task, rest)
        else:
            why = "programs run one after another here, so one may not wait for another"
            raise refuse(op, f"the loop has not ended after {MAX_TURNS:,} turns; {why}")
        for result, value in zip(op.results, rest):
            env[result] = value

    if before.waits or after.waits:
        return True, run

    def plain(env: dict, task: Task) -> None:
        for _ in run(env, task):
            raise AssertionError("a loop that cannot wait has waited")

    return False, plain


@pure("tt.call", attributes="noinline")
def _call(op, m):
    name = re.match(r'@("[^"]*"|[\w.$-]+)', op.text)[1].strip('"')

    def run(env: dict, task: Task) -> Generator:
        args, body = task.program.launch.functions(name)
        values = yield from body.run(dict(zip(args, [env[x] for x in op.operands])), task)
        for result, value in zip(op.results, values):
            env[result] = value

    return True, run


@pure("ttg.warp_specialize", attributes="requestedRegisters actualRegisters warpGroupStartIds allocation.offset "
      "async_task_id tlx.num_warps")  # fmt: skip
def _warp_specialize(op, m):
    default = Body(op.regions[0])
    partitions = []
    for number, part in enumerate(op.partitions, 1):
        line = task_line(part.region, op.loc)
        partitions.append((f"task {number} (line {line})" if line else f"task {number}", part, Body(part.region), number))

    def run(env: dict, task: Task) -> Generator:
        program, values = task.program, [env[x] for x in op.operands]
        children = []
        for name, part, body, number in partitions:
            child = spawn(program, task, name, part.num_warps, op.loc, number)
            child.generator = body.run(dict(zip(part.args, values)), child)
            children.append(child)
        task.tick()
        outer, task.name = task.name, "default task"
        yield None
        results = yield from default.run(env, task)
        task.location = op.loc
        yield Wait(lambda: all(child.done for child in children), "the end of all async_tasks")
        for child in children:
            join(task.clock, child.clock)
            join(task.fenced, child.fenced)
        task.name = outer
        for result, value in zip(op.results, results):
            env[result] = value

    return True, run
