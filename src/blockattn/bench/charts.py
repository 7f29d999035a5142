"""The pictures of a run: share of the limit, speed-up over FlashAttention 2, and time per row as batches grow.

A picture has a mark for each timed row and none for the others. share: of the streaming limit, or rows a second where there
is no limit; speedup: rows a second over the baseline's; scaling: time per row of workloads that differ only in their number
of sequences. Without data there is no picture. Ours have one colour and marks of their own; a peer's colour and mark follow
from its place in `run.providers`.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator, StrMethodFormatter

from .result import BASELINE_TITLE, BASELINES, DIRECTIONS, OURS, Place, Row, Run

Marks = dict[tuple[Place, str, str], float]  # of a workload, provider and direction

OUR_COLOUR, OUR_MARKERS = "#0a3cff", "D*XP"
# Paul Tol's muted scheme without its blues and olive, and two greys; 8 colours and 5 markers meet again after 40 peers.
PEER_COLOURS = ("#882255", "#44aa99", "#ddcc77", "#444444", "#cc6677", "#117733", "#aaaaaa", "#aa4499")
PEER_MARKERS = "o^sv>"
WIDTH, DPI = 9, 160  # inches; 9 pt are 12 px where a picture is 900 px wide
LABEL_WIDTH, PANEL_WIDTH, TITLE_WIDTH = 20, 48, 88  # characters
LEGEND_COLUMNS = 5
NOT_DRAWN = ("blockattn-reference", "sdpa-math")  # for tests and for odd dtypes: their times would stretch every scale
RC = {
    "font.size": 9, "axes.titlesize": 9, "figure.titlesize": 11, "legend.fontsize": 8.5, "text.parse_math": False,
    "legend.frameon": False, "legend.handlelength": 1, "legend.handletextpad": 0.4, "axes.axisbelow": True,
}  # fmt: skip


def draw_share(run: Run) -> Figure | None:
    """Share of the limit, forward and backward; without a limit rows a second."""
    if run.limit is None:
        marks = _marks(run, DIRECTIONS[:2], lambda row: 1e9 / _ns_per_row(row))
        figure = _dot_plot(run, marks, f"Rows per second on {run.where}", "rows per second (log scale)")
        for axis in figure.axes if figure else ():
            _log_axis(axis, "x", marks.values(), EngFormatter(sep=""))
        return figure
    marks = _marks(run, DIRECTIONS[:2], lambda row: row.share)
    doubt = "" if run.limit["trusted"] else " (NOT TRUSTED)"
    figure = _dot_plot(run, marks, f"Share of the streaming limit{doubt} on {run.where}", "share of the limit")
    for axis in figure.axes if figure else ():
        axis.set_title(f"{axis.get_title()}: 1.0 is {run.limit[axis.get_title()]:.2f} TB/s")
        axis.set_xlim(0, max(1.08, *(1.04 * share for share in marks.values())))
        axis.axvline(1, color="0.2", linewidth=1)
    return figure


def draw_speedup(run: Run) -> Figure | None:
    """Rows a second over the baseline's, which is the line at 1."""
    marks = _marks(run, DIRECTIONS, lambda row: None if row.provider in BASELINES.values() else row.speedup)
    figure = _dot_plot(run, marks, f"Speed-up over {BASELINE_TITLE} on {run.where}", "times as fast (log scale)")
    for axis in figure.axes if figure else ():
        _log_axis(axis, "x", [1, *marks.values()], FuncFormatter(_fraction), base=2)
        axis.axvline(1, color="0.2", linewidth=1)
    return figure


def draw_scaling(run: Run) -> Figure | None:
    """Time per row over the rows of the batch: a row of panels for each family of workloads, a line for each provider."""
    marks = _marks(run, DIRECTIONS[:2], _ns_per_row)
    families = _families(place for place, _, _ in marks)
    if not families:
        return None
    marks = {key: ns for key, ns in marks.items() if any(key[0] in family for family in families)}
    directions = _directions(marks)
    figure = Figure(figsize=(WIDTH, 3.4 * len(families) + 1), layout="constrained")
    panels = figure.subplots(len(families), len(directions), squeeze=False, sharey="row")
    for family, axes in zip(families, panels):
        for axis, direction in zip(axes, directions):
            _scaling_panel(axis, run, {key: ns for key, ns in marks.items() if key[0] in family}, direction)
            axis.set_title(_wrapped(f"{direction}: {_without_batch(family[0].spec)}", PANEL_WIDTH))
        axes[0].set_ylabel("ns per row (log scale)")
    _finish(figure, f"Time per row over the rows of the batch on {run.where}", _styles(run, marks))
    return figure


def _scaling_panel(axis: Axes, run: Run, marks: Marks, direction: str) -> None:
    """The lines of a direction; the axes span both directions."""
    family = {place for place, _, _ in marks}
    timed = [row for row in run.rows if row.place in family and row.status == "timed"]
    totals = {place: max(row.rows for row in timed if row.place == place) for place in family}
    limits = {row.direction: row.share * _ns_per_row(row) for row in timed if row.share}  # bytes a row are those of a family
    for provider, style in _styles(run, marks).items():
        points = sorted((totals[place], ns) for (place, p, d), ns in marks.items() if (p, d) == (provider, direction))
        if points:
            axis.plot(*zip(*points), **style)
    if direction in limits:
        axis.axhline(limits[direction], color="0.2", linewidth=1)
        axis.annotate("limit", (1, limits[direction]), (-3, -11), ("axes fraction", "data"), "offset points", ha="right")
    span = max(marks.values()) / min(marks.values())
    room = [limits[d] * span**-0.05 for d in _directions(marks) if d in limits]  # for the word below the line
    _log_axis(axis, "x", totals.values(), EngFormatter(sep=""))
    _log_axis(axis, "y", [*marks.values(), *room], StrMethodFormatter("{x:g}"))
    axis.set_xlabel("rows of the batch (log scale)")
    axis.grid(color="0.92")


def _dot_plot(run: Run, marks: Marks, title: str, label: str) -> Figure | None:
    """A panel for each direction, a band for each workload, and in it a lane for each provider."""
    if not marks:
        return None
    places = [place for place, _ in run.by_place() if any(place == key[0] for key in marks)]
    styles = _styles(run, marks)
    directions = _directions(marks)
    band = max(0.4, 0.1 + 0.035 * len(styles))
    height = band * len(places) + 0.2 * math.ceil(len(styles) / LEGEND_COLUMNS) + 1.3
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(1, len(directions), squeeze=False, sharey=True)[0]
    for axis, direction in zip(axes, directions):
        for provider, lane in _lanes(styles).items():
            at = {y + lane: marks.get((place, provider, direction)) for y, place in enumerate(places)}
            found = {y: x for y, x in at.items() if x is not None}
            axis.plot(found.values(), found.keys(), **styles[provider] | {"linestyle": "none"})
        _bands(axis, len(places))
        axis.set_title(direction)
        axis.set_xlabel(label)
    axes[0].set_yticks(range(len(places)), [_wrapped(p.title.replace(",", ", "), LABEL_WIDTH) for p in places])
    _finish(figure, title, styles)
    return figure


def _lanes(names: Iterable[str]) -> dict[str, float]:
    """Where in its band, from -0.4 to 0.4, each provider is: ours about the middle; neighbours in the order apart."""
    ours, peers = _split(names)
    order = [*peers[0::4], *ours[1::3], *peers[1::4], *ours[0::3], *peers[2::4], *ours[2::3], *peers[3::4]]
    return {name: (place + 0.5) / len(order) * 0.8 - 0.4 for place, name in enumerate(order)}


def _bands(axis: Axes, count: int) -> None:
    for y in range(0, count, 2):
        axis.axhspan(y - 0.5, y + 0.5, color="0.955", zorder=0)
    axis.set_ylim(count - 0.5, -0.5)
    axis.grid(axis="x", color="0.87")
    axis.tick_params(axis="y", length=0)
    axis.spines[["left", "right", "top"]].set_visible(False)


def _styles(run: Run, marks: Marks) -> dict[str, dict]:
    """How the marks and lines of each provider look that has any; ours come first and are drawn last."""
    ours, peers = _split(dict.fromkeys([*run.providers, *(row.provider for row in run.rows)]))
    styles = {}
    for name, marker in zip(ours, itertools.cycle(OUR_MARKERS)):
        size = {"D": 6, "*": 9.5}.get(marker, 7.5)  # of about equal weight
        styles[name] = dict(color=OUR_COLOUR, marker=marker, markersize=size, linewidth=1.6, zorder=4)
    for place, (name, marker) in enumerate(zip(peers, itertools.cycle(PEER_MARKERS))):
        lap, colour = divmod(place, len(PEER_COLOURS))
        line = dict(linewidth=0.9, linestyle="--" if lap else "-")
        styles[name] = dict(color=PEER_COLOURS[colour], marker=marker, markersize=5, zorder=3, **line)
    edge = dict(markeredgecolor="white", markeredgewidth=0.4)
    return {name: style | edge for name, style in styles.items() if any(name == key[1] for key in marks)}


def _split(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Ours, and the peers."""
    names = list(names)
    return [n for n in names if n.startswith(OURS)], [n for n in names if not n.startswith(OURS)]


def _finish(figure: Figure, title: str, styles: dict[str, dict]) -> None:
    """The title, and a legend below."""
    figure.suptitle(_wrapped(title, TITLE_WIDTH))
    handles = [Line2D([], [], label=name, **style | {"linestyle": "none"}) for name, style in styles.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(LEGEND_COLUMNS, len(handles)))


def _log_axis(axis: Axes, which: str, values: Iterable[float], formatter, base: int = 10) -> None:
    """A log scale with a margin; ticks at powers of the base, some of them on a long axis, and at 2 and 5 on a short one."""
    least, most = min(values), max(values)
    margin = max(1.15, (most / least) ** 0.04)
    axis.set(**{f"{which}scale": "log", f"{which}lim": (least / margin, most * margin)})
    scale = getattr(axis, f"{which}axis")
    subs = (1, 2, 5) if base == 10 and most < 300 * least else (1,)
    stride = max(1, round(math.log(most / least, base) / 4.5))
    scale.set_major_locator(LogLocator(base**stride, subs, numticks=12))
    scale.set_minor_locator(NullLocator())
    scale.set_major_formatter(formatter)


def _fraction(x: float, _) -> str:
    """A power of two: 4, or 1/4."""
    return f"{x:g}" if x >= 1 else f"1/{1 / x:g}"


def _marks(run: Run, directions: Iterable[str], value: Callable[[Row], float | None]) -> Marks:
    """The values of the timed rows that have one."""
    drawn = [row for row in run.rows if row.direction in directions and row.provider not in NOT_DRAWN]
    timed = [row for row in drawn if row.status == "timed"]
    return {(row.place, row.provider, row.direction): x for row in timed if (x := value(row))}


def _directions(marks: Marks) -> list[str]:
    return [direction for direction in DIRECTIONS if any(direction == key[2] for key in marks)]


def _families(places: Iterable[Place]) -> list[list[Place]]:
    """The workloads that differ only in the number of sequences, where there are three or more of them."""
    families: dict[tuple[str, str], dict[str, Place]] = {}
    for place in places:
        families.setdefault((_without_batch(place.spec), place.operation), {}).setdefault(place.spec, place)
    return [list(family.values()) for family in families.values() if len(family) > 2]


def _without_batch(spec: str) -> str:
    """Lengths that were given keep their count: they are no family."""
    return re.sub(r"^B\d+,", "", spec)


def _ns_per_row(row: Row) -> float:
    return row.ms / row.rows * 1e6


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, max_lines=3, placeholder="…", break_on_hyphens=False)
