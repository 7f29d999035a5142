"""The tables that `blockattn bench` and `blockattn accuracy` print."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from rich.box import SIMPLE_HEAD
from rich.table import Table

from .accuracy import Error
from .gate import RESULTS
from .result import BASELINE, SHORT_DIRECTIONS, Row

MIB = 1 << 20

# Heading, and what stands below it for a timed row; a column without any value is left out.
COLUMNS: dict[str, Callable[[Row], str | None]] = {
    "ms": lambda row: f"{row.ms:.4g}",
    "20–80 %": lambda row: f"{row.ms_p20:.4g}–{row.ms_p80:.4g}",
    "TB/s": lambda row: _number(row.tbs, ".3g"),
    "of limit": lambda row: _number(row.share, ".3f"),
    f"× {BASELINE}": lambda row: _number(row.speedup, ".2f"),
    "TFLOP/s": lambda row: f"{row.tflops:.3g}",
    "peak MiB": lambda row: _number(row.peak_bytes, ",.1f", MIB),
    "kept MiB": lambda row: _number(row.kept_bytes, ",.1f", MIB),
}


# Columns that a narrow terminal goes without: below so many characters, these.
NARROW = ((110, ("peak MiB", "kept MiB")), (90, ("20–80 %", "TFLOP/s")))


def bench_tables(rows: Iterable[Row], width: int) -> Iterator[Table | str]:
    """For each workload a table of what was timed, then what was not, with the reason; `width` is the terminal's."""
    for place, group in itertools.groupby(rows, key=lambda row: row.place):
        name, spec, found = place.title, place.spec, list(group)
        timed = [row for row in found if row.status == "timed"]
        most = max((row.rows for row in timed), default=0)
        if timed:
            yield _timed_table(f"{name}   {spec}   {most:,} rows", timed, most, width)
        else:
            yield f"{name}   {spec}   nothing timed"
        if any(row.rows < most for row in timed):
            yield "  * full blocks only"
        yield from _untimed(row for row in found if row.status != "timed")


def accuracy_tables(errors: Iterable[Error]) -> Iterator[Table | str]:
    """For each workload a table of both errors of each result, with the difference to FlashAttention 2's in per cent."""
    for (name, spec), group in itertools.groupby(errors, key=lambda error: (error.workload, error.spec)):
        found = list(group)
        base = next((error for error in found if error.provider == BASELINE and error.rms), None)
        table = _table(f"{name}   {spec}", "provider", "error")
        for result in RESULTS:
            table.add_column(result, justify="right")
        for error in found:
            for kind, values, theirs in (
                ("RMS", error.rms, base and base.rms), ("largest", error.largest, base and base.largest)
            ):  # fmt: skip
                if values:
                    cells = (_against(values[result], theirs and theirs[result]) for result in RESULTS)
                    table.add_row(error.provider, kind, *cells)
        yield table
        yield from (f"  {error.provider}: {error.reason}" for error in found if error.reason)


def _timed_table(title: str, timed: list[Row], most_rows: int, width: int) -> Table:
    table = _table(title, "provider", "")
    columns = {heading: [cell(row) for row in timed] for heading, cell in COLUMNS.items()}
    hidden = {heading for limit, headings in NARROW if width < limit for heading in headings}
    shown = {heading: cells for heading, cells in columns.items() if any(cells) and heading not in hidden}
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for place, row in enumerate(timed):
        star = "*" if row.rows < most_rows else ""
        cells = (cells[place] or "" for cells in shown.values())
        style = "bold" if row.ours else ""
        table.add_row(f"{row.provider}{star}", SHORT_DIRECTIONS[row.direction], *cells, style=style)
    return table


def _untimed(rows: Iterable[Row]) -> Iterator[str]:
    """A line for each status and reason, with the providers that it holds for."""
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        reasons.setdefault((row.status, row.reason), {})[row.provider] = None
    for (status, reason), names in reasons.items():
        yield f"  {status}: {', '.join(names)}: {reason}"


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _against(value: float, theirs: float | None) -> str:
    return f"{value:.3g}" if not theirs or value == theirs else f"{value:.3g} ({value / theirs - 1:+.0%})"


def _number(value: float | None, form: str, unit: int = 1) -> str | None:
    return None if value is None else format(value / unit, form)
