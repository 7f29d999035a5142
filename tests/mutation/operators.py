"""What is put in place of an expression or statement of a Triton kernel, one small mistake at a time.

Each operator takes a node with its surroundings and yields the nodes that may stand in its place. They know Triton's names
(`tl.where`, `tl.trans`, `.to`) and the naming rules of the kernels (`_row`, `_head` and `_ptr` after a tensor's name), but
no kernel and no line. A pointer is never dropped, since an address without one is only an exception.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator

FLIPS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
STRICTNESS = {ast.Lt: -1, ast.LtE: 1, ast.Gt: 1, ast.GtE: -1}  # moves the bound the other way than the flip does
EXCHANGED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
}
DROPPED_EITHER_SIDE = (ast.Add, ast.Mult, ast.BitAnd)
REPLACED_ATTRIBUTES = {"exp2": "exp", "log2": "log", "minimum": "maximum", "maximum": "minimum"}
NARROWER = {"int64": "int32", "float32": "float16"}
ACCESSES = ("load", "store", "load_rows", "store_rows", "fill_rows")
SWAPPED_NAMES = [{"HEADS", "KV_HEADS"}, {"queries", "keys"}, {"ROWS", "BLOCK"}, {"D", "CHUNK"}, {"dq_row", "dkv_row"}]
SWAPPED_STEMS = {"k": "v", "v": "k", "dk": "dv", "dv": "dk", "q": "do", "do": "q"}
SWAPPED_ENDS = {"row": ("head",), "head": ("row",), "ptr": ()}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a node stands: its ancestors up to its statement, outermost first, and the names that its function defines."""

    ancestors: tuple[ast.AST, ...]
    names: frozenset[str]

    @property
    def parent(self) -> ast.AST | None:
        return self.ancestors[-1] if self.ancestors else None


def called(node: ast.AST | None) -> str:
    """The last part of a called function's name; empty for everything that is not a call."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_pointer(node: ast.AST) -> bool:
    return any(isinstance(x, ast.Name) and re.search(r"(^|_)ptrs?$", x.id) for x in ast.walk(node))


def plus(node: ast.expr, amount: int) -> ast.expr:
    if isinstance(node, ast.Constant):
        return ast.Constant(node.value + amount)
    return ast.BinOp(node, ast.Add() if amount > 0 else ast.Sub(), ast.Constant(abs(amount)))


def comparisons(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """`<` to `<=` and back, `==` to `!=`; and the same bound moved by one the other way."""
    if isinstance(node, ast.Compare):
        (operator,), (bound,) = node.ops, node.comparators
        yield ast.Compare(node.left, [FLIPS[type(operator)]()], [bound])
        if type(operator) in STRICTNESS:
            yield ast.Compare(node.left, [operator], [plus(bound, STRICTNESS[type(operator)])])


def arithmetic(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """A term, factor or conjunct dropped, `+` for `-`, `%` for `//`."""
    if not isinstance(node, ast.BinOp):
        return
    operator = type(node.op)
    if operator in EXCHANGED:
        yield ast.BinOp(node.left, EXCHANGED[operator](), node.right)
    if not is_pointer(node.right):
        yield node.left
    if operator in DROPPED_EITHER_SIDE and not is_pointer(node.left):
        yield node.right


def constants(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """An integer one off, another axis of a reduction, 1.0 more than a float."""
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool | str | None):
        return
    if isinstance(node.value, float):
        yield ast.Constant(node.value + 1.0)
    elif called(place.parent) in ("sum", "max", "cumsum") or isinstance(place.parent, ast.Subscript):
        yield ast.Constant(1 - node.value)
    elif not isinstance(place.parent, ast.Compare) and called(place.parent) not in ("arange", "range", "static_range"):
        yield ast.Constant(node.value + 1)
        if not (node.value == 1 and isinstance(place.parent, ast.BinOp)):  # without the 1, as `arithmetic` leaves it
            yield ast.Constant(node.value - 1)


def names(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """Another tensor's pointer or stride, the row for the head stride, heads for kv heads; the scale twice."""
    if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
        return
    if node.id == "scale":
        yield ast.BinOp(node, ast.Mult(), node)
    others = [name for group in SWAPPED_NAMES if node.id in group for name in sorted(group - {node.id})]
    stem, _, end = node.id.rpartition("_")
    if end in SWAPPED_ENDS:
        others += [f"{stem}_{other}" for other in SWAPPED_ENDS[end]]
        others += [f"{SWAPPED_STEMS[stem]}_{end}"] if stem in SWAPPED_STEMS else []
    for other in others:
        if other in place.names:
            yield ast.Name(other, ast.Load())


def calls(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """`tl.where` and min or max replaced by one operand; `tl.trans`, a cast, a scan, an accumulator or infinity dropped."""
    name = called(node)
    if name == "float":
        yield ast.Constant(0.0)
    elif name == "to":
        yield node.func.value
    elif name in ("trans", "cumsum"):
        yield node.args[0]
    elif name in ("minimum", "maximum"):
        yield from node.args
    elif name == "where":
        yield from node.args[1:]
    elif name == "dot" and len(node.args) == 3:
        yield ast.Call(node.func, node.args[:2], node.keywords)


def accesses(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """A load or store one element off, and a load without its mask."""
    name = called(node)
    address = node.args[0] if name in ACCESSES else None
    if address is not None and not (isinstance(address, ast.BinOp) and isinstance(address.right, ast.Constant)):
        for amount in (1, -1):
            yield ast.Call(node.func, [plus(address, amount), *node.args[1:]], node.keywords)
    unmasked = [keyword for keyword in getattr(node, "keywords", []) if keyword.arg not in ("mask", "other")]
    if name == "load" and len(unmasked) < len(node.keywords):
        yield ast.Call(node.func, node.args, unmasked)


def attributes(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """Natural for base 2, minimum for maximum, a narrower dtype."""
    if isinstance(node, ast.Attribute):
        replaced = dict(REPLACED_ATTRIBUTES) if called(place.parent) == "to" else REPLACED_ATTRIBUTES | NARROWER
        if node.attr in replaced:
            yield ast.Attribute(node.value, replaced[node.attr], node.ctx)


def axes(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """`[None, :]` for `[:, None]`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        yield ast.Subscript(node.value, ast.Tuple(node.slice.elts[::-1], node.slice.ctx), node.ctx)


def ranges(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """A loop that begins one step late, ends one step early or one step late."""
    if called(node) not in ("range", "static_range"):
        return
    if len(node.args) == 1:
        for amount in (1, -1):
            yield ast.Call(node.func, [plus(node.args[0], amount)], node.keywords)
    else:
        first, stop, step = node.args
        yield ast.Call(node.func, [step, stop, step], node.keywords)
        for operator in (ast.Add(), ast.Sub()):
            yield ast.Call(node.func, [first, ast.BinOp(stop, operator, step), step], node.keywords)


def conditions(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """A condition negated, where no comparison in it is mutated."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


def statements(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """A store or an advance of a pointer left out, or taken the other way; an `if` on a flag negated."""
    if isinstance(node, ast.AugAssign):
        yield ast.Pass()
        yield ast.AugAssign(node.target, EXCHANGED[type(node.op)](), node.value)
    elif isinstance(node, ast.Expr) and called(node.value) in ("store", "store_rows", "fill_rows"):
        yield ast.Pass()
    elif isinstance(node, ast.If) and isinstance(node.test, ast.Name):
        yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


OPERATORS = (
    comparisons, arithmetic, constants, names, calls, accesses, attributes, axes, ranges, conditions, statements,
)  # fmt: skip
