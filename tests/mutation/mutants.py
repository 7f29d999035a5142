"""Mutants of a kernel module: its source with one expression of one jit function replaced.

They are found in the module's syntax tree, so nothing here changes when a kernel does. A mutant is known by its function
and by the text before and after: the smallest expression around the change that no other mutant of the function shares.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
from collections.abc import Iterator

from operators import OPERATORS, Place


@dataclasses.dataclass(frozen=True)
class Mutant:
    """module and function: where; before, after: the expression; source: of the whole module, mutated."""

    module: str
    function: str
    before: str
    after: str
    source: str = dataclasses.field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.before} → {self.after}"

    @property
    def place(self) -> str:
        return f"{self.module}.{self.function}"


@dataclasses.dataclass(frozen=True)
class Site:
    """A node that may be replaced: `field` (and `index`, in a list) of `owner`, and what is around it."""

    node: ast.AST
    owner: ast.AST
    field: str
    index: int | None
    place: Place

    @contextlib.contextmanager
    def replaced(self, node: ast.AST) -> Iterator[None]:
        self._put(node)
        yield
        self._put(self.node)

    def _put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.owner, self.field, node)
        else:
            getattr(self.owner, self.field)[self.index] = node

    def texts(self, node: ast.AST) -> list[tuple[str, str]]:
        """Before and after, of the node and of each ancestor, innermost first; blocks are left out."""
        around = [x for x in reversed(self.place.ancestors) if not hasattr(x, "body") or isinstance(x, ast.IfExp)]
        before = [_text(x) for x in (self.node, *around)]
        with self.replaced(node):
            after = [_text(x) for x in (node, *around)]
        informative = [not isinstance(x, ast.Name | ast.Constant | ast.Attribute) for x in (self.node, *around)]
        return [pair for pair, keep in zip(zip(before, after, strict=True), informative, strict=True) if keep]


def generate(module: str, source: str) -> list[Mutant]:
    """All mutants of a module's jit functions, in source order and without repetition."""
    tree = ast.parse(source)
    original, mutants, seen = ast.unparse(tree), [], set()
    for function in tree.body:
        if not (isinstance(function, ast.FunctionDef) and _is_jit(function)):
            continue
        found = []
        for site, node in _replacements(function):
            with site.replaced(node):
                mutated = ast.unparse(ast.fix_missing_locations(tree))
            if mutated != original and mutated not in seen:
                seen.add(mutated)
                found.append((site.texts(node), mutated))
        for (before, after), mutated in zip(_labels([texts for texts, _ in found]), [m for _, m in found], strict=True):
            mutants.append(Mutant(module, function.name, before, after, mutated))
    return mutants


def _is_jit(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).startswith("triton.jit") for decorator in function.decorator_list)


def _replacements(function: ast.FunctionDef) -> Iterator[tuple[Site, ast.AST]]:
    names = {x.id for x in ast.walk(function) if isinstance(x, ast.Name)} | {x.arg for x in function.args.args}
    for site in list(_sites(function, (), frozenset(names))):
        for operator in OPERATORS:
            for node in operator(site.node, site.place):
                yield site, node


def _sites(owner: ast.AST, ancestors: tuple[ast.AST, ...], names: frozenset[str]) -> Iterator[Site]:
    """Every node below `owner` that is computed: not the signature, annotations or assigned names."""
    for field, value in ast.iter_fields(owner):
        if field in ("args", "decorator_list", "returns") and isinstance(owner, ast.FunctionDef):
            continue
        if field in ("annotation", "target", "targets", "ctx", "op", "ops"):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                continue
            above = () if isinstance(node, ast.stmt) else ancestors
            yield Site(node, owner, field, index, Place(above, names))
            yield from _sites(node, (*above, node), names)


def _text(node: ast.AST) -> str:
    """One line; of a block its header."""
    return "(nothing)" if isinstance(node, ast.Pass) else ast.unparse(node).split("\n")[0]


def _labels(candidates: list[list[tuple[str, str]]]) -> list[tuple[str, str]]:
    """For each mutant the first of its texts that no other has; a number is added where statements repeat."""
    levels = [0] * len(candidates)
    while True:
        labels = [texts[level] for texts, level in zip(candidates, levels, strict=True)]
        counts = collections.Counter(labels)
        deeper = [
            counts[label] > 1 and level + 1 < len(texts)
            for label, level, texts in zip(labels, levels, candidates, strict=True)
        ]
        if not any(deeper):
            return _numbered(labels)
        levels = [level + more for level, more in zip(levels, deeper, strict=True)]


def _numbered(labels: list[tuple[str, str]]) -> list[tuple[str, str]]:
    seen, numbered = collections.Counter(), []
    for before, after in labels:
        seen[before, after] += 1
        number = seen[before, after]
        numbered.append((before, after if number == 1 else f"{after} ({number})"))
    return numbered
