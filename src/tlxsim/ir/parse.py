"""Parser of Triton's textual MLIR: custom assembly of all dialects by one rule, generic form, and control flow.

One operation stands on one line, or opens regions at its end (`{`, `({`). Its line is cut at brackets of depth zero:

    results = name  text {attributes} : signature loc(...)

so that no operation's own syntax needs to be known here, except where it prints no types (`arith.constant true`), binds
names (`scf.for`) or has regions of its own form (`ttg.warp_specialize`).
"""

from __future__ import annotations

import re

from .locations import Locations
from .module import Block, Function, Module, Op, Partition, Region
from .types import Type, parse_type, split_list


class ParseError(ValueError):
    """A text that is not understood, with its line."""

    def __init__(self, line: str, why: str):
        super().__init__(f"{why}: {line.strip()[:300]}")
        self.line, self.why = line, why


def parse(text: str) -> Module:
    """The module that a text printed with debug information describes.

    Raises:
        ParseError: a line is not understood.
    """
    return _Parser(text).module()


VALUE = r"%[\w.$-]+(?:#\d+)?"
_OPERAND = re.compile(VALUE)
_OP = re.compile(r'(?:(%[^="(]+?) = )?("?)([a-z_][\w]*(?:\.[\w.]+)+)\2 ?')
_LABEL = re.compile(r"\^(\w+)(?:\((.*)\))?:(?:\s*//.*)?", re.DOTALL)
_FUNCTION = re.compile(r'tt\.func (public |private )?@("[^"]*"|[\w.$-]+)\(')
_PARTITION = re.compile(r"partition\d+\((.*)\) num_warps\((\d+)\) \{", re.DOTALL)
_ARGUMENT = re.compile(rf"({VALUE}): ")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|->|<\{|\}>|[(<\[{)>\]}]| : ')
_BRACKETS = re.compile(r'[(<{"]')
_ARROW = re.compile(r" -> | to |[(<\[{)>\]}]")
_OPENING, _CLOSING = frozenset(["(", "<", "[", "{", "<{"]), frozenset([")", ">", "]", "}", "}>"])


class _Parser:
    """The lines of a module and the place that parsing has reached."""

    def __init__(self, text: str):
        self.locations = Locations()
        self.aliases: dict[str, str] = {}
        self.signatures: dict[str, tuple[tuple[Type, ...], tuple[Type, ...]]] = {}
        self.lines: list[str] = []
        self.at = 0
        for line in text.split("\n"):
            line = line.strip()
            if line.startswith("#loc"):
                alias, _, value = line.partition(" = ")
                self.locations.define(alias, value[4:-1])
            elif line.startswith("#"):
                alias, _, value = line.partition(" = ")
                self.aliases[alias] = value
            elif line:
                self.lines.append(line)

    def module(self) -> Module:
        line, _ = self._next()
        attributes = re.fullmatch(r'module (?:@"?[\w.$-]+"? )?(?:attributes \{(.*)\} )?\{', line, re.DOTALL)
        if attributes is None:
            raise ParseError(line, "not the head of a module")
        functions = {}
        while not self.lines[self.at].startswith("}"):
            function = self._function()
            functions[function.name] = function
        return Module(functions, _dictionary(attributes[1] or ""))

    def _next(self) -> tuple[str, str]:
        """The next line without its trailing location, and that location's text."""
        if self.at >= len(self.lines):
            raise ParseError("", "the text ends too early")
        line = self.lines[self.at]
        self.at += 1
        if line.endswith(")"):
            cut = line.rfind(" loc(")
            inner = line[cut + 5 : -1]
            if cut >= 0 and ("(" in inner or ")" in inner):
                cut = _location_start(line)
            if cut >= 0:
                return line[:cut].rstrip(), line[cut + 5 : -1]
        return line, ""

    def _function(self) -> Function:
        line, _ = self._next()
        head = _FUNCTION.match(line)
        if head is None:
            raise ParseError(line, "not a function")
        end = _matching(line, head.end() - 1)
        names, types = self._arguments(line[head.end() : end], line)
        name = head[2].strip('"')
        declared = not line.endswith("{")
        region: Region = [] if declared else self._region()[0]
        return Function(name, names, types, region, public=head[1] == "public ")

    def _arguments(self, text: str, line: str) -> tuple[tuple[str, ...], tuple[Type, ...]]:
        """Names and types of `%a: type {attributes} loc(...), ...`."""
        names, types = [], []
        for part in split_list(text):
            match = _ARGUMENT.match(part)
            if match is None:
                raise ParseError(line, f"not an argument, {part!r}")
            kind = part[match.end() :].split(" loc(", 1)[0].split(" {", 1)[0]
            names.append(match[1])
            types.append(self._type(kind, line))
        return tuple(names), tuple(types)

    def _region(self) -> tuple[Region, str, str]:
        """Blocks up to the line that closes the region, that line and its location."""
        blocks = [Block("bb0", (), (), [])]
        ops = blocks[0].ops
        while True:
            first = self.lines[self.at][:1] if self.at < len(self.lines) else "}"
            if first == "}":
                return blocks, *self._next()
            if first != "^":
                ops.append(self._op())
                continue
            line = self.lines[self.at]
            label = _LABEL.fullmatch(line)
            if label is None:
                raise ParseError(line, "not the label of a block")
            self.at += 1
            block = Block(label[1], *self._arguments(label[2] or "", line), [])
            if len(blocks) == 1 and not ops:
                blocks[0] = block
            else:
                blocks.append(block)
            ops = block.ops

    def _op(self) -> Op:
        line, location = self._next()
        head = _OP.match(line)
        if head is None:
            raise ParseError(line, "not an operation")
        results = _results(head[1]) if head[1] else ()
        name, rest = head[3], line[head.end() :]
        regions: list[Region] = []
        partitions: list[Partition] = []
        tail = ""
        if name == "ttg.warp_specialize":
            regions, partitions, tail, location = self._partitions()
            rest = rest.replace(") attributes {", ") {", 1) + tail
        elif rest.endswith("({"):
            regions, tail, location = self._regions()
            rest = rest[:-2].rstrip() + tail.removeprefix("})")
        elif rest.endswith("{"):
            regions, tail, location = self._regions()
            rest = rest[:-1].rstrip()
        text, attributes, signature = self._cut(rest, line)
        if name.startswith("scf."):
            attributes |= self._behind(tail)
        known = self.signatures.get(signature)
        if known is None:
            known = self.signatures[signature] = self._signature(signature, line)
        types, result_types = known
        if name in ("scf.for", "scf.if"):  # their results' types stand in the text
            text, _, after = text.partition(" -> ")
            text = text.rstrip()
            result_types = self._types(after, line)
        elif name == "arith.constant" and not signature:
            types = result_types = (self._type("i1", line),)
        operands = tuple(_OPERAND.findall(text)) if "%" in text else ()
        at = self.locations.resolve(location)
        return Op(name, results, text, attributes, operands, signature, types, result_types, regions, partitions, at)

    def _behind(self, tail: str) -> dict[str, str]:
        """The attributes that stand behind the regions of control flow: `} {a = 1 : i32}`, `} attributes {...}`."""
        behind = tail.removeprefix("}").strip().removeprefix("attributes ")
        if behind and not (behind.startswith("{") and behind.endswith("}")):
            raise ParseError(tail, "not an end of control flow")
        return _dictionary(behind[1:-1])

    def _regions(self) -> tuple[list[Region], str, str]:
        regions = []
        while True:
            region, close, location = self._region()
            regions.append(region)
            if not close.endswith("{"):
                return regions, close, location
            if close not in ("} else {", "} do {", "}, {"):
                raise ParseError(close, "not a way to go from region to region")

    def _partitions(self) -> tuple[list[Region], list[Partition], str, str]:
        """The regions of `ttg.warp_specialize`, and what follows the last."""
        line, _ = self._next()
        if line != "default {":
            raise ParseError(line, "not the default region of ttg.warp_specialize")
        default, close, location = self._region()
        partitions = []
        while close == "}":
            line, _ = self._next()
            head = _PARTITION.fullmatch(line)
            if head is None:
                raise ParseError(line, "not a partition of ttg.warp_specialize")
            names, _ = self._arguments(head[1], line)
            region, close, location = self._region()
            partitions.append(Partition(names, int(head[2]), region))
        return [default], partitions, close[1:], location

    def _cut(self, rest: str, line: str) -> tuple[str, dict[str, str], str]:
        """Text, attributes and signature of what follows an operation's name."""
        text, _, signature = rest.partition(" : ")
        if signature and not _BRACKETS.search(text) and " : " not in signature and "{" not in signature:
            return text.rstrip(), {}, signature.strip()
        depth, colon, begin = 0, -1, 0
        dictionaries: list[tuple[int, int, int]] = []
        for match in _TOKEN.finditer(rest):
            token = match[0]
            if token in _OPENING:
                if depth == 0:
                    begin = match.start()
                depth += 1
            elif token in _CLOSING:
                depth -= 1
                if depth == 0 and token[0] == "}":
                    dictionaries.append((begin, match.end(), len(token)))
            elif token == " : " and depth == 0:
                colon = match.start()
        if depth:
            raise ParseError(line, "brackets do not match")
        text, signature = (rest, "") if colon < 0 else (rest[:colon], rest[colon + 3 :].strip())
        if rest.startswith(": ") and colon < 0:  # an operation without operands
            text, signature = "", rest[2:].strip()
        attributes: dict[str, str] = {}
        for begin, end, width in reversed(dictionaries):
            if end > len(text):
                raise ParseError(line, "an attribute dictionary behind the types")
            attributes |= _dictionary(text[begin + width : end - width])
            text = f"{text[:begin].rstrip()} {text[end:].lstrip()}"
        return text.strip(), attributes, signature

    def _signature(self, text: str, line: str) -> tuple[tuple[Type, ...], tuple[Type, ...]]:
        if not text:
            return (), ()
        before, after = _arrow(text)
        types = self._types(before, line)
        return types, types if after is None else self._types(after, line)

    def _types(self, text: str, line: str) -> tuple[Type, ...]:
        text = text.strip()
        if text.startswith("(") and _matching(text, 0) == len(text) - 1:
            text = text[1:-1]
        parts = [part.strip() for item in split_list(text) for part in item.split(" * ")]
        return tuple(self._type(part, line) for part in parts)

    def _type(self, text: str, line: str) -> Type:
        try:
            return parse_type(text, self.aliases)
        except ValueError as error:
            raise ParseError(line, str(error)) from error


def _results(text: str) -> tuple[str, ...]:
    names: list[str] = []
    for part in text.split(", "):
        name, colon, count = part.partition(":")
        names += [f"{name}#{n}" for n in range(int(count))] if colon else [name]
    return tuple(names)


def _dictionary(text: str) -> dict[str, str]:
    """`a = 1 : i32, "b.c" = "d", flag` as {"a": "1 : i32", "b.c": '"d"', "flag": ""}."""
    found = {}
    for item in split_list(text):
        key, _, value = item.partition(" = ")
        found[key.strip('"')] = value
    return found


def _arrow(text: str) -> tuple[str, str | None]:
    """What stands before and after the "->" or "to" outside of brackets."""
    depth = 0
    for match in _ARROW.finditer(text):
        token = match[0]
        if token in (" -> ", " to "):
            if depth == 0:
                return text[: match.start()], text[match.end() :]
        elif token in _OPENING:
            depth += 1
        elif token in _CLOSING:
            depth -= 1
    return text, None


def _matching(text: str, begin: int) -> int:
    """Where the bracket that opens at `begin` closes."""
    depth = 0
    for match in _TOKEN.finditer(text, begin):
        if match[0] in _OPENING:
            depth += 1
        elif match[0] in _CLOSING:
            depth -= 1
            if depth == 0:
                return match.end() - 1
    raise ParseError(text, "brackets do not match")


def _location_start(line: str) -> int:
    """Where the ` loc(...)` begins that ends the line, if one does; it holds brackets of its own."""
    at = line.find(" loc(")
    while at >= 0:
        if _matching(line, at + 4) == len(line) - 1:
            return at
        at = line.find(" loc(", at + 1)
    return -1
