"""`blockattn bench` and `blockattn accuracy`: arguments, progress, and where the results go."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
from collections.abc import Callable, Iterator

import torch

from .result import SHORT_DIRECTIONS, Run, fallen
from .workloads import W128, WORKLOADS, Workload, from_file, parse

CPU_WORKLOADS = ("W128", "W64", "short-34", "tiny-D64")
CPU_ROWS = 8192
WIDTH = 120  # of tables in a file or a pipe
BYTES_A_ROW_FACTOR = 30  # a batch with all providers' copies, outputs and gradients, over one tensor of it


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(workload.name for workload in WORKLOADS)
    parser.add_argument(
        "--workload", action="append", metavar="NAME|SPEC",
        help=f"a workload, or several with the option repeated: {names}; or a spec like B1152,H4,Hk4,D128,L2048,fill0.7,"
        "block64 (default: all; on a CPU some of them, made small)",
    )  # fmt: skip
    parser.add_argument("--lengths", type=pathlib.Path, metavar="FILE", help="sequence lengths, a whole number a line")
    parser.add_argument(
        "--direction", default=",".join(SHORT_DIRECTIONS.values()), metavar="LIST", help="of fwd, bwd, fwd+bwd"
    )
    parser.add_argument(
        "--from", type=pathlib.Path, dest="source", metavar="FILE", help="measure nothing: print and report an earlier JSON"
    )
    parser.add_argument("--report", type=pathlib.Path, metavar="DIR", help="write report.html and charts there")
    parser.add_argument("--base", type=pathlib.Path, metavar="FILE", help="an earlier JSON: exit 1 where our share fell")
    parser.add_argument("--tolerance", type=float, default=0.03, help="by which a share may fall (default 0.03)")
    _add_shared(parser)


def add_accuracy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", action="append", metavar="NAME|SPEC", help="default: jagged batches of D = 64 and 128")
    parser.add_argument("--seeds", type=int, default=3, help="random batches (default 3)")
    _add_shared(parser)


def bench(arguments: argparse.Namespace) -> int:
    """Measure, print, and write what was asked for; 1 when a share fell below the base's."""
    console = _console()
    base = _input(Run.read, arguments.base) if arguments.base else None
    run = _read_back(arguments, console) if arguments.source else _measured(arguments, console)
    if arguments.json:
        run.write(arguments.json)
    if arguments.report:
        from .report import write_report

        for path in write_report(run, arguments.report):
            console.print(f"wrote {path}", highlight=False)
    lost = fallen(run, base, arguments.tolerance) if base else []
    for line in lost:
        console.print(f"fell: {line}", style="red", highlight=False, soft_wrap=True)
    if base and not lost:
        console.print(f"no share of ours fell by more than {arguments.tolerance:g}", highlight=False)
    return 1 if lost else 0


def _measured(arguments: argparse.Namespace, console) -> Run:
    """Measure each workload and print its table at once."""
    from . import machine, measure, providers, terminal

    device = _device()
    chosen = _input(providers.chosen, arguments.provider)
    directions = _input(_directions, arguments.direction)
    workloads = _input(_workloads, arguments, device)
    described = machine.describe(device, arguments.commit)
    limit, limit_values = None, None
    if device.type == "cuda":
        from .limit import Limit

        limit = Limit()
        limit_values = limit.values() | {"datasheet_tbs": machine.datasheet_tbs(device)}
    console.print(_headline(described, limit_values), highlight=False)
    rows = []
    with _progress(console, len(workloads) * len(chosen) * (1 + measure.ROUNDS)) as advance:
        for workload in workloads:
            found = measure.measure(workload, chosen, directions, limit, device, advance)
            rows += found
            for part in terminal.bench_tables(found):
                console.print(part, highlight=False)
    return Run(described, limit_values, {provider.name: provider.about for provider in chosen}, tuple(rows))


def _read_back(arguments: argparse.Namespace, console) -> Run:
    """The run in a JSON file, printed."""
    from . import terminal

    run = _input(Run.read, arguments.source)
    console.print(_headline(run.machine, run.limit), highlight=False)
    for part in terminal.bench_tables(run.rows):
        console.print(part, highlight=False)
    return run


def accuracy(arguments: argparse.Namespace) -> int:
    """Compare with fp64, print, and write what was asked for."""
    from . import accuracy as errors
    from . import machine, providers, terminal

    console, device = _console(), _device()
    chosen = _input(providers.chosen, arguments.provider)
    workloads = [_input(parse, text) for text in arguments.workload] if arguments.workload else errors.WORKLOADS
    described = machine.describe(device, arguments.commit)
    console.print(_headline(described, None), highlight=False)
    found = []
    with _progress(console, len(workloads) * len(chosen) * arguments.seeds) as advance:
        for workload in workloads:
            found += errors.accuracy(workload, chosen, arguments.seeds, device, advance)
    for part in terminal.accuracy_tables(found):
        console.print(part, highlight=False)
    if arguments.json:
        errors.write(arguments.json, described, arguments.seeds, found)
    return 0


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", action="append", metavar="NAME", help="repeatable (default: all)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    parser.add_argument("--commit", help="of the sources, for the JSON (default: the checkout's)")


def _workloads(arguments: argparse.Namespace, device: torch.device) -> list[Workload]:
    names = arguments.workload or ([] if arguments.lengths else [w.name for w in WORKLOADS])
    if not arguments.workload and device.type == "cpu" and names:
        names = CPU_WORKLOADS
    found = [parse(name) for name in names]
    if arguments.lengths:
        shape = found.pop() if found else W128
        found.append(from_file(arguments.lengths, shape))
    return [workload.scaled(_most_rows(workload, device)) for workload in found]


def _most_rows(workload: Workload, device: torch.device) -> int:
    """Rows that this machine has room for, and time on a CPU."""
    if device.type == "cpu":
        return CPU_ROWS
    row_bytes = 2 * max(workload.q_heads, workload.kv_heads) * workload.head_dim
    return torch.cuda.mem_get_info(device)[0] // (row_bytes * BYTES_A_ROW_FACTOR)


def _directions(text: str) -> tuple[str, ...]:
    asked = [part.strip() for part in text.split(",")]
    for part in asked:
        if part not in SHORT_DIRECTIONS.values():
            raise ValueError(f"direction must be of {', '.join(SHORT_DIRECTIONS.values())}, got {part!r}")
    return tuple(direction for direction, short in SHORT_DIRECTIONS.items() if short in asked)


def _headline(machine: dict[str, str], limit: dict | None) -> str:
    lines = [", ".join(value if name == "device" else f"{name} {value}" for name, value in machine.items())]
    if limit is None and machine["device"].startswith("CPU"):
        lines.append("No GPU: small sizes on the CPU. These figures say nothing about any GPU; no limit is measured.")
    if limit is not None:
        sheet = f"; the datasheet says {limit['datasheet_tbs']} TB/s" if limit["datasheet_tbs"] else ""
        lines.append(f"streaming limit: forward {limit['forward']:.3f}, backward {limit['backward']:.3f} TB/s{sheet}")
        if not limit["trusted"]:
            lines.append("UNTRUSTED: the limit is below what this GPU reaches undisturbed; something else is using it.")
    return "\n".join(lines)


def _input(function: Callable, *arguments):
    """Wrong input ends the command with its message."""
    try:
        return function(*arguments)
    except (ValueError, OSError) as error:
        raise SystemExit(f"blockattn: {error}") from error


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _console():
    try:
        from rich.console import Console
    except ImportError as error:
        raise SystemExit("blockattn bench needs rich and matplotlib: pip install 'blockattn[bench]'") from error
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


@contextlib.contextmanager
def _progress(console, steps: int) -> Iterator[Callable[[str], None]]:
    """A progress bar of so many steps; `advance(text)` takes one and says what it is."""
    from rich.progress import Progress

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("starting", total=steps)
        yield lambda text: progress.update(task, advance=1, description=text)
