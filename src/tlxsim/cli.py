"""`tlxsim run script.py`: a script's launches simulated, and what they find printed; also replay, codes and info."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import pathlib
import runpy
import sys
from typing import Any

from .findings import Code, Report, Severity, Unsupported

COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
FAULTS, REFUSED = 1, 2  # exit codes


def main(arguments: list[str] | None = None) -> None:
    """The command; exits with 0, with 1 where errors were found, with 2 where nothing could be said."""
    values = _parser().parse_args(arguments)
    sys.exit(values.run(values))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tlxsim", description="Run and check Triton and TLX kernels on a CPU.")
    commands = parser.add_subparsers(required=True, metavar="run|replay|codes|info")
    run = commands.add_parser("run", help="run a script and simulate every kernel that it launches")
    run.add_argument("--schedules", type=int, default=8, metavar="N", help="schedules of each launch (default 8)")
    run.set_defaults(run=_run, schedule=None)
    replay = commands.add_parser("replay", help="the same under one schedule, that of a finding")
    which = replay.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, metavar="N", help="the random schedule of this number")
    which.add_argument("--schedule", choices=("eager", "late"), help="or one of the settled ones")
    replay.set_defaults(run=_run)
    for command in (run, replay):
        command.add_argument("--arch", default="sm_90", help="the GPU: sm_90, sm_100, ... (default sm_90)")
        command.add_argument("--level", default="ttir", choices=("ttir", "fenced"), help="as written, or as compiled")
        command.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the findings there")
        command.add_argument(
            "--trace", type=pathlib.Path, metavar="FILE", help="write the last launch's trace, for Perfetto"
        )
        command.add_argument("--picture", type=pathlib.Path, metavar="FILE", help="draw it: .png, .svg or .html")
        command.add_argument("script", type=pathlib.Path)
        command.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    commands.add_parser("codes", help="what each code means, and what to do").set_defaults(run=_codes)
    commands.add_parser("info", help="what is installed, and what works").set_defaults(run=_info)
    return parser


def _run(values: argparse.Namespace) -> int:
    if not values.script.is_file():
        return _refused(f"script must be a file, got {values.script}")
    missing = [name for name in ("numpy", "ml_dtypes", "threadpoolctl", "triton", "torch") if not _installed(name)]
    if missing:
        return _refused(f"{', '.join(missing)} must be installed: pip install 'blockattn[sim]'")
    os.environ["TRITON_INTERPRET"] = "0"
    from .fake_cuda import cuda_on_cpu
    from .frontend import FrontendError
    from .session import Options, simulate
    from .stack import shared_limit

    schedules: Any = getattr(values, "schedules", None)
    if schedules is None:
        schedules = [values.schedule or f"random:{values.seed}"]
    try:
        Options(values.arch, schedules, values.level)
        shared_limit(values.arch)
    except ValueError as error:
        return _refused(str(error))
    sys.argv = [str(values.script), *values.arguments]
    sys.path.insert(0, str(values.script.parent.resolve()))
    try:
        with cuda_on_cpu(values.arch), simulate(values.arch, schedules, level=values.level) as session:
            runpy.run_path(str(values.script), run_name="__main__")
    except (Unsupported, FrontendError) as error:
        return _refused(str(error))
    except SystemExit as end:
        if end.code not in (None, 0):
            return _refused(f"the script has ended with {end.code}")
    report = session.report
    show(report)
    if values.json:
        values.json.write_text(report.to_json() + "\n")
    if report.launches:
        for path, write in ((values.trace, session.trace), (values.picture, session.picture)):
            if path:
                write(str(path))
    return FAULTS if report.errors else 0


def show(report: Report) -> None:
    """The report in the terminal, errors first."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True)
    order = list(Severity)
    for finding in sorted(report.findings, key=lambda finding: order.index(finding.severity)):
        first, *rest = finding.text().splitlines()
        console.print(Text(first, COLOURS[finding.severity]))
        console.print(Text("\n".join(rest) + "\n"))
    launches = [f"{one['kernel']} {tuple(one['grid'])}" for one in report.launches]
    schedules = report.launches[-1]["schedules"] if report.launches else []
    what = ", ".join(launches) if launches else "no kernel: the script has launched none"
    others = len(report.findings) - len(report.errors)
    counted = f"{len(report.errors)} errors, {others} warnings and notes, schedules {', '.join(schedules)}"
    console.print(Text(f"simulated {what}; {counted}", "bold red" if report.errors else "bold green"))
    seeds = [name for finding in report.errors for name in finding.schedules if name.startswith("random:")]
    if seeds:
        console.print(f"to see one again: tlxsim replay --seed {seeds[0][7:]} script.py")


def _codes(values: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    table = Table("code", "finding", "what to do", box=None)
    for code in Code:
        table.add_row(code.number, code.title, code.advice)
    Console().print(table)
    return 0


def _info(values: argparse.Namespace) -> int:
    for name in ("triton", "triton-utlx", "torch", "numpy", "ml_dtypes"):
        print(f"{name:12} {_version(name)}")
    if not _installed("triton"):
        print("nothing can be simulated without Triton: pip install 'blockattn[sim]'")
        return REFUSED
    from . import stack

    adapter = stack.current()
    print(f"stack        {adapter.name}: plain Triton kernels" + (" and TLX kernels" if adapter.name != "triton" else ""))
    if adapter.name == "triton":
        print("for TLX kernels: pip install triton-utlx")
    return 0


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _refused(message: str) -> int:
    print(f"tlxsim: {message}", file=sys.stderr)
    return REFUSED
