"""The simulator against a Hopper GPU: the same kernels both ways, a row for each kernel x switches or mutant.

    python benchmarks/tlxsim_hardware.py --simulate sim.json                # anywhere, no GPU
    python benchmarks/tlxsim_hardware.py --gpu sim.json --json out.json     # on the GPU's machine, without tlxsim
    python benchmarks/tlxsim_hardware.py --gpu sim.json --json consan.json --consan
    python benchmarks/tlxsim_hardware.py --table out.json consan.json --markdown table.md

The cases are the truth tables' kernels for sm_90 and the Hopper GEMM with its mutants. What the simulator calls a deadlock
is not run. Each case runs in a forked child of its own, since a wrong kernel hangs or breaks its context; children compile
in parallel. Before each launch shared memory is filled with NaN. With --consan, Triton's concurrency sanitizer is the judge.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"  # before anything imports triton
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "tlxsim"), str(TESTS / "mutation")]

with contextlib.suppress(ImportError):
    import _utlx_autoregister  # noqa: F401  a folder on PYTHONPATH does not run the plugin's .pth

import pool  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
from kernels import hazard as hazards  # noqa: E402
from mutation.generate import generate  # noqa: E402

from mutation import subjects  # noqa: E402

MODULES = ("handoff", "transfers", "products", "contents", "features", "patterns")
GEMM, HOPPER = "hopper_gemm", "sm_90"
LAUNCHES, SECONDS = 5, 10
SCHEDULES = ("eager", "late", "random:0", "random:1")


@dataclasses.dataclass(frozen=True)
class Case:
    """kernel and variant: which; prepare: (device) to a launch, and what starts it (warm: only compiles it)."""

    kernel: str
    variant: str
    prepare: Callable[[str], tuple[hazards.Launch, Callable[[bool], Any]]] = dataclasses.field(compare=False)

    @property
    def key(self) -> str:
        return f"{self.kernel}: {self.variant}"


def cases() -> list[Case]:
    """Every combination that a Hopper GPU can run, then the GEMM and its mutants."""
    found = []
    for name in MODULES:
        for hazard in importlib.import_module(f"kernels.{name}").HAZARDS:
            if HOPPER in hazard.archs and hazard.runs_on_gpu:
                found += [_of_hazard(hazard, switches) for switches in hazard.combinations()]
    found.append(_of_module("as it is", subjects.source(GEMM)))
    found += [_of_module(str(mutant), mutant.source) for mutant in generate(subjects.source(GEMM))]
    return found


def _of_hazard(hazard: hazards.Hazard, switches: dict) -> Case:
    options = {"num_warps": 4} | hazard.constants | switches

    def prepare(device: str) -> tuple:
        launch = hazard.launch(device, switches)

        def start(warm: bool) -> None:
            if warm:
                hazard.kernel.warmup(*launch.args, grid=hazard.grid, **options)
            else:
                hazard.kernel[hazard.grid](*launch.args, **options)

        return launch, start

    return Case(hazard.name, hazards.label(switches), prepare)


def _of_module(variant: str, source: str) -> Case:
    def prepare(device: str) -> tuple:
        module = subjects.load(source, GEMM)
        launch = module.launch(device)

        def start(warm: bool) -> None:
            if warm:
                module.gemm.warmup(*launch.args, grid=module.GRID, **module.OPTIONS)
            else:
                module.gemm[module.GRID](*launch.args, **module.OPTIONS)

        return launch, start

    return Case(GEMM, variant, prepare)


def simulate_case(case: Case) -> dict[str, Any]:
    """Codes of the errors, schedules without one, and whether the last schedule's output was right."""
    import tlxsim
    from tlxsim.frontend import FrontendError

    launch, start = case.prepare("cpu")
    try:
        with tlxsim.simulate(HOPPER, SCHEDULES, budgets=False, trace=False) as sim:
            start(False)
    except (FrontendError, tlxsim.Unsupported) as error:
        return dict(refused=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    loud = {name for finding in sim.report.errors for name in finding.schedules}
    return dict(
        codes=sorted({finding.code.name for finding in sim.report.errors}),
        silent=[name for name in SCHEDULES if name not in loud],
        right=launch.right(),
    )


def run_case(case: Case, consan: bool, starts: Callable[[str], None]) -> dict[str, Any]:
    """Compile and run a case LAUNCHES times on the GPU; what came of it."""
    with tempfile.TemporaryFile("w+") as told:
        os.dup2(told.fileno(), 2)
        if consan:
            triton.knobs.compilation.instrumentation_mode = "consan"
        starts("compile")
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
        try:
            launch, start = case.prepare("cuda")
            if not consan:
                hazards.fill_shared_memory("cuda")
            start(True)
        except Exception as error:
            told.seek(0)
            why = sorted(
                {line.split("error:")[1].strip()[:160] for line in told if "error:" in line and "pipeline" not in line}
            )
            return dict(outcome="compile error", detail=_first_line(error), told=why[:3])
        starts("run")
        fresh = launch.out.clone()
        try:
            for _ in range(LAUNCHES):
                launch.out.copy_(fresh)
                if not consan:
                    hazards.fill_shared_memory("cuda")
                start(False)
                torch.cuda.synchronize()
                if not launch.right():
                    return dict(outcome="wrong", detail=f"off by {launch.error():.3g}")
        except Exception as error:
            told.seek(0)
            lines = [line.strip() for line in told.read().splitlines() if "ssert" in line]
            return dict(outcome="launch error", detail=_first_line(error), told=sorted({_assertion(x) for x in lines})[:5])
        return dict(outcome="right")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error).strip() else ''}"


def _assertion(line: str) -> str:
    """The text of a device assert, without block and thread."""
    return line.split("Assertion")[-1].strip(" `'\"").split("` failed")[0][:200]


def run(jobs: list[Case], work: Callable[[Case, Callable], dict], workers: int, seconds: float) -> dict[str, dict]:
    """Each case in a child; a child without an end is a hang."""
    rows = {}
    for case, outcome in pool.run_all(jobs, work, workers, seconds):
        late = "hang" if outcome.test == "run" else "not compiled in time"
        failed = dict(outcome=late if "no end" in outcome.death else f"died: {outcome.death}")
        rows[case.key] = outcome.result or failed
    return {case.key: rows[case.key] for case in jobs}


def verdict_of(sim: dict[str, Any]) -> str:
    if "refused" in sim:
        return "refused"
    return "error" if sim.get("codes") else "clean"


def table(rows: dict[str, dict], judged: dict[str, dict]) -> str:
    """Markdown: confusion matrices, then a row for each case."""
    ran = {key: row for key, row in rows.items() if row.get("gpu")}
    lines = ["# The simulator against an H200", ""]
    lines += _matrix("on the GPU", {key: (verdict_of(row["sim"]), row["gpu"]["outcome"]) for key, row in ran.items()})
    if judged:
        pairs = {key: (verdict_of(rows[key]["sim"]), row["gpu"]["outcome"]) for key, row in judged.items() if row.get("gpu")}
        lines += ["", *_matrix("under the concurrency sanitizer", pairs)]
    lines += ["", "| kernel | switches or mutant | simulator | GPU | sanitizer |", "|---|---|---|---|---|"]
    for key, row in rows.items():
        kernel, _, variant = key.partition(": ")
        sim = row["sim"]
        said = sim.get("refused") or ", ".join(sim.get("codes", ())) or ("clean" if sim.get("right") else "clean, wrong")
        cells = [kernel, f"`{variant}`", said, _outcome(row), _outcome(judged.get(key, {}))]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _matrix(where: str, pairs: dict[str, tuple[str, str]]) -> list[str]:
    counts = collections.Counter(pairs.values())
    outcomes = sorted({outcome for _, outcome in counts})
    lines = [
        f"| simulator | {' | '.join(f'{outcome} {where}' for outcome in outcomes)} |",
        "|---" * (1 + len(outcomes)) + "|",
    ]
    for verdict in sorted({verdict for verdict, _ in counts}):
        lines.append(f"| {verdict} | {' | '.join(str(counts[verdict, outcome]) for outcome in outcomes)} |")
    return lines


def _outcome(row: dict[str, Any]) -> str:
    gpu = row.get("gpu")
    if not gpu:
        return "not run"
    told = "; ".join(gpu.get("told", ())) or gpu.get("detail", "")
    return gpu["outcome"] + (f": {told}" if told else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--simulate", metavar="JSON", type=Path, help="simulate all cases and write their verdicts")
    parser.add_argument("--gpu", metavar="JSON", type=Path, help="run what these verdicts do not call a deadlock")
    parser.add_argument("--json", metavar="JSON", type=Path, help="where --gpu writes verdicts and outcomes")
    parser.add_argument("--consan", action="store_true", help="compile with Triton's concurrency sanitizer")
    parser.add_argument("--table", metavar="JSON", type=Path, nargs="+", help="outcomes, and those of the sanitizer")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="where --table writes")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="children at a time")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for compiling, and for running, a case")
    parser.add_argument("--match", default="", help="cases whose name holds this")
    options = parser.parse_args()
    began = time.monotonic()
    chosen = [case for case in cases() if options.match in case.key]
    if options.simulate:
        importlib.import_module("tlxsim.session")  # once, before children are forked
        verdicts = run(chosen, lambda case, starts: simulate_case(case), options.workers, 6 * options.seconds)
        options.simulate.write_text(json.dumps(verdicts, indent=1))
        counts = collections.Counter(verdict_of(x) for x in verdicts.values())
        print(f"{len(chosen)} cases simulated, {dict(counts)}, {time.monotonic() - began:.0f} s")
    if options.gpu:
        verdicts = json.loads(options.gpu.read_text())
        runs = [case for case in chosen if "DEADLOCK" not in verdicts[case.key].get("codes", ())]
        work = lambda case, starts: run_case(case, options.consan, starts)  # noqa: E731
        outcomes = run(runs, work, options.workers, options.seconds)
        rows = {case.key: dict(sim=verdicts[case.key], gpu=outcomes.get(case.key)) for case in chosen}
        options.json.write_text(json.dumps(rows, indent=1))
        pairs = collections.Counter((verdict_of(row["sim"]), row["gpu"]["outcome"]) for row in rows.values() if row["gpu"])
        print(f"{len(runs)} of {len(chosen)} cases run, {time.monotonic() - began:.0f} s")
        for (verdict, outcome), number in sorted(pairs.items()):
            print(f"  simulator {verdict:8} GPU {outcome:16} {number}")
    if options.table:
        rows, judged = (json.loads(path.read_text()) for path in (*options.table, *options.table)[:2])
        text = table(rows, judged if len(options.table) > 1 else {})
        options.markdown.write_text(text) if options.markdown else print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
