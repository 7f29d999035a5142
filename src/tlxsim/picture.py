"""A kernel's pipeline as a picture: a lane for each task, grey where it works and pale where it waits, and for each engine.

x is the scheduler's steps, an order and not a time. A task is known by its events alone: before the first and after the last
its lane is empty. A wait that never ends has a thick edge. HTML holds the same picture with a hover text on every span.
"""

from __future__ import annotations

import dataclasses
import html
import pathlib
from typing import Any

from .trace import SHOWN, Span, Trace, lanes, rows, tasks

SUFFIXES = (".png", ".svg", ".html")
PALETTE = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#44aa99", "#332288", "#c9a07a",
    "#882255", "#90b050", "#7788dd", "#775533", "#ee99bb", "#117777",
)  # fmt: skip
WORK, STUCK, PALE = "#dddddd", "#cc0000", 0.25
TASK, ROW, GAP = 1.0, 0.55, 0.45  # heights of a task's lane, of an engine's row, and between lanes
NOTE = "step of the scheduler (an order, not a time)"


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle of a lane from step to step; `names` are texts for inside, the longest first."""

    first: int
    end: int
    top: float
    height: float
    colour: str
    pale: bool = False
    stuck: bool = False
    hover: str = ""
    names: tuple[str, ...] = ()

    def text(self, characters_a_step: float) -> str:
        """The longest name that fits."""
        room = (self.end - self.first) * characters_a_step - 1
        return next((name for name in self.names if len(name) <= room), "")

    @property
    def ink(self) -> str:
        """The colour of text on it."""
        red, green, blue = (int(self.colour[n : n + 2], 16) for n in (1, 3, 5))
        return "#222222" if self.pale or 0.3 * red + 0.6 * green + 0.1 * blue > 140 else "#ffffff"


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is where; lanes are names with top and height."""

    title: str
    cut: str
    first: int
    end: int
    lanes: list[tuple[str, float, float]]
    boxes: list[Box]
    legend: dict[str, str]

    @property
    def height(self) -> float:
        return sum(self.lanes[-1][1:]) if self.lanes else TASK


def draw(trace: Trace, path: str, steps: tuple[int, int] | None = None) -> None:
    """Write the picture of the first program of a trace, or of the first that is stuck, from a step up to another.

    Without steps it shows the first ones, or those before a program is stuck.

    Raises:
        ValueError: the file's suffix is none of .png, .svg and .html, or no step is asked for.
    """
    suffix = pathlib.Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"a picture's file must end in {', '.join(SUFFIXES)}, got {path}")
    if steps is not None and not 0 <= steps[0] < steps[1]:
        raise ValueError(f"steps must be a first step and a later one, got {steps}")
    layout = _layout(trace, steps)
    if suffix == ".html":
        pathlib.Path(path).write_text(_page(layout), encoding="utf-8")
    else:
        _figure(layout).savefig(path, dpi=150)


def _layout(trace: Trace, steps: tuple[int, int] | None) -> Layout:
    """Boxes of all that happens within the steps."""
    stuck = [span for span in trace.spans if span.kind == "stuck"]
    program = min((span.program for span in stuck or trace.spans), default=(0, 0, 0))
    every = [span for span in trace.spans if span.program == program]
    last = max((span.end for span in every), default=0)
    first, end = steps or ((max(0, last - SHOWN), last) if stuck else (0, SHOWN))
    end = max(min(last, end), first + 1)
    shown = [span for span in every if span.first < end and span.end > first]
    colours = {group: PALETTE[n % len(PALETTE)] for n, group in enumerate(dict.fromkeys(map(_group, shown)))}
    tops, placed, top = {}, [], 0.0
    deep = lanes(shown)
    names = tasks(every)
    for lane, count in (dict.fromkeys(names, 1) | deep).items():
        height = TASK if lane in names else max(TASK * 0.7, count * ROW)
        tops[lane] = top, height
        placed.append((lane, top, height))
        top += height + GAP
    boxes = []
    for task in names:
        begin, stop = _known(task, every)
        if begin < end and stop > first:
            boxes.append(Box(max(begin, first), min(stop, end), *tops[task], WORK, hover=f"{task} works"))
    for span, row in zip(shown, rows(shown), strict=True):
        top, height = tops[span.lane]
        height /= deep[span.lane]
        hover = f"{span.name}, {span.line}, {span.task}, steps {span.first} to {span.last}"
        _, bracket, index = _buffer(span).partition("[")
        boxes.append(
            Box(max(span.first, first), min(span.end, end), top + row * height, height, colours[_group(span)],
                span.kind != "async", span.kind == "stuck", hover, (_buffer(span), *([bracket + index] if bracket else [])))
        )  # fmt: skip
    title = f"{trace.kernel}, program {program}, steps {first} to {end} of {last}"
    hidden = [(a, b) for a, b in ((0, first), (end, last)) if a < b]
    cut = "; ".join(f"cut: steps {a} to {b}, which draw(path, steps=({a}, {b})) shows" for a, b in hidden)
    return Layout(title, cut, first, end, placed, boxes, colours)


def _known(task: str, spans: list[Span]) -> tuple[int, int]:
    """The steps between a task's first event and its last: it waits, or launches an operation."""
    mine = [span for span in spans if span.task == task]
    return mine[0].first, max(span.first + 1 if span.kind == "async" else span.end for span in mine)


def _buffer(span: Span) -> str:
    """The buffer or barrier that a span has to do with."""
    return span.label.split(" ", 1)[-1].removeprefix("to ")


def _group(span: Span) -> str:
    """It without its index."""
    return _buffer(span).partition("[")[0]


def _figure(layout: Layout) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import to_rgba
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    count = layout.end - layout.first
    width = min(14 * max(1.0, count / SHOWN), 100)
    figure = Figure(figsize=(width, 1.4 + 0.4 * layout.height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for box in layout.boxes:
        face = to_rgba(box.colour, PALE) if box.pale else box.colour
        if box.pale:  # not over the grey of work
            axes.add_patch(Rectangle((box.first, box.top), box.end - box.first, box.height, color="white", linewidth=0))
        edge, thick = (STUCK, 2.5) if box.stuck else (box.colour if box.pale else "white", 0.6)
        size = box.end - box.first, box.height
        axes.add_patch(Rectangle((box.first, box.top), *size, facecolor=face, edgecolor=edge, linewidth=thick))
        # 11 of the 14 inches are steps, and a character of this size takes a 16th
        middle = (box.first + box.end) / 2, box.top + box.height / 2
        axes.text(*middle, box.text(16 * (width - 3) / count), ha="center", va="center", fontsize=7, color=box.ink)
    axes.set_yticks([top + height / 2 for _, top, height in layout.lanes], [lane for lane, _, _ in layout.lanes])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(layout.first, layout.end)
    axes.set_ylim(layout.height + GAP / 2, -GAP / 2)
    axes.set_xlabel("\n".join(filter(None, (NOTE, layout.cut))))
    axes.set_title(layout.title, loc="left", fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    known = [Patch(color=WORK, label="works"), Patch(facecolor="#00000022", edgecolor="#555555", label="waits (pale)")]
    if any(box.stuck for box in layout.boxes):
        known.append(Patch(facecolor="white", edgecolor=STUCK, linewidth=2, label="never ends"))
    known += [Patch(color=colour, label=group) for group, colour in layout.legend.items()]
    figure.legend(handles=known, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _page(layout: Layout) -> str:
    """A page of its own: rectangles with a hover text each."""
    count, tall, left, top = layout.end - layout.first, 28, 170, 8
    wide = max(1100, 6 * count)
    scale, bottom = wide / count, top + layout.height * tall + 14
    parts = []
    for lane, begin, height in layout.lanes:
        y = top + (begin + height / 2) * tall + 4
        parts.append(f'<text x="{left - 8}" y="{y:.1f}" text-anchor="end">{html.escape(lane)}</text>')
    stride = next(n for n in (1, 5, 25, 100, 500, count) if n * scale >= 60 or n == count)
    for step in range(-(-layout.first // stride) * stride, layout.end + 1, stride):
        x = left + (step - layout.first) * scale
        parts.append(f'<path d="M{x:.1f} {top}V{bottom:.1f}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14:.1f}" text-anchor="middle">{step}</text>')
    for box in layout.boxes:
        x, y = left + (box.first - layout.first) * scale, top + box.top * tall
        width, height = (box.end - box.first) * scale, box.height * tall
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        under = f'<rect {place} fill="white"/>' if box.pale else ""
        look = f'fill="{box.colour}" fill-opacity="{PALE}" stroke="{box.colour}"' if box.pale else f'fill="{box.colour}"'
        if box.stuck:
            look = f'fill="{box.colour}" fill-opacity="{PALE}" stroke="{STUCK}" stroke-width="3"'
        inside = f'x="{x + width / 2:.1f}" y="{y + height / 2 + 3.5:.1f}" fill="{box.ink}"'
        text = box.text(scale / 6)
        text = f'<text class="in" {inside}>{html.escape(text)}</text>' if text else ""
        parts.append(f"<g><title>{html.escape(box.hover)}</title>{under}<rect {place} {look}/>{text}</g>")
    legend = " ".join(
        f'<span style="color:{colour}">&#9632;</span> {html.escape(group)}' for group, colour in layout.legend.items()
    )
    title = html.escape(layout.title)
    never = "thick edge: a wait that never ends" if any(box.stuck for box in layout.boxes) else ""
    note = html.escape("; ".join(filter(None, (f"x: {NOTE}", "grey: a task works, pale: it waits", never, layout.cut))))
    style = "body{font:14px sans-serif;color:#222;background:#fff} h1{font-size:18px} text{font-size:12px} "
    style += ".in{font-size:10px;text-anchor:middle;pointer-events:none}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        f'<h1>{title}</h1><p>{note}</p><p>{legend}</p><svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 30}" '
        f'height="{bottom + 24:.0f}">{"".join(parts)}</svg></html>\n'
    )
