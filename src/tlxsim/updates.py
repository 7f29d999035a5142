"""What an atomic operation does to the elements of memory, in one place for atomics and for TMA's reductions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_FLOATS = dict(add=np.add, min=np.fmin, max=np.fmax, exch=lambda old, new: new)
_INTEGERS = {
    **_FLOATS, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def combine(kind: str, dtype: np.dtype, unsigned: bool) -> Callable | None:
    """The function (old elements, new values) -> elements of a kind like "add" or "max"; None if there is none."""
    found = (_INTEGERS if dtype.kind == "i" else _FLOATS).get(kind)
    if found is None or not unsigned or kind not in ("min", "max"):
        return found
    wide = np.dtype(f"u{dtype.itemsize}")
    return lambda old, new: found(old.view(wide), new.view(wide)).view(dtype)
