"""Traces for Perfetto, and pictures of a pipeline."""

import itertools
import json
import re
import xml.etree.ElementTree as ET

import pytest
from kernels import hopper_attention

import tlxsim
from tlxsim.trace import Trace

EVENTS = [
    ((0, 0, 0), "default task", "async", "load x_smem[0]", 1, 4, "k.py:2"),
    ((0, 0, 0), "task 1 (line 4)", "wait", "wait full[0]", 0, 5, "k.py:3"),
    ((0, 0, 0), "default task", "async", "load x_smem[1]", 2, 6, "k.py:2"),
    ((0, 0, 0), "task 1 (line 4)", "wait", "wait <odd>", 7, 7, "k.py:4"),
    ((1, 0, 0), "task 1 (line 4)", "async", "wgmma", 7, 9, "k.py:5"),
]


@pytest.fixture
def trace():
    made = Trace("kernel")
    made.events = list(EVENTS)
    return made


@pytest.fixture(scope="module")
def attention():
    with tlxsim.simulate("sm_90", schedules=["random:1"], budgets=False) as sim:
        hopper_attention.start(hopper_attention.launch("cpu", tiles=5))
    return sim


def written(trace, path):
    """The spans of a trace's file by lane, and the file's content."""
    trace.write(str(path))
    content = json.loads(path.read_text())
    events = content["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = {lane: [] for lane in names.items()}
    for event in events:
        if event["ph"] == "X":
            key = event["pid"], event["tid"]
            found[key, names[key]].append(event)
    return {(pid, name): spans for ((pid, _), name), spans in found.items()}, content


def page(trace, path, **options):
    """The text of a picture as HTML, and the hover texts of its SVG, which has to be XML."""
    trace.draw(str(path), **options)
    text = path.read_text()
    svg = ET.fromstring(re.search(r"<svg.*</svg>", text, re.DOTALL)[0])
    return text, [title.text for title in svg.iter("{http://www.w3.org/2000/svg}title")]


STUCK = [
    *EVENTS,
    ((1, 0, 0), "default task", "wait", "wait empty[0]", 3, 4, "k.py:6"),
    ((1, 0, 0), "task 1 (line 4)", "stuck", "wait full[1]", 9, 500, "k.py:3"),
    ((1, 0, 0), "default task", "stuck", "wait empty[1]", 500, 500, "k.py:6"),
]


def test_a_lane_for_each_task_and_engine(trace, tmp_path):
    lanes, content = written(trace, tmp_path / "t.json")
    assert {lane: [(e["name"], e["ts"], e["dur"]) for e in spans] for lane, spans in lanes.items()} == {
        (1, "default task"): [],
        (1, "task 1 (line 4)"): [("wait full[0]", 0, 5), ("wait <odd>", 7, 1)],
        (1, "TMA loads"): [("load x_smem[0]", 1, 3)],
        (1, "TMA loads (2)"): [("load x_smem[1]", 2, 4)],
        (2, "task 1 (line 4)"): [],
        (2, "tensor cores"): [("wgmma", 7, 2)],
    }
    assert lanes[1, "TMA loads"][0]["args"] == dict(line="k.py:2", task="default task")
    assert content["otherData"]["kernel"] == "kernel"
    assert "not a time" in content["otherData"]["time"]


@pytest.mark.parametrize(
    ("label", "lane"),
    [
        ("store y[0]", "TMA stores"), ("mma acc[0]", "tensor cores"), ("commit full[0]", "tensor cores"),
        ("copy to acc[0]", "tensor cores"), ("cp.async x[0]", "cp.async"), ("arrive full[0]", "cp.async"),
        ("else", "others"),
    ],
)  # fmt: skip
def test_the_engine_of_an_operation(label, lane, tmp_path):
    made = Trace("kernel")
    made.events = [((0, 0, 0), "kernel", "async", label, 0, 1, "k.py:1")]
    assert list(written(made, tmp_path / "t.json")[0]) == [(1, "kernel"), (1, lane)]


def test_tasks_stand_by_their_numbers(tmp_path):
    made = Trace("kernel")
    made.events = [((0, 0, 0), f"task {n} (line 4)", "wait", "wait full", 0, 1, "k.py:1") for n in (10, 2, 1)]
    assert [lane for _, lane in written(made, tmp_path / "t.json")[0]] == [f"task {n} (line 4)" for n in (1, 2, 10)]


def test_a_kernel_is_traced(attention, tmp_path):
    lanes, _ = written(attention.last_trace, tmp_path / "t.json")
    names = [re.sub(r" \((line )?\d+\)", "", lane) for _, lane in lanes]
    assert list(dict.fromkeys(names)) == ["default task", "task 1", "task 2", "TMA loads", "tensor cores", "TMA stores"]
    every = [event for spans in lanes.values() for event in spans]
    assert sum(event["name"].startswith("load ") for event in every) == 5 * 3
    assert sum(event["name"].startswith("store ") for event in every) == 5
    assert sum(event["name"] == "wgmma" for event in every) == 5 * 2
    assert all("hopper_attention.py:" in event["args"]["line"] for event in every)
    for spans in lanes.values():  # Perfetto takes no overlap in a lane
        ordered = sorted(spans, key=lambda event: event["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in itertools.pairwise(ordered))


def test_html_tells_every_span_and_where_a_task_works(trace, tmp_path):
    text, hovers = page(trace, tmp_path / "p.html")
    assert hovers == [
        "default task works",
        "task 1 (line 4) works",
        "wait full[0], k.py:3, task 1 (line 4), steps 0 to 5",
        "load x_smem[0], k.py:2, default task, steps 1 to 4",
        "load x_smem[1], k.py:2, default task, steps 2 to 6",
        "wait <odd>, k.py:4, task 1 (line 4), steps 7 to 7",
    ]
    assert "cut:" not in text
    assert "wgmma" not in text  # of the second program


def test_what_is_cut_is_said(trace, tmp_path):
    text, hovers = page(trace, tmp_path / "p.html", steps=(0, 2))
    assert "cut: steps 2 to 8, which draw(path, steps=(2, 8)) shows" in text
    assert [hover.split(",")[0] for hover in hovers][2:] == ["wait full[0]", "load x_smem[0]"]
    _, hovers = page(trace, tmp_path / "p.html", steps=(6, 100))
    assert [hover.split(",")[0] for hover in hovers] == ["task 1 (line 4) works", "wait <odd>"]


def test_waits_that_never_end(trace, tmp_path):
    trace.events = STUCK
    lanes, _ = written(trace, tmp_path / "t.json")
    name = "wait full[1], which never ends"
    assert [(e["name"], e["ts"], e["dur"]) for e in lanes[2, "task 1 (line 4)"]] == [(name, 9, 501)]
    text, hovers = page(trace, tmp_path / "p.html")  # of the program that is stuck, before it is
    assert f"{name}, k.py:3, task 1 (line 4), steps 9 to 500" in hovers
    assert "wait empty[1], which never ends, k.py:6, default task, steps 500 to 500" in hovers
    assert not any(hover.startswith("wgmma") for hover in hovers)
    assert "cut: steps 0 to 310, which draw(path, steps=(0, 310)) shows" in text
    assert "a wait that never ends" in text
    assert text.count('stroke-width="3"') == 2
    trace.draw(str(tmp_path / "p.png"))
    _, hovers = page(trace, tmp_path / "p.html", steps=(0, 9))
    works = ["default task works", "task 1 (line 4) works"]
    assert [hover.split(",")[0] for hover in hovers] == [*works, "wait empty[0]", "wgmma"]


@pytest.mark.parametrize("suffix", ["png", "svg", "html", "PNG"])
def test_a_kernel_is_drawn(attention, suffix, tmp_path):
    path = tmp_path / f"p.{suffix}"
    attention.picture(str(path))
    content = path.read_bytes()
    assert len(content) > 3000
    assert content.startswith({"p": b"\x89PNG", "s": b"<?xml", "h": b"<!doctype html>"}[suffix[0].lower()])


@pytest.mark.parametrize("suffix", ["png", "html"])
def test_a_launch_in_which_nothing_happens(suffix, tmp_path):
    Trace("kernel").draw(str(tmp_path / f"p.{suffix}"))
    assert (tmp_path / f"p.{suffix}").stat().st_size


def test_an_unknown_suffix_is_named(trace):
    with pytest.raises(ValueError, match=r"must end in .png, .svg, .html, got p.gif"):
        trace.draw("p.gif")


def test_no_steps_are_refused(trace):
    with pytest.raises(ValueError, match=r"a first step and a later one, got \(5, 5\)"):
        trace.draw("p.png", steps=(5, 5))


def test_nothing_is_traced_yet(tmp_path):
    with tlxsim.simulate("sm_90") as sim, pytest.raises(RuntimeError, match="nothing has been traced"):
        sim.trace(str(tmp_path / "none.json"))
