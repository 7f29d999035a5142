"""A kernel's pipeline as a picture: a lane for each task, full where it works and pale where it waits, and for each engine.

x is the scheduler's steps, an order and not a time. HTML holds the same picture with a hover text on every span.
"""

from __future__ import annotations

import html
import pathlib
import re
from typing import Any

from .trace import Span, Trace

STEPS = 200  # that stay readable
SUFFIXES = (".png", ".svg", ".html")
PALETTE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#999933", "#882255", "#44aa99")
WORK = "#dddddd"
LANE, ROW = 0.9, 0.55  # inches a lane, part of it that a span fills


def draw(trace: Trace, path: str, steps: tuple[int, int] = (0, STEPS)) -> None:
    """Write the picture of the first program of a trace.

    Raises:
        ValueError: the file's suffix is none of .png, .svg and .html.
    """
    suffix = pathlib.Path(path).suffix
    if suffix not in SUFFIXES:
        raise ValueError(f"a picture's file must end in {', '.join(SUFFIXES)}, got {path}")
    every = trace.spans
    spans = [span for span in every if span.program == every[0].program]
    last = max((span.last for span in spans), default=0)
    shown = sorted((s for s in spans if s.first < steps[1] and s.last >= steps[0]), key=lambda span: span.first)
    program = spans[0].program if spans else (0, 0, 0)
    title = f"{trace.kernel}, program {program}, steps {steps[0]} to {min(last, steps[1])} of {last}"
    if suffix == ".html":
        pathlib.Path(path).write_text(_page(shown, title, steps, min(last, steps[1])))
    else:
        _figure(shown, title, steps, min(last, steps[1])).savefig(path, dpi=150)


def _lanes(spans: list[Span]) -> list[str]:
    """Tasks first, then engines, each as they come."""
    tasks = dict.fromkeys(span.lane for span in spans if span.kind == "wait")
    return [*tasks, *dict.fromkeys(span.lane for span in spans if span.kind != "wait")]


def _group(span: Span) -> str:
    """What a span has to do with: the buffer or barrier without its index."""
    return re.sub(r"\[.*", "", span.label.split(" ", 1)[-1])


def _colours(spans: list[Span]) -> dict[str, str]:
    groups = dict.fromkeys(_group(span) for span in spans)
    return {group: PALETTE[n % len(PALETTE)] for n, group in enumerate(groups)}


def _rows(spans: list[Span]) -> dict[int, int]:
    """For spans of a lane that overlap, by their number: a row each."""
    found, ends = {}, {}
    for number, span in enumerate(spans):
        free = ends.setdefault(span.lane, [])
        row = next((row for row, end in enumerate(free) if end <= span.first), len(free))
        free[row : row + 1] = [max(span.last, span.first + 1)]
        found[number] = row
    return found


def _figure(spans: list[Span], title: str, steps: tuple[int, int], end: int) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    lanes, colours, rows = _lanes(spans), _colours(spans), _rows(spans)
    deepest = {lane: 1 + max(rows[n] for n, span in enumerate(spans) if span.lane == lane) for lane in lanes}
    figure = Figure(figsize=(14, 1.6 + LANE * max(1, len(lanes)) * 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for place, lane in enumerate(lanes):
        if any(span.lane == lane and span.kind == "wait" for span in spans):
            axes.barh(place, end - steps[0], left=steps[0], height=ROW, color=WORK, zorder=1)
    for number, span in enumerate(spans):
        height = ROW / deepest[span.lane]
        place = lanes.index(span.lane) - ROW / 2 + (rows[number] + 0.5) * height
        waits = span.kind == "wait"
        first, last = max(span.first, steps[0]), min(max(span.last, span.first + 1), steps[1])
        axes.barh(
            place, last - first, left=first, height=height, zorder=2, color="white" if waits else colours[_group(span)],
            edgecolor=colours[_group(span)] if waits else "white", hatch="////" if waits else None, linewidth=0.6,
        )  # fmt: skip
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()
    axes.set_xlim(steps[0], max(end, steps[0] + 1))
    axes.set_xlabel("step of the scheduler (an order, not a time)")
    axes.set_title(title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    shown = [Patch(facecolor=WORK, label="works"), Patch(facecolor="white", edgecolor="black", hatch="////", label="waits")]
    shown += [Patch(facecolor=colour, label=group) for group, colour in colours.items()]
    figure.legend(handles=shown, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _page(spans: list[Span], title: str, steps: tuple[int, int], end: int) -> str:
    """A page of its own: rectangles with a hover text each."""
    lanes, colours, rows = _lanes(spans), _colours(spans), _rows(spans)
    scale, height, left = 1100 / max(1, end - steps[0]), 34, 170
    parts = []
    for place, lane in enumerate(lanes):
        y = 20 + place * height
        parts.append(f'<text x="{left - 8}" y="{y + 18}" text-anchor="end">{html.escape(lane)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="1100" height="26" fill="#f2f2f2"/>')
    for number, span in enumerate(spans):
        deepest = 1 + max(rows[n] for n, other in enumerate(spans) if other.lane == span.lane)
        tall = 26 / deepest
        x = left + (max(span.first, steps[0]) - steps[0]) * scale
        width = max(2.0, (min(span.last, steps[1]) - max(span.first, steps[0])) * scale)
        y = 20 + lanes.index(span.lane) * height + rows[number] * tall
        hover = html.escape(f"{span.label}, {span.line}, {span.task}, steps {span.first} to {span.last}")
        opacity = 0.3 if span.kind == "wait" else 1
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{tall:.1f}"'
        look = f'fill="{colours[_group(span)]}" fill-opacity="{opacity}"'
        parts.append(f"<rect {place} {look}><title>{hover}</title></rect>")
    legend = " ".join(
        f'<span style="color:{colour}">&#9632;</span> {html.escape(group)}' for group, colour in colours.items()
    )
    tall = 40 + len(lanes) * height
    note = "Pale spans are waits; x is the scheduler's steps, an order and not a time."
    return (
        f"<!doctype html><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<style>body{{font:14px sans-serif}} text{{font-size:13px}}</style><h1>{html.escape(title)}</h1><p>{note}</p>"
        f"<p>{legend}</p><svg width='{left + 1120}' height='{tall}'>{''.join(parts)}</svg>\n"
    )
