"""A run as a page: report.html by itself, with the pictures of `charts`, which are written beside it too.

The page lists every row, and why some were not timed.
"""

from __future__ import annotations

import base64
import itertools
import math
import pathlib
import string
from collections.abc import Callable
from html import escape

import matplotlib

from .charts import DPI, RC, draw_scaling, draw_share, draw_speedup
from .result import BASELINE_TITLE, Place, Row, Run


def write_report(run: Run, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write the page and the pictures into a folder, which is made; return what was written, the page first.

    The "device" of run.machine stands in titles. Pictures left by a run that had data for more of them are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {}
    for name, draw in (("share", draw_share), ("speedup", draw_speedup), ("scaling", draw_scaling)):
        path = folder / f"{name}.png"
        path.unlink(missing_ok=True)
        with matplotlib.rc_context(RC):
            figure = draw(run)
            if figure is not None:
                figure.savefig(path, dpi=DPI)
                pictures[path] = figure.get_suptitle().replace("\n", " ")
    page = folder / "report.html"
    page.write_text(_page(run, pictures), encoding="utf-8")
    return [page, *pictures]


PAGE = string.Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: auto; padding: 1rem }
img { width: 900px; max-width: 100% }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { text-align: right; vertical-align: top; padding: .15rem .6rem; border-bottom: 1px solid #8886; white-space: nowrap }
tr > :nth-child(-n + 2), td.text { text-align: left }
td:nth-child(2) { white-space: normal }
td.text { white-space: normal; overflow-wrap: anywhere }
tbody th, small { font-weight: normal }
.ours, .ours th { font-weight: bold }
@media print {
  body { max-width: none; padding: 0; font-size: 9pt }
  img { width: auto; max-height: 17cm }
  table { font-size: 6.5pt }
  th, td { padding: .1rem .25rem }
  tr, img { break-inside: avoid }
  h2, h3, h3 + p { break-after: avoid }
}
</style>
</head><body>
<h1>$title</h1>
$machine
$limit
$pictures
<h2>Workloads</h2>
<p>ms: the median, and in brackets the 20th and 80th percentile; rows: those that the provider computed, since some take full
blocks only; TB/s: of each tensor once, not given for a layer; speed-up: rows a second over $baseline; peak: allocated beyond
the inputs; kept: for the backward, inputs included; set-up: built once a batch and not part of ms.</p>
$workloads
<h2>What each provider calls</h2>
$providers
</body></html>
""")


def _page(run: Run, pictures: dict[pathlib.Path, str]) -> str:
    """The page with the pictures in it."""
    return PAGE.substitute(
        title=escape(f"blockattn bench on {run.where}"),
        machine=_pairs(run.machine),
        limit=_limit_text(run.limit),
        pictures="\n".join(_picture(path, title) for path, title in pictures.items()),
        workloads="\n".join(_section(place, rows) for place, rows in run.by_place()),
        providers=_pairs(run.providers),
        baseline=BASELINE_TITLE,
    )


def _limit_text(limit: dict | None) -> str:
    if limit is None:
        return "<p><strong>This ran on a CPU. It says nothing about any GPU</strong>, and no share of a limit is given.</p>"
    sheet = f"; the datasheet says {limit['datasheet_tbs']:.2f} TB/s" if limit.get("datasheet_tbs") else ""
    trust = "It is trusted: no floor known for this GPU lies above it."
    if not limit["trusted"]:
        trust = "<strong>It is not trusted: this GPU streams faster undisturbed. Do not quote these numbers.</strong>"
    return (
        "<p>The limit, a share of 1.0, is a kernel that only streams the same bytes. In this run it reached "
        f"{limit['forward']:.2f} TB/s with the reads and writes of a forward and {limit['backward']:.2f} TB/s with those of "
        f"a backward{sheet}. {trust}</p>"
    )


def _picture(path: pathlib.Path, title: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{escape(title)}; the numbers stand in the tables" src="data:image/png;base64,{data}"></p>'


def _pairs(values: dict[str, str]) -> str:
    lines = (f'<tr><th>{escape(key)}</th><td class="text">{escape(text)}</td></tr>' for key, text in values.items())
    return f"<table><tbody>{''.join(lines)}</tbody></table>"


# Heading, and what stands below it for a timed row; a column without any value is left out.
COLUMNS: dict[str, Callable[[Row], str]] = {
    "ms": lambda row: f"{_number(row.ms, 4)} <small>({_number(row.ms_p20, 4)}–{_number(row.ms_p80, 4)})</small>",
    "rows": lambda row: f"{row.rows:,}",
    "TB/s": lambda row: _number(row.tbs),
    "share": lambda row: "" if row.share is None else f"{row.share:.3f}",
    "speed-up": lambda row: "" if row.speedup is None else f"{_number(row.speedup)}×",
    "TFLOP/s": lambda row: _number(row.tflops),
    "peak, MiB": lambda row: _number(row.peak_bytes, unit=2**20),
    "kept, MiB": lambda row: _number(row.kept_bytes, unit=2**20),
    "set-up, ms": lambda row: _number(row.setup_ms),
}


def _section(place: Place, rows: list[Row]) -> str:
    """The table of a workload; the directions of a provider that was not timed for one reason share a line."""
    timed = [row for row in rows if row.status == "timed"]
    columns = {heading: cell for heading, cell in COLUMNS.items() if any(cell(row) for row in timed)}
    head = "".join(f"<th>{heading}</th>" for heading in ("provider", "direction", *columns))
    lines = []
    for (_, status, _), group in itertools.groupby(rows, lambda row: (row.provider, row.status, row.reason)):
        if status == "timed":
            for row in group:
                lines.append(_line(row, row.direction, "".join(f"<td>{cell(row)}</td>" for cell in columns.values())))
        else:
            lines.append(_untimed_line(list(group), max(1, len(columns))))
    return (
        f"<section>\n<h3>{escape(place.title)}</h3>\n<p><code>{escape(place.spec)}</code></p>\n"
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>{"".join(lines)}</tbody>\n'
        "</table></div>\n</section>"
    )


def _untimed_line(rows: list[Row], columns: int) -> str:
    text = escape(f"{rows[0].status}: {rows[0].reason}")
    return _line(rows[0], ", ".join(row.direction for row in rows), f'<td class="text" colspan="{columns}">{text}</td>')


def _line(row: Row, directions: str, cells: str) -> str:
    ours = ' class="ours"' if row.ours else ""
    return f"<tr{ours}><th>{escape(row.provider)}</th><td>{escape(directions)}</td>{cells}</tr>\n"


def _number(x: float | None, digits: int = 3, unit: int = 1) -> str:
    """At least so many significant digits, never an exponent; nothing for None."""
    if x is None:
        return ""
    x /= unit
    decimals = digits - 1 - math.floor(math.log10(x)) if x > 0 else 0
    return f"{x:,.{max(0, decimals)}f}"
