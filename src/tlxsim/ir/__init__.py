"""Triton's textual MLIR as light Python objects: `parse(text)` gives a `Module` of functions, blocks and operations.

Text, and not the compiler's bindings: those show neither most attributes nor the operations of a block, and change with
every release. What the text prints is kept as it stands; this package knows syntax and no operation's meaning.
"""

from .locations import Location
from .module import Block, Function, Module, Op, Partition
from .parse import ParseError, parse
from .types import Type, parse_type

__all__ = ["Block", "Function", "Location", "Module", "Op", "ParseError", "Partition", "Type", "parse", "parse_type"]
