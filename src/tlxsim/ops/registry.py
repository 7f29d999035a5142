"""How an operation of the IR becomes a step: a syntax that must match as a whole, and a builder that runs once for each op.

A syntax is the op's custom assembly with placeholders: `%name` one SSA operand, `%name*` a possibly empty list of them,
`#name` an integer, `@name` a word, `(...)?` a part that may be missing. What does not match, and any attribute that the
operation does not list, is refused by name and line: an operation is modelled as it stands or not at all.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

from ..findings import Unsupported

VALUE = r"%[\w.$-]+(?:#\d+)?"
HINT = "tt.divisibility_arg"  # what a loop's arguments are multiples of; no value depends on it
Step = Callable[[dict, Any], Any]


@dataclasses.dataclass(frozen=True)
class Definition:
    """A registered operation."""

    builder: Callable
    pattern: re.Pattern[str] | None
    lists: frozenset[str]
    integers: frozenset[str]
    attributes: frozenset[str]
    blocking: bool


DEFINITIONS: dict[str, Definition] = {}


def pure(names: str, syntax: str | None = None, *, attributes: str = "") -> Callable:
    """Register operations whose step is a function `(env, task) -> None` that cannot wait and is no scheduling point.

    A builder may return `(waits, step)` instead, where that depends on the op.
    """
    return _register(names, syntax, attributes, blocking=False)


def blocking(names: str, syntax: str | None = None, *, attributes: str = "") -> Callable:
    """Register operations whose step is a generator function: it yields None where others may run, or a Wait."""
    return _register(names, syntax, attributes, blocking=True)


def refuse(op: Any, why: str) -> Unsupported:
    """The error for an operation, operand or attribute that is not modelled."""
    return Unsupported(f"{op.name} at {op.loc}: {why}\n    {op.loc.source or op.text[:160]}")


def build(op: Any) -> tuple[bool, Step]:
    """The step of an op and whether it is a generator; refuses what is not modelled."""
    definition = DEFINITIONS.get(op.name)
    if definition is None:
        raise refuse(op, "tlxsim does not model this operation")
    unknown = {key for key in op.attributes if not key.startswith(HINT)} - definition.attributes
    if unknown:
        raise refuse(op, f"tlxsim does not model its attribute {', '.join(sorted(unknown))}")
    captures: dict[str, Any] = {}
    if definition.pattern is not None:
        match = definition.pattern.fullmatch(op.text.strip())
        if match is None:
            raise refuse(op, f"tlxsim does not model this form of it: {op.text[:160]}")
        for name, text in match.groupdict().items():
            captures[name] = _converted(name, text, definition)
    built = definition.builder(op, captures)
    return built if isinstance(built, tuple) else (definition.blocking, built)


def _converted(name: str, text: str | None, definition: Definition) -> Any:
    if name in definition.lists:
        return tuple(re.findall(VALUE, text or ""))
    if name in definition.integers and text is not None:
        return int(text)
    return text


def _register(names: str, syntax: str | None, attributes: str, *, blocking: bool) -> Callable:
    pattern, lists, integers = _compiled(syntax) if syntax is not None else (None, frozenset(), frozenset())

    def add(builder: Callable) -> Callable:
        for name in names.split():
            if name in DEFINITIONS:
                raise ValueError(f"{name} is registered twice")
            DEFINITIONS[name] = Definition(builder, pattern, lists, integers, frozenset(attributes.split()), blocking)
        return builder

    return add


_PLACEHOLDER = re.compile(r"%(\w+)\*|%(\w+)|#(\w+)|@(\w+)|(\s+)|(\)\?|[()|?])|([^\s%#@()|?]+)")


def _compiled(syntax: str) -> tuple[re.Pattern[str], frozenset[str], frozenset[str]]:
    parts, lists, integers = [], set(), set()
    for many, one, integer, word, space, structure, literal in _PLACEHOLDER.findall(syntax):
        if many:
            lists.add(many)
            parts.append(rf"(?P<{many}>(?:{VALUE}(?:, ?)?)*)")
        elif one:
            parts.append(rf"(?P<{one}>{VALUE})")
        elif integer:
            integers.add(integer)
            parts.append(rf"(?P<{integer}>-?\d+)")
        elif word:
            parts.append(rf"(?P<{word}>[\w.]+)")
        elif space:
            parts.append(r"\s*")
        elif structure:
            parts.append({"(": "(?:"}.get(structure, structure))
        else:
            parts.append(re.escape(literal))
    return re.compile("".join(parts)), frozenset(lists), frozenset(integers)


def run_straight(ops: Iterable[Any], env: dict, task: Any) -> None:
    """Run the straight-line ops of a combine region, which cannot wait."""
    for op in ops:
        waits, step = op_step(op)
        if waits:
            for _ in step(env, task):
                raise refuse(op, "it may not wait inside a reduction")
        else:
            step(env, task)


def op_step(op: Any) -> tuple[bool, Step]:
    """The op's step, built at its first use and kept with it."""
    if op.step is None:
        op.step = build(op)
    return op.step
