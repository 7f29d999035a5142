"""Mutation tests of the Triton kernels: every mutant must fail a test or stand in `equivalents.py`.

    python tests/mutation/run.py [--only FILE] [--limit N] [--equivalents]

The kernels run on the CPU in Triton's interpreter. A full run writes `table.md`; the exit status is 1 when a mutant
survives, or when `equivalents.py` names one that does not exist any more or that a test kills.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib
import os
import subprocess
import tempfile
import time
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pool
import pytest
import suite
from equivalents import EQUIVALENT
from mutants import Mutant, generate
from rich.console import Console
from rich.progress import Progress

MODULES = (
    "walk", "tile_math", "triton_forward", "triton_backward", "triton_tiles", "pairs", "triton_rotary_forward",
    "triton_rotary_backward",
)  # fmt: skip
WORKERS = 2
SECONDS_A_TEST = 120
TABLE = Path(__file__).with_name("table.md")
REASONS = {key: reason for reason, keys in EQUIVALENT.items() for key in keys}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A mutant with the test that killed it (and how, when not by failing) or the reason why none can; else it survived."""

    mutant: Mutant
    killer: str = ""
    death: str = ""
    reason: str = ""

    @property
    def survived(self) -> bool:
        return not (self.killer or self.reason)


def main() -> int:
    options = _options()
    console, began = Console(), time.monotonic()
    sources = {name: Path(importlib.import_module(f"{suite.KERNELS}.{name}").__file__).read_text() for name in MODULES}
    mutants = [mutant for name, source in sources.items() for mutant in generate(name, source)]
    stale = set(REASONS) - {(mutant.place, str(mutant)) for mutant in mutants}
    chosen = [m for m in mutants if options.only in (None, m.module) and (options.equivalents or _key(m) not in REASONS)]
    chosen = chosen[: options.limit]
    with Progress(console=console, auto_refresh=False) as progress:  # a refreshing thread must not be forked
        killed = suite.with_tests(lambda items: _run(chosen, items, progress))
    verdicts = [_verdict(mutant, killed.get(mutant)) for mutant in mutants if mutant in killed or _key(mutant) in REASONS]
    whole = options.only is None and options.limit is None
    if whole:
        TABLE.write_text(_table(verdicts))
    return _report(console, verdicts, stale if whole else set(), time.monotonic() - began)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", metavar="FILE", choices=MODULES, type=lambda name: Path(name).stem, help="one module")
    parser.add_argument("--limit", metavar="N", type=int, help="the first N mutants")
    parser.add_argument("--equivalents", action="store_true", help="run the mutants that equivalents.py names as well")
    return parser.parse_args()


def _key(mutant: Mutant) -> tuple[str, str]:
    return mutant.place, str(mutant)


def _run(mutants: list[Mutant], items: list[pytest.Item], progress: Progress) -> dict[Mutant, pool.Outcome]:
    """Measure the tests, then run each mutant against those that reach its function."""
    tests = _measured(items, progress)
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder:

        def work(mutant, starts):
            own = Path(tempfile.mkdtemp(dir=folder))
            suite.install(mutant.module, mutant.source, own)
            return suite.first_failure([test for test in tests if mutant.place in test.functions], starts)

        task = progress.add_task("mutants", total=len(mutants))
        for mutant, outcome in pool.run_all(mutants, work, WORKERS, SECONDS_A_TEST):
            outcomes[mutant] = outcome
            if not (outcome.result or outcome.death) and _key(mutant) not in REASONS:
                progress.console.print(f"[red]survived[/] {mutant.place}: {mutant}", highlight=False, soft_wrap=True)
            progress.advance(task)
            progress.refresh()
    return outcomes


def _measured(items: list[pytest.Item], progress: Progress) -> list[suite.Test]:
    """The tests that call a kernel, after a run of all of them on the kernels as they are."""
    task = progress.add_task("tests without a mutant", total=len(items))
    tests = []
    parts = (items[start::8] for start in range(8))
    for part, outcome in pool.run_all(parts, suite.measure, WORKERS, SECONDS_A_TEST):
        if outcome.death:
            raise SystemExit(f"{outcome.test} fails without a mutant ({outcome.death})")
        tests += [suite.Test(item, ours, calls) for item, (calls, ours) in zip(part, outcome.result, strict=True) if ours]
        progress.update(task, advance=len(part), refresh=True)
    return tests


def _verdict(mutant: Mutant, outcome: pool.Outcome | None) -> Verdict:
    reason = REASONS.get(_key(mutant), "")
    if outcome is None:
        return Verdict(mutant, reason=reason)
    killer = outcome.result or (outcome.death and (outcome.test or "(when it is loaded)"))
    return Verdict(mutant, killer or "", outcome.death, reason)


def _report(console: Console, verdicts: list[Verdict], stale: set, seconds: float) -> int:
    """Print what went wrong and the counts; the exit status."""
    survivors = [v for v in verdicts if v.survived]
    refuted = [v for v in verdicts if v.killer and v.reason]
    lines = [f"survived: {v.mutant.place}: {v.mutant}" for v in survivors]
    lines += [f"not equivalent, {v.killer} kills it: {v.mutant.place}: {v.mutant}" for v in refuted]
    lines += [f"equivalents.py names no mutant: {place}: {text}" for place, text in sorted(stale)]
    for line in lines:
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    console.print(f"{_counts(verdicts)}, {seconds:.0f} s")
    return 1 if lines else 0


def _counts(verdicts: list[Verdict]) -> str:
    killed, survived = sum(bool(v.killer) for v in verdicts), sum(v.survived for v in verdicts)
    return f"{len(verdicts)} mutants: {killed} killed, {len(verdicts) - killed - survived} equivalent, {survived} surviving"


def _table(verdicts: list[Verdict]) -> str:
    """The verdicts as Markdown: the tests that killed, numbered, then a table for each module."""
    kills = collections.Counter(v.killer for v in verdicts if v.killer)
    numbers = {name: f"T{i}" for i, (name, _) in enumerate(sorted(kills.items(), key=lambda x: (-x[1], x[0])), 1)}
    counts = f"{_counts(verdicts)}. Written by `make mutation`, for the kernels of commit {_commit()}."
    lines = ["# Mutants of the Triton kernels", "", counts, ""]
    lines += ["A mutant is killed by the first test that fails, in order of cost.", ""]
    lines += ["| | test | kills |", "|---|---|---|"]
    lines += [f"| {number} | {_code(name)} | {kills[name]} |" for name, number in numbers.items()]
    for module in MODULES:
        lines += ["", f"## {module}", "", "| function | expression | mutated to | killed by, or equivalent because |"]
        lines += ["|---|---|---|---|"]
        lines += [_row(v, numbers) for v in verdicts if v.mutant.module == module]
    return "\n".join([*lines, ""])


def _commit() -> str:
    command = ["git", "-C", str(TABLE.parent), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _row(verdict: Verdict, numbers: dict[str, str]) -> str:
    mutant, end = verdict.mutant, "**survives**"
    if verdict.killer:
        end = numbers[verdict.killer] + (f" ({verdict.death})" if verdict.death else "")
    elif verdict.reason:
        end = f"equivalent: {verdict.reason}"
    return f"| {mutant.function} | {_code(mutant.before)} | {_code(mutant.after)} | {end} |"


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


if __name__ == "__main__":
    raise SystemExit(main())
