"""Simulate every mutant of the complete TLX kernels: each must be reported, or stand in `equivalents.py` with its proof.

    python tests/tlxsim/mutation/run.py [--only KERNEL] [--match TEXT] [--schedules N] [--clean SEEDS]

A full run writes `table.md`. Before the mutants, the kernels themselves run under SEEDS schedules (50), without an error.
The exit status is 1 when a mutant is missed, when an equivalent one is reported or does not exist, or a kernel is not clean.
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "0"  # before anything imports triton
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "mutation")]

import kernels.hopper_gemm  # noqa: E402, F401  children are forked with Triton and the simulator loaded
import pool  # noqa: E402
from rich.console import Console  # noqa: E402

import tlxsim.session  # noqa: E402
from mutation import equivalents, subjects  # noqa: E402
from mutation.generate import Mutant, generate  # noqa: E402

WORKERS, SECONDS, SEEDS = 2, 60, 50
TABLE = HERE / "table.md"
Job = tuple[str, Mutant | None]


def main() -> int:
    options = _options()
    console, began = Console(), time.monotonic()
    kernels = [options.only] if options.only else list(subjects.ARCHS)
    jobs: list[Job] = [(kernel, mutant) for kernel in kernels for mutant in generate(subjects.source(kernel))]
    jobs = [job for job in jobs if options.match in str(job[1])]
    faults = _clean(kernels, options.clean, console)
    outcomes = {}
    for job, outcome in pool.run_all(jobs, lambda job, starts: _simulate(job, options.schedules), WORKERS, SECONDS):
        outcomes[job] = outcome.result or subjects.Outcome(refused=f"died: {outcome.death}")
        fault = _fault(job, outcomes[job])
        if fault:
            faults.append(fault)
            console.print(fault, style="red", highlight=False, markup=False, soft_wrap=True)
    if not (options.only or options.match):
        TABLE.write_text(_table({job: outcomes[job] for job in jobs}, options))
        faults += [f"equivalents.py names no mutant: {key}" for key in sorted(_named() - set(map(_key, jobs)))]
    counts = collections.Counter(_kind(job, outcome) for job, outcome in outcomes.items())
    console.print(f"{len(outcomes)} mutants: {_sum(counts)}, {time.monotonic() - began:.0f} s")
    for fault in faults:
        console.print(fault, style="red", highlight=False, markup=False, soft_wrap=True)
    return 1 if faults else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", metavar="KERNEL", choices=list(subjects.ARCHS), help="one kernel")
    parser.add_argument("--match", metavar="TEXT", default="", help="mutants whose text holds TEXT")
    parser.add_argument("--schedules", metavar="N", type=int, default=6, help="schedules for each mutant")
    parser.add_argument("--clean", metavar="SEEDS", type=int, default=SEEDS, help="schedules for the kernels themselves")
    return parser.parse_args()


def _simulate(job: Job, schedules: int) -> subjects.Outcome:
    """At level ttir, and then at "fenced" what is equivalent there too."""
    kernel, mutant = job
    text = mutant.source if mutant else subjects.source(kernel)
    known = equivalents.find(*_key(job))
    try:
        outcome = subjects.Outcome()
        for level in ("ttir", "fenced") if known and known.level == "both" else ("ttir",):
            if not outcome.text:
                outcome = subjects.simulate(subjects.load(text, kernel), subjects.ARCHS[kernel], schedules, level)
        return outcome
    except Exception as error:
        return subjects.Outcome(refused=f"failed: {type(error).__name__}: {str(error)[:300]}")


def _clean(kernels: list[str], seeds: int, console: Console) -> list[str]:
    """The kernels as they are: no error in any schedule, and the right output."""
    faults = []
    if seeds:
        jobs: list[Job] = [(kernel, None) for kernel in kernels]
        for (kernel, _), outcome in pool.run_all(jobs, lambda job, starts: _simulate(job, seeds), WORKERS, 10 * SECONDS):
            result = outcome.result
            if result is None or result.kind != "missed":
                faults.append(f"{kernel} is not clean: {outcome.death} {result}")
            else:
                console.print(f"{kernel}: no error under {seeds} schedules")
    return faults


def _kind(job: Job, outcome: subjects.Outcome) -> str:
    known = equivalents.find(*_key(job))
    return "equivalent" if known and outcome.kind == "missed" else outcome.kind


def _fault(job: Job, outcome: subjects.Outcome) -> str:
    """What is wrong with an outcome, if anything: a mutant that the frontend refuses is no run of a wrong kernel."""
    known = equivalents.find(*_key(job))
    if known and outcome.kind != "missed":
        return f"not equivalent, {outcome.kind} {' '.join(outcome.codes)}: {job[0]}: {job[1]}"
    if outcome.kind in ("missed", "wrong output") and not known:
        return f"{outcome.kind}: {job[0]}: {job[1]}"
    if outcome.refused.startswith(("died", "failed")):
        return f"{outcome.refused}: {job[0]}: {job[1]}"
    return ""


def _key(job: Job) -> tuple[str, str]:
    return job[0], str(job[1])


def _named() -> set[tuple[str, str]]:
    return {
        (kernel, text)
        for equivalence in equivalents.EQUIVALENT
        for kernel, texts in equivalence.mutants.items()
        for text in texts
    }


def _sum(counts: collections.Counter) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in counts.most_common())


def _table(outcomes: dict[Job, subjects.Outcome], options: argparse.Namespace) -> str:
    """A row for each kernel x mutant."""
    kinds = collections.Counter(_kind(job, outcome) for job, outcome in outcomes.items())
    commit = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude=*"]
    at = subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip()
    lines = ["# Mutants of the TLX kernels in the simulator", ""]
    lines += [f"{len(outcomes)} mutants: {_sum(kinds)}. Level ttir, {options.schedules} schedules each, commit {at}."]
    lines += ["Written by `python tests/tlxsim/mutation/run.py`; the kernels themselves ran without an error under "
              f"{options.clean} schedules.", ""]  # fmt: skip
    lines += ["`n/m` after a code: in n of m schedules something was reported; else in all of them."]
    for kernel in subjects.ARCHS:
        lines += ["", f"## {kernel} ({subjects.ARCHS[kernel]})", "", "| function | operator | before | after | verdict |"]
        lines += ["|---|---|---|---|---|"]
        lines += [_row(job, outcome, options.schedules) for job, outcome in outcomes.items() if job[0] == kernel]
    return "\n".join([*lines, ""])


def _row(job: Job, outcome: subjects.Outcome, schedules: int) -> str:
    mutant, known = job[1], equivalents.find(*_key(job))
    verdict = f"**{outcome.kind}**"
    if outcome.codes or outcome.warnings:
        verdict = ", ".join(f"{tlxsim.Code[name].number} {tlxsim.Code[name].title}" for name in outcome.codes)
        verdict = verdict or "warning: " + ", ".join(tlxsim.Code[name].title for name in outcome.warnings)
        if outcome.silent:
            verdict += f" ({schedules - len(outcome.silent)}/{schedules})"
    elif outcome.refused:
        verdict = outcome.refused
    elif known:
        verdict = f"equivalent ({known.level}): {known.proof}"
    cells = [mutant.function, mutant.operator, _code(mutant.before), _code(mutant.after), verdict]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _code(text: str) -> str:
    return f"`{text}`"


if __name__ == "__main__":
    raise SystemExit(main())
