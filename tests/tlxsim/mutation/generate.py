"""Mutants of a TLX kernel, made from its source by mechanical operators.

Every operator looks for a kind of operand: statements that synchronise, their counts, bytes and phases, indices into
rings, the arithmetic of slots and phases, guards around arrivals. It yields one small mistake at a time, as a whole module.
A mutant is known by its function, its operator and the text before and after.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
from collections.abc import Callable, Iterator

WAITS = {"barrier_wait", "async_dot_wait", "async_descriptor_store_wait", "async_load_wait_group", "named_barrier_wait"}
ARRIVALS = {"barrier_arrive", "barrier_expect_bytes", "tcgen05_commit", "named_barrier_arrive", "async_load_commit_group"}
SYNCHRONISES = WAITS | ARRIVALS | {"fence_async_shared", "fence"}
TOUCHES = SYNCHRONISES | {
    "async_descriptor_load", "async_descriptor_store", "async_load", "local_load", "local_store", "async_dot", "load",
    "store",
}  # fmt: skip
ALLOCATIONS = {"alloc_barriers", "local_alloc"}
BYTES_APART = 16


@dataclasses.dataclass(frozen=True)
class Mutant:
    """function, operator, before, after: which one; source: the module, mutated."""

    function: str
    operator: str
    before: str
    after: str
    source: str = dataclasses.field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.function}: {self.operator}: {self.before} → {self.after}"


@dataclasses.dataclass(frozen=True)
class Change:
    """A mistake before it is made: `make` changes the tree and returns how to change it back."""

    operator: str
    before: str
    after: str
    make: Callable[[], Callable[[], None]]


def generate(source: str) -> list[Mutant]:
    """All mutants of a module's jit functions, in source order, each program once; those of one text are numbered."""
    tree = ast.parse(source)
    rings = _rings(tree)
    mutants: list[Mutant] = []
    sources = {ast.unparse(tree)}
    seen: collections.Counter = collections.Counter()
    for function in tree.body:
        if not (isinstance(function, ast.FunctionDef) and function.decorator_list):
            continue
        for change in _changes(function, rings):
            undo = change.make()
            mutated = ast.unparse(ast.fix_missing_locations(tree))
            undo()
            if mutated in sources:
                continue
            sources.add(mutated)
            seen[function.name, change.operator, change.before, change.after] += 1
            number = seen[function.name, change.operator, change.before, change.after]
            after = change.after if number == 1 else f"{change.after} ({number})"
            mutants.append(Mutant(function.name, change.operator, change.before, after, mutated))
    return mutants


def _rings(tree: ast.Module) -> dict[str, ast.expr]:
    """For each array of buffers or barriers how many it has, as the kernel writes it."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and called(node.value) in ALLOCATIONS:
            (target,) = node.targets
            found[target.id] = node.value.args[0 if called(node.value) == "alloc_barriers" else 2]
    return found


def called(node: ast.AST) -> str:
    """The name of a called `tlx` or `tl` function; empty for everything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return ""


def _changes(function: ast.FunctionDef, rings: dict[str, ast.expr]) -> Iterator[Change]:
    names = {x.arg for x in function.args.args}
    for block in _blocks(function):
        for place, statement in enumerate(block):
            yield from _dropped(block, place, statement)
            yield from _moved(block, place, statement)
            yield from _guards(statement)
            yield from _counters(block, place, statement)
            if isinstance(statement, (ast.For, ast.While, ast.If, ast.With)):
                continue
            for node in ast.walk(statement):
                yield from _operands(node, statement)
                yield from _indices(node, rings, names)
                yield from _arithmetic(node, rings)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements, outermost first."""
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        if isinstance(block, list) and block:
            yield block
            for statement in block:
                yield from _blocks(statement)


def _synchronises(statement: ast.stmt) -> str:
    """The function that a statement is a call of, if it synchronises."""
    value = getattr(statement, "value", None)
    return called(value) if isinstance(statement, (ast.Expr, ast.Assign)) and called(value) in SYNCHRONISES else ""


def _dropped(block: list, place: int, statement: ast.stmt) -> Iterator[Change]:
    if _synchronises(statement):
        yield Change("dropped", _text(statement), "(nothing)", _put(block, place, ast.Pass()))


def _moved(block: list, place: int, statement: ast.stmt) -> Iterator[Change]:
    """Past the next access below, and past the next above, unless a value that it uses or defines lies between."""
    if not _synchronises(statement):
        return
    for step, word in ((1, "below"), (-1, "above")):
        between, there = [], place + step
        while 0 <= there < len(block):
            between.append(block[there])
            if _touches(block[there]):
                break
            there += step
        else:
            continue
        if not _independent(statement, between):
            continue
        order = list(block)
        order.insert(there, order.pop(place))
        yield Change("moved", _text(statement), f"{word} {_brief(block[there])}", _reorder(block, order))


def _touches(statement: ast.stmt) -> bool:
    return any(called(node) in TOUCHES for node in ast.walk(statement))


def _independent(statement: ast.stmt, others: list[ast.stmt]) -> bool:
    """Whether the order matters to barriers and memory alone: a value waited for may be used before or after."""
    defined = {name for other in others for name in _names(other, ast.Store)}
    if _names(statement, ast.Load) & defined and not isinstance(statement, ast.Assign):
        return False
    mine = _names(statement, ast.Store)
    return not (isinstance(statement, ast.Assign) and mine & defined)


def _names(node: ast.AST, context: type) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, context)}


def _guards(statement: ast.stmt) -> Iterator[Change]:
    """An `if` around what synchronises: always, or never."""
    if isinstance(statement, ast.If) and any(_synchronises(x) for x in statement.body):
        for value in (True, False):
            yield Change("guard", _text(statement), f"if {value}", _set(statement, "test", ast.Constant(value)))


def _counters(block: list, place: int, statement: ast.stmt) -> Iterator[Change]:
    """A counter of turns that starts one late, stands still or skips one."""
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant) and statement.value.value == 0:
        name = statement.targets[0].id
        yield Change("start", f"{name} = 0", f"{name} = 1", _set(statement, "value", ast.Constant(1)))
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        text = _text(statement)
        yield Change("step", text, "(nothing)", _put(block, place, ast.Pass()))
        more = ast.BinOp(statement.value, ast.Add(), ast.Constant(1))
        yield Change("step", text, f"{text} + 1", _set(statement, "value", more))


def _operands(node: ast.AST, statement: ast.stmt) -> Iterator[Change]:
    """Counts, bytes, phases and completion barriers of a call, and an accumulator that is added to before it is written."""
    name = called(node)
    if name == "barrier_wait":
        yield _replaced("phase", node, "args", 1, _flipped(node.args[1]))
    if name == "barrier_expect_bytes":
        for amount in (BYTES_APART, -BYTES_APART):
            yield _replaced("bytes", node, "args", 1, plus(node.args[1], amount))
        yield _replaced("bytes", node, "args", 1, ast.BinOp(node.args[1], ast.FloorDiv(), ast.Constant(2)))
    if name == "barrier_arrive" and len(node.args) > 1:
        yield _replaced("count", node, "args", 1, plus(node.args[1], 1))
    if name in ("async_dot_wait", "async_descriptor_store_wait", "async_load_wait_group"):
        for amount in (1, -1):
            if amount > 0 or node.args[0].value > 0:
                yield _replaced("count", node, "args", 0, plus(node.args[0], amount))
    if name in ALLOCATIONS:
        place = 0 if name == "alloc_barriers" else 2
        many, target = node.args[place], statement.targets[0].id
        for amount in (1, -1):
            if not (amount < 0 and isinstance(many, ast.Constant)):
                new = plus(many, amount)
                yield Change("count", f"{target}: {_text(many)}", _text(new), _put(node.args, place, new))
    for keyword in getattr(node, "keywords", []):
        if keyword.arg == "arrive_count":
            for amount in (1, -1):
                if not (amount < 0 and isinstance(keyword.value, ast.Constant) and keyword.value.value == 1):
                    change = _keyword("count", node, keyword, plus(keyword.value, amount))
                    yield dataclasses.replace(change, before=f"{statement.targets[0].id}: {change.before}")
        if keyword.arg == "use_acc":
            yield _keyword("use_acc", node, keyword, ast.Constant(True))
        if keyword.arg == "mBarriers":
            yield _keyword("completion", node, keyword, ast.List([], ast.Load()))


def _indices(node: ast.AST, rings: dict[str, ast.expr], names: set[str]) -> Iterator[Change]:
    """The next buffer or barrier of a ring: past its end, and around it where the function knows how many there are."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in rings):
        return
    after = plus(node.slice, 1)
    yield _replaced_field("index", node, "slice", after)
    many = rings[node.value.id]
    if _names(many, ast.Load) <= names and not isinstance(many, ast.Constant):
        yield _replaced_field("index", node, "slice", ast.BinOp(after, ast.Mod(), many))


def _arithmetic(node: ast.AST, rings: dict[str, ast.expr]) -> Iterator[Change]:
    """How slots and phases come from a turn: another number of slots, a phase that is shifted the other way."""
    if not isinstance(node, ast.BinOp):
        return
    lengths = {many.id for many in rings.values() if isinstance(many, ast.Name)}
    if isinstance(node.op, (ast.Mod, ast.FloorDiv)) and isinstance(node.right, ast.Name) and node.right.id in lengths:
        for amount in (1, -1):
            yield _replaced_field("ring", node, "right", plus(node.right, amount))


def _flipped(phase: ast.expr) -> ast.expr:
    if isinstance(phase, ast.BinOp) and isinstance(phase.op, ast.BitXor):
        return phase.left
    return ast.BinOp(phase, ast.BitXor(), ast.Constant(1))


def plus(node: ast.expr, amount: int) -> ast.expr:
    if isinstance(node, ast.Constant):
        return ast.Constant(node.value + amount)
    return ast.BinOp(node, ast.Add() if amount > 0 else ast.Sub(), ast.Constant(abs(amount)))


def _text(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0].rstrip(":")


def _brief(statement: ast.stmt) -> str:
    """The function that a statement calls, or its first line."""
    return called(getattr(statement, "value", None)) or _text(statement)


def _with(make: Callable[[], Callable[[], None]], node: ast.AST) -> str:
    """The text of a node while a change is made."""
    undo = make()
    text = _text(node)
    undo()
    return text


def _replaced(operator: str, node: ast.Call, field: str, place: int, new: ast.expr) -> Change:
    make = _put(getattr(node, field), place, new)
    return Change(operator, _text(node), _with(make, node), make)


def _replaced_field(operator: str, node: ast.AST, field: str, new: ast.expr) -> Change:
    make = _set(node, field, new)
    return Change(operator, _text(node), _with(make, node), make)


def _keyword(operator: str, node: ast.Call, keyword: ast.keyword, new: ast.expr) -> Change:
    others = [x for x in node.keywords if x is not keyword]
    make = _set(node, "keywords", [*others, ast.keyword(keyword.arg, new)])
    return Change(operator, ast.unparse(keyword), ast.unparse(ast.keyword(keyword.arg, new)), make)


def _put(items: list, place: int, new: ast.AST) -> Callable[[], Callable[[], None]]:
    def make() -> Callable[[], None]:
        old, items[place] = items[place], new
        return lambda: items.__setitem__(place, old)

    return make


def _set(owner: ast.AST, field: str, new: object) -> Callable[[], Callable[[], None]]:
    def make() -> Callable[[], None]:
        old = getattr(owner, field)
        setattr(owner, field, new)
        return lambda: setattr(owner, field, old)

    return make


def _reorder(block: list, order: list) -> Callable[[], Callable[[], None]]:
    def make() -> Callable[[], None]:
        old = list(block)
        block[:] = order
        return lambda: block.__setitem__(slice(None), old)

    return make
