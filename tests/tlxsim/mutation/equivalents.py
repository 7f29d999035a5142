"""Mutants that are no faults, each class with its proof and the level that it holds at; `run.py` runs them all the same.

A level is "ttir", the kernel as written, or "both": as the compiler has made it ("fenced") as well; checked there.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Equivalence:
    """Why mutants are equivalent, where that holds, and which: (kernel, text of the mutant)."""

    level: str
    proof: str
    mutants: tuple[tuple[str, str], ...]


EQUIVALENT: tuple[Equivalence, ...] = ()


def find(kernel: str, mutant: str) -> Equivalence | None:
    return next((e for e in EQUIVALENT if (kernel, mutant) in e.mutants), None)
