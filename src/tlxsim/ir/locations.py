"""Where an operation comes from: the call chain of source lines that Triton's frontend attached to it."""

from __future__ import annotations

import dataclasses
import linecache
import os
import re

# Directories (or their tails) whose code calls itself on the user's behalf: Triton's own language, and TLX.
_LIBRARIES = ("/triton/language/", "/utlx_plugin/", "/triton/experimental/", "/site-packages/triton/")
_TLX = re.compile(r"/tlx/(?:compiler/)?\w+\.py$")
_TUTORIALS = "/tlx/tutorials/"


@dataclasses.dataclass(frozen=True, slots=True)
class Location:
    """Source lines `(file, line)`, the innermost call first; none if it is unknown. `name` is the value's in the source."""

    frames: tuple[tuple[str, int], ...] = ()
    name: str = ""

    @property
    def user(self) -> tuple[str, int]:
        """The innermost line outside of Triton's and TLX's own files, or the innermost; ("", 0) if nothing is known."""
        for file, line in self.frames:
            if not _is_library(file):
                return file, line
        return self.frames[0] if self.frames else ("", 0)

    @property
    def source(self) -> str:
        """The text of that line, stripped; "" if it cannot be read."""
        file, line = self.user
        return linecache.getline(file, line).strip() if line else ""

    def __str__(self) -> str:
        file, line = self.user
        return f"{os.path.basename(file)}:{line}" if line else "an unknown line"


UNKNOWN = Location()


def _is_library(file: str) -> bool:
    if _TUTORIALS in file:
        return False
    return any(part in file for part in _LIBRARIES) or ("/site-packages/" in file and _TLX.search(file) is not None)


class Locations:
    """The `#loc` aliases of a module, resolved when asked for."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._known: dict[str, Location] = {"unknown": UNKNOWN, "": UNKNOWN}

    def define(self, alias: str, text: str) -> None:
        """`#loc1 = loc(text)`."""
        self._texts[alias] = text

    def resolve(self, text: str) -> Location:
        """What `loc(text)` says: an alias, a file's line, a call, a name around another, or several fused."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._resolve(text)
        return found

    def _resolve(self, text: str) -> Location:
        if text.startswith("#"):
            return self.resolve(self._texts.get(text, "unknown"))
        if match := _FILE.match(text):
            return Location(((match[1], int(match[2])),))
        if match := _CALL.fullmatch(text):
            inner, outer = (self.resolve(part) for part in _split_call(match[1]))
            return Location(inner.frames + outer.frames, inner.name)
        if match := _NAMED.fullmatch(text):
            return Location(self.resolve(match[2]).frames, match[1])
        for alias in re.findall(r"#loc\d*", text):  # fused: the first that says something
            if (found := self.resolve(alias)).frames:
                return found
        return UNKNOWN


_FILE = re.compile(r'"([^"]*)":(\d+):\d+')
_CALL = re.compile(r"callsite\((.*)\)")
_NAMED = re.compile(r'"([^"]*)"\((.*)\)')


def _split_call(text: str) -> tuple[str, str]:
    """`callee at caller`, either of which may be written out and hold another " at "."""
    depth = 0
    for match in re.finditer(r'"[^"]*"|[()]| at ', text):
        token = match[0]
        if token == " at " and depth == 0:
            return text[: match.start()], text[match.end() :]
        depth += {"(": 1, ")": -1}.get(token, 0)
    raise ValueError(f"no caller in the location callsite({text})")
