"""`blockattn bench` and `blockattn accuracy`: arguments, progress, and where the results go."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import pathlib
from collections.abc import Callable, Iterator

import torch

from .result import SHORT_DIRECTIONS, Run, check_base, compared, fallen
from .workloads import W128, WORKLOADS, Workload, from_file, parse

CPU_WORKLOADS = ("W128", "W64", "short-34", "tiny-D64")
CPU_ROWS = 8192
PROVIDER_NAMES = {
    "attention": "blockattn-triton, blockattn-torch, blockattn-reference, flash2, varlen_attn, flash-attn, sdpa-flash, "
    "sdpa-efficient, sdpa-cudnn, sdpa-math, flex, flash4, xformers, mslk",
    "rotary": "blockattn-fused, blockattn-compiled, blockattn-eager, flash2-compiled",
    "layer": "blockattn-layer, blockattn-compiled-layer, flash2-compiled-layer",
}
AFTER_LOSS = "It broke the GPU's context, and the run ends here; measure the rest without that provider."
WIDTH = 120  # of tables in a file or a pipe
BYTES_A_ROW_FACTOR = 45  # a batch with all providers' copies, outputs and gradients, over one tensor of it


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(workload.name for workload in WORKLOADS)
    parser.add_argument(
        "--workload", action="append", metavar="NAME|SPEC",
        help=f"a workload, or several with the option repeated: {names}; or a spec like B1152,H4,Hk4,D128,L2048,fill0.7,"
        "block64 (also long65536, graph; default: all; on a CPU some of them, made small)",
    )  # fmt: skip
    parser.add_argument(
        "--lengths",
        type=pathlib.Path,
        metavar="FILE",
        help="sequence lengths, a whole number a line; heads, D and block are those of the last --workload, else of W128",
    )
    parser.add_argument("--direction", metavar="LIST", help="of fwd, bwd, fwd+bwd (default: all)")
    parser.add_argument("--rotary", action="store_true", help="compare rotary embedding of q, k and v too, fused and around")
    parser.add_argument("--layer", action="store_true", help="compare a layer in training too: rotary, both projections")
    parser.add_argument(
        "--from", type=pathlib.Path, dest="source", metavar="FILE", help="measure nothing: print and report an earlier JSON"
    )
    parser.add_argument("--report", type=pathlib.Path, metavar="DIR", help="write report.html and charts there")
    parser.add_argument("--base", type=pathlib.Path, metavar="FILE", help="an earlier JSON: exit 1 where our share fell")
    parser.add_argument("--tolerance", type=float, default=0.03, help="by which a share may fall (default 0.03)")
    of_flags = (f"with --{operation} {names}" for operation, names in list(PROVIDER_NAMES.items())[1:])
    _add_shared(parser, "; ".join([PROVIDER_NAMES["attention"], *of_flags]))


def add_accuracy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", action="append", metavar="NAME|SPEC", help="default: jagged batches of D = 64 and 128")
    parser.add_argument("--seeds", type=int, default=3, help="random batches (default 3)")
    _add_shared(parser, PROVIDER_NAMES["attention"])


def bench(arguments: argparse.Namespace) -> int:
    """Measure, print, and write what was asked for; 1 when a share fell below the base's."""
    console = _console("bench")
    _input(_check_outputs, arguments)
    base = _input(Run.read, arguments.base) if arguments.base else None
    run = _read_back(arguments, console) if arguments.source else _measured(arguments, console, base)
    if arguments.json:
        _print(console, f"wrote {arguments.json}")
    if arguments.report:
        from .report import write_report

        for path in write_report(run, arguments.report):
            _print(console, f"wrote {path}")
    if base is None:
        return 0
    pairs = _input(compared, run, base)
    lost = fallen(pairs, arguments.tolerance)
    for line in lost:
        _print(console, f"fell: {line}", style="red")
    _print(console, f"{len(lost)} of {len(pairs)} shares of ours fell by more than {arguments.tolerance:g}")
    return 1 if lost else 0


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Wrong output paths and contradictions are said before anything is measured."""
    if not 0 <= arguments.tolerance < 1:
        raise ValueError(f"--tolerance must be at least 0 and below 1, got {arguments.tolerance:g}")
    measured = ("workload", "lengths", "provider", "direction", "rotary", "layer", "commit")
    given = [f"--{name}" for name in measured if getattr(arguments, name) not in (None, False)]
    if arguments.source and given:
        raise ValueError(f"--from measures nothing: it takes no {', '.join(given)}")
    if arguments.json:
        _check_file(arguments.json)
    if arguments.report:
        if importlib.util.find_spec("matplotlib") is None:
            raise ValueError("--report needs matplotlib: pip install 'blockattn[bench]'")
        arguments.report.mkdir(parents=True, exist_ok=True)


def _check_file(path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a"):
        pass


def _measured(arguments: argparse.Namespace, console, base: Run | None) -> Run:
    """Measure each workload, print its table and write what there is so far; Ctrl-C ends it with that.

    A base that this machine's runs cannot be compared with is refused first.
    """
    from . import machine, measure, providers, terminal

    device = _device()
    operations = ("attention", *["rotary"] * arguments.rotary, *["layer"] * arguments.layer)
    chosen = _input(providers.chosen, arguments.provider, operations)
    directions = _input(_directions, arguments.direction)
    workloads = _input(_workloads, arguments, device, console)
    described = machine.describe(device, arguments.commit)
    if base is not None:
        _input(check_base, described["device"], base)
    limit, limit_values = None, None
    if device.type == "cuda":
        from .limit import Limit

        limit = Limit()
        limit_values = limit.values() | {"datasheet_tbs": machine.datasheet_tbs(device)}
    _print(console, _headline(described, limit_values))
    run = Run(described, limit_values, {}, ())
    parts = [(workload, operation, some) for operation, some in chosen.items() for workload in workloads]
    with _progress(console, sum(len(some) for *_, some in parts) * (1 + measure.ROUNDS)) as advance:
        for workload, operation, some in parts:
            try:
                found = measure.measure(workload, some, directions, limit, device, advance, operation)
            except measure.LostDevice as error:
                raise SystemExit(f"blockattn: {workload.name}: {error}. {AFTER_LOSS}") from error
            abouts = {provider.name: provider.about for provider in some}
            run = dataclasses.replace(run, rows=(*run.rows, *found), providers=run.providers | abouts)
            if arguments.json:
                run.write(arguments.json)
            for part in terminal.bench_tables(found, console.width):
                _print(console, part)
    return run


def _read_back(arguments: argparse.Namespace, console) -> Run:
    """The run in a JSON file, printed, and written again where that was asked for."""
    from . import terminal

    run = _input(Run.read, arguments.source)
    _print(console, _headline(run.machine, run.limit))
    for part in terminal.bench_tables(run.rows, console.width):
        _print(console, part)
    if arguments.json:
        run.write(arguments.json)
    return run


def accuracy(arguments: argparse.Namespace) -> int:
    """Compare with fp64, print, and write what was asked for."""
    from . import accuracy as errors
    from . import machine, providers, terminal

    console, device = _console("accuracy"), _device()
    if arguments.seeds < 1:
        raise SystemExit(f"blockattn: --seeds must be at least 1, got {arguments.seeds}")
    if arguments.json:
        _input(_check_file, arguments.json)
    chosen = _input(providers.chosen, arguments.provider)["attention"]
    workloads = [_input(parse, text) for text in arguments.workload] if arguments.workload else errors.WORKLOADS
    workloads = [_fitted(workload, device, console) for workload in workloads]
    described = machine.describe(device, arguments.commit)
    _print(console, _headline(described, None))
    found = []
    with _progress(console, len(workloads) * len(chosen) * arguments.seeds) as advance:
        for workload in workloads:
            found += errors.accuracy(workload, chosen, arguments.seeds, device, advance)
    for part in terminal.accuracy_tables(found):
        _print(console, part)
    if arguments.json:
        errors.write(arguments.json, described, arguments.seeds, found)
        _print(console, f"wrote {arguments.json}")
    return 0


def _add_shared(parser: argparse.ArgumentParser, providers: str) -> None:
    parser.add_argument("--provider", action="append", metavar="NAME", help=f"repeatable (default: all): {providers}")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    parser.add_argument("--commit", help="of the sources, for the JSON (default: the checkout's)")


def _workloads(arguments: argparse.Namespace, device: torch.device, console) -> list[Workload]:
    names = arguments.workload or ([] if arguments.lengths else [w.name for w in WORKLOADS])
    if not arguments.workload and device.type == "cpu" and names:
        names = CPU_WORKLOADS
    found = [parse(name) for name in dict.fromkeys(names)]
    if arguments.lengths:
        shape = found.pop() if found else W128
        found.append(from_file(arguments.lengths, shape))
    return [_fitted(workload, device, console) for workload in found]


def _fitted(workload: Workload, device: torch.device, console) -> Workload:
    """The workload, made smaller where this machine has no room or time for it, which is said."""
    fitted = workload.scaled(_most_rows(workload, device))
    if fitted is not workload:
        _print(console, f"{workload.name} is made smaller to fit this machine: {fitted.spec}")
    return fitted


def _most_rows(workload: Workload, device: torch.device) -> int:
    """Rows that this machine has room for, and time on a CPU."""
    if device.type == "cpu":
        return CPU_ROWS
    row_bytes = 2 * max(workload.q_heads, workload.kv_heads) * workload.head_dim
    return torch.cuda.mem_get_info(device)[0] // (row_bytes * BYTES_A_ROW_FACTOR)


def _directions(text: str | None) -> tuple[str, ...]:
    if text is None:
        return tuple(SHORT_DIRECTIONS)
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


def _print(console, part, **options) -> None:
    """A table or a text as it is: neither highlighted nor read as markup, and no line broken."""
    if isinstance(part, str):
        options |= dict(markup=False, soft_wrap=True)
    console.print(part, highlight=False, **options)


def _console(command: str):
    try:
        from rich.console import Console
    except ImportError as error:
        raise SystemExit(f"blockattn {command} needs rich and matplotlib: pip install 'blockattn[bench]'") from error
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


@contextlib.contextmanager
def _progress(console, steps: int) -> Iterator[Callable[[str, int], None]]:
    """A progress bar of so many steps; `advance(text, steps)` takes some and says what they are."""
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("starting", total=steps)
        yield lambda text, some: progress.update(task, advance=some, description=escape(text))
