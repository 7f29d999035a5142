"""Mutants that no test can kill, with the reason; each is checked again by `run.py --equivalents`.

reason: the mutants that it holds for, as ("module.function", "before → after").
"""

EQUIVALENT: dict[str, tuple[tuple[str, str], ...]] = {}
