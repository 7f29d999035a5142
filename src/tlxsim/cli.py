"""`tlxsim run script.py`: a script's launches simulated, and what they find printed; also replay, codes and info.

The report is printed however the script ends. Exit codes: 0, 1 where errors were found, 2 where the run is incomplete: a
kernel is refused by the simulator or the compiler, the script fails by itself, or the arguments are wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import os
import pathlib
import runpy
import shlex
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from .findings import Code, Report, Severity, Unsupported
from .picture import SUFFIXES

COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
FAULTS, INCOMPLETE = 1, 2  # exit codes
PATIENCE = 5.0  # seconds before a launch is told to be under way
REQUIRED = ("numpy", "ml_dtypes", "threadpoolctl", "rich", "triton", "torch")
INSTALL = "pip install 'blockattn[sim]'"


def main(arguments: list[str] | None = None) -> None:
    """The command; exits with one of the codes above."""
    values = _parser().parse_args(arguments)
    sys.exit(values.run(values))


def obstacle(arch: str, schedules: Any, level: str) -> str | None:
    """Why nothing can be simulated, in a line: what is not installed, or the option that is wrong."""
    missing = [name for name in REQUIRED if not _installed(name)]
    if missing:
        return f"{', '.join(missing)} must be installed: {INSTALL}"
    from .session import Options
    from .stack import shared_limit

    try:
        Options(arch, schedules, level)
        shared_limit(arch)
    except ValueError as error:
        return str(error)
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tlxsim", description="Run and check Triton and TLX kernels on a CPU.")
    commands = parser.add_subparsers(required=True, metavar="run|replay|codes|info")
    run = commands.add_parser("run", help="run a script and simulate every kernel that it launches")
    run.add_argument("--schedules", type=int, default=8, metavar="N", help="schedules of each launch (default 8)")
    run.set_defaults(run=_run, schedule=None, seed=None)
    replay = commands.add_parser("replay", help="the same under one schedule, that of a finding")
    which = replay.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, metavar="N", help="the random schedule of this number")
    which.add_argument("--schedule", choices=("eager", "late"), help="or one of the settled ones")
    replay.set_defaults(run=_run, schedules=None)
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
    schedules: Any = values.schedules if values.schedules is not None else [values.schedule or f"random:{values.seed}"]
    wrong = _wrong_files(values) or obstacle(values.arch, schedules, values.level)
    if wrong:
        return _incomplete(wrong)
    os.environ["TRITON_INTERPRET"] = "0"
    from .fake_cuda import cuda_on_cpu
    from .session import Options, Session
    from .stack import hooked

    session = Session(Options(values.arch, schedules, values.level))
    with cuda_on_cpu(values.arch), hooked(_watched(session.launch), values.arch):
        failure = _execute(values)
    again = ["--arch", values.arch, "--level", values.level, str(values.script), *values.arguments]
    show(session.report, shlex.join(again) if values.schedules is not None else None)
    unwritten = _write(values, session)
    if failure:
        _incomplete(failure)
    if unwritten:
        _incomplete(unwritten)
    return FAULTS if session.report.errors else INCOMPLETE if failure or unwritten else 0


def _wrong_files(values: argparse.Namespace) -> str | None:
    """What is wrong with the files that are named, before a long run and not after it."""
    if not values.script.is_file():
        return f"script must be a file, got {values.script}"
    for name in ("json", "trace", "picture"):
        path = getattr(values, name)
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            return f"--{name} must be a file in a directory that exists, got {path}"
    if values.picture is not None:
        suffix = values.picture.suffix.lower()
        if suffix not in SUFFIXES:
            return f"--picture must end in {', '.join(SUFFIXES)}, got {values.picture}"
        if suffix != ".html" and not _installed("matplotlib"):
            return f"matplotlib must be installed to draw {suffix}: {INSTALL}"
    return None


def _execute(values: argparse.Namespace) -> str | None:
    """Run the script as Python would; why it has not come to its end."""
    from .frontend import FrontendError

    script = str(values.script)
    sys.argv = [script, *values.arguments]
    sys.path.insert(0, str(values.script.parent.resolve()))
    try:
        runpy.run_path(script, run_name="__main__")
    except (Unsupported, FrontendError) as error:
        return str(error)
    except SystemExit as end:
        return None if end.code in (None, 0) else f"the script has ended with {end.code}"
    except Exception as error:
        step = error.__traceback__
        while step is not None and step.tb_frame.f_code.co_filename != script:
            step = step.tb_next
        told = traceback.format_exception(type(error), error.with_traceback(step), step)
        return "the script has failed\n" + "".join(told).rstrip()
    return None


def _watched(launch: Callable) -> Callable:
    """The launch, with a line about it where it takes long."""
    from rich.console import Console

    console, count = Console(stderr=True), 0

    def watched(kernel: Any, *args: Any) -> Any:
        nonlocal count
        count += 1
        with _after(PATIENCE, lambda: console.print(f"launch {count}, of {kernel.__name__}, is being simulated ...")):
            return launch(kernel, *args)

    return watched


@contextlib.contextmanager
def _after(seconds: float, call: Callable[[], None]) -> Iterator[None]:
    """Call it if the block takes longer."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _write(values: argparse.Namespace, session: Any) -> str | None:
    """The files that are asked for; what could not be written."""
    if values.json:
        values.json.write_text(session.report.to_json() + "\n", encoding="utf-8")
    if session.last_trace is None:
        return "no launch has been traced" if values.trace or values.picture else None
    if values.trace:
        session.trace(str(values.trace))
    if values.picture:
        session.picture(str(values.picture))
    return None


def show(report: Report, again: str | None = None) -> None:
    """The report in the terminal, errors first; `again` are the arguments with which `tlxsim replay` repeats a schedule."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True)
    order = list(Severity)
    for finding in sorted(report.findings, key=lambda finding: order.index(finding.severity)):
        first, *rest = finding.text().splitlines()
        console.print(Text(first, COLOURS[finding.severity]))
        console.print(Text("\n".join(rest) + "\n"))
    launches = [f"{one['kernel']} {tuple(one['grid'])}" for one in report.launches]
    what = ", ".join(launches) if launches else "no kernel"
    others = len(report.findings) - len(report.errors)
    counted = f"{len(report.errors)} errors, {others} warnings and notes"
    if report.launches:
        counted += f", schedules {', '.join(report.launches[-1]['schedules'])}"
    console.print(Text(f"simulated {what}; {counted}", "bold red" if report.errors else "bold green"))
    if again and report.errors:
        kind, _, seed = report.errors[0].schedules[-1].partition(":")
        which = f"--seed {seed}" if seed else f"--schedule {kind}"
        console.print(Text(f"to see it again: tlxsim replay {which} {again}"))


def _codes(values: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    table = Table("code", "finding", "what to do", box=None)
    for code in sorted(Code, key=lambda code: code.number):
        table.add_row(code.number, code.title, code.advice)
    Console().print(table)
    return 0


def _info(values: argparse.Namespace) -> int:
    for name in ("triton", "triton-utlx", *REQUIRED[:4], "torch", "matplotlib"):
        print(f"{name:14} {_version(name)}")
    missing = [name for name in REQUIRED if not _installed(name)]
    if missing:
        print(f"{'works':14} nothing without {', '.join(missing)}: {INSTALL}")
        return INCOMPLETE
    from . import stack

    plain = stack.current().name == "triton"
    print(f"{'works':14} plain Triton kernels{'' if plain else ', TLX kernels'}, at the levels ttir and fenced")
    if plain:
        print(f"{'install next':14} triton-utlx, for TLX kernels: pip install triton-utlx")
    if not _installed("matplotlib"):
        print(f"{'install next':14} matplotlib, for pictures as PNG and SVG: {INSTALL}")
    return 0


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _incomplete(message: str) -> int:
    print(f"tlxsim: {message}", file=sys.stderr)
    return INCOMPLETE
