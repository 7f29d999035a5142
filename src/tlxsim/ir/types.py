"""Types of the IR, and how numpy holds their values."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping

import ml_dtypes
import numpy as np

_DTYPES = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "index": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16, "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2, "f8E8M0FNU": ml_dtypes.float8_e8m0fnu, "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz, "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
}  # fmt: skip
_SPACES = {"#ttg.shared_memory": "smem", "#ttng.tensor_memory": "tmem"}
_ADDRESS = np.dtype(np.int64)


@dataclasses.dataclass(frozen=True, slots=True)
class Type:
    """A type.

    Args:
        kind: "scalar", "tensor", "memdesc", "descriptor", "pointer", "token", or "none" for all others: their text is
            in `encoding`.
        shape: of a tensor, a buffer or a descriptor's block.
        dtype: of the values: bf16 and fp8 as ml_dtypes has them, i1 as bool, index and pointers as int64.
        pointee: what a pointer, or a tensor of pointers, points to.
        space: of a memdesc "smem" or "tmem".
        mutable: whether a memdesc may be written.
        encoding: the layout's text, aliases resolved.
        unsigned: a descriptor's elements are unsigned integers.
    """

    kind: str
    shape: tuple[int, ...] = ()
    dtype: np.dtype | None = None
    pointee: np.dtype | None = None
    space: str = ""
    mutable: bool = False
    encoding: str = ""
    unsigned: bool = False


def parse_type(text: str, aliases: Mapping[str, str]) -> Type:
    """The type that a text like `!ttg.memdesc<2x64xbf16, #shared, #smem, mutable>` names; ValueError if it cannot be.

    `<f32>` and `<64xf32, ...>`, which `tt.make_tensor_descriptor` prints, are a pointer and a descriptor.
    """
    return _parsed(resolve(text, aliases) if "#" in text else text)


def resolve(text: str, aliases: Mapping[str, str]) -> str:
    """The text with each `#alias` in it replaced by what it stands for."""
    return _ALIAS.sub(lambda match: resolve(aliases[match[0]], aliases) if match[0] in aliases else match[0], text)


def split_list(text: str, separator: str = ",") -> list[str]:
    """The parts of a comma-separated list, stripped; commas inside of brackets and strings do not separate."""
    parts, depth, begin = [], 0, 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in _OPENING:
            depth += 1
        elif token in _CLOSING:
            depth -= 1
        elif token == separator and depth == 0:
            parts.append(text[begin : match.start()].strip())
            begin = match.end()
    parts.append(text[begin:].strip())
    return [part for part in parts if part]


_ALIAS = re.compile(r"#\w+\b(?!\.)")
_OPENING, _CLOSING = frozenset("(<[{"), frozenset(")>]}")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|->|[(<\[{)>\]},]')
_SHAPED = re.compile(r"((?:\d+x)*)(.*)", re.DOTALL)
_WRAPPED = re.compile(r"(tensor|!ttg\.memdesc|!tt\.tensordesc|!tt\.ptr)?<(.*)>", re.DOTALL)


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Type:
    if text in _DTYPES or text[:2] in ("ui", "si"):
        dtype, unsigned = _dtype(text)
        return Type("scalar", dtype=dtype, unsigned=unsigned)
    if text == "!ttg.async.token":
        return Type("token")
    wrapped = _WRAPPED.fullmatch(text)
    if wrapped is None:
        return Type("none", encoding=text)
    kind, inner = wrapped.groups()
    if kind == "!tt.ptr" or (kind is None and not inner[:1].isdigit()):
        return Type("pointer", dtype=_ADDRESS, pointee=_pointee(inner))
    head, *rest = split_list(inner)
    lengths, element = _SHAPED.fullmatch(head).groups()
    shape = tuple(int(n) for n in lengths.split("x")[:-1])
    encoding = rest[0] if rest else ""
    if kind == "tensor":
        if element.startswith("!tt.ptr<"):
            return Type("tensor", shape, _ADDRESS, pointee=_pointee(element[8:-1]), encoding=encoding)
        return Type("tensor", shape, _dtype(element)[0], encoding=encoding)
    dtype, unsigned = _dtype(element)
    if kind == "!ttg.memdesc":
        if len(rest) < 2 or rest[1] not in _SPACES:
            raise ValueError(f"a memory space that is not known in {text}")
        return Type("memdesc", shape, dtype, space=_SPACES[rest[1]], mutable="mutable" in rest, encoding=encoding)
    return Type("descriptor", shape, dtype, encoding=encoding, unsigned=unsigned)


def _pointee(text: str) -> np.dtype:
    return _ADDRESS if text.startswith("!tt.ptr<") else _dtype(text)[0]


def _dtype(text: str) -> tuple[np.dtype, bool]:
    """Of an element's name; `ui8` and `si8` are descriptors' ways to say i8."""
    name = text[1:] if text[:2] in ("ui", "si") else text
    if name not in _DTYPES:
        raise ValueError(f"the element type {text} is not known")
    return np.dtype(_DTYPES[name]), text.startswith("ui")
