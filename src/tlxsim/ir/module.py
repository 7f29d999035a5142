"""What a parsed module consists of: functions of blocks of operations. Plain data that the parser fills in."""

from __future__ import annotations

import dataclasses
from typing import Any

from .locations import Location
from .types import Type

Region = list["Block"]


@dataclasses.dataclass(slots=True, eq=False)
class Op:
    """One operation.

    Args:
        name: like "ttng.wait_barrier".
        results: "%x"; of an operation with several results under one name "%x#0", "%x#1".
        text: the custom assembly after the name, without attribute dictionaries, type signature and location.
        attributes: those dictionaries, `{a = 1 : i32, flag}` and `<{...}>`, as {"a": "1 : i32", "flag": ""}.
        operands: every SSA name in text, in order; of control flow the names that it binds too.
        signature: the text after the last " : " outside of brackets.
        types: of the signature's part before "->" or "to".
        result_types: of the part after it; without an arrow the same as types.
        regions: of blocks; of `ttg.warp_specialize` the default region.
        partitions: of `ttg.warp_specialize`.
        step: whatever the interpreter keeps here.
    """

    name: str
    results: tuple[str, ...]
    text: str
    attributes: dict[str, str]
    operands: tuple[str, ...]
    signature: str
    types: tuple[Type, ...]
    result_types: tuple[Type, ...]
    regions: list[Region]
    partitions: list[Partition]
    loc: Location
    step: Any = None


@dataclasses.dataclass(slots=True, eq=False)
class Partition:
    """A task of `ttg.warp_specialize`: its arguments are the operation's operands, in order."""

    args: tuple[str, ...]
    num_warps: int
    region: Region


@dataclasses.dataclass(slots=True, eq=False)
class Block:
    """Operations that run one after another; the label is without "^", the entry block's is "bb0" if it prints none."""

    label: str
    args: tuple[str, ...]
    arg_types: tuple[Type, ...]
    ops: list[Op]


@dataclasses.dataclass(slots=True, eq=False)
class Function:
    """A function; of a declaration the region is empty."""

    name: str
    args: tuple[str, ...]
    arg_types: tuple[Type, ...]
    region: Region
    public: bool


@dataclasses.dataclass(slots=True, eq=False)
class Module:
    """All functions by name, and the module's attributes, like "ttg.num-warps"."""

    functions: dict[str, Function]
    attributes: dict[str, str]

    @property
    def entry(self) -> Function:
        """The kernel: the one public function."""
        (entry,) = (function for function in self.functions.values() if function.public)
        return entry
