"""Traces for Perfetto, and pictures of a pipeline."""

import json

import pytest
from kernels import hopper_attention

import tlxsim
from tlxsim.trace import Trace

EVENTS = [
    ((0, 0, 0), "task 1", "wait", "wait full[0]", 0, 5, "k.py:3"),
    ((0, 0, 0), "default task", "async", "load x_smem[0]", 1, 4, "k.py:2"),
    ((0, 0, 0), "default task", "async", "load x_smem[1]", 2, 6, "k.py:2"),
    ((1, 0, 0), "task 1", "async", "wgmma", 7, 9, "k.py:5"),
]


@pytest.fixture
def trace():
    made = Trace("kernel")
    made.events = list(EVENTS)
    return made


def test_a_lane_for_each_task_and_engine(trace, tmp_path):
    trace.write(str(tmp_path / "t.json"))
    content = json.loads((tmp_path / "t.json").read_text())
    spans = [event for event in content["traceEvents"] if event["ph"] == "X"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in content["traceEvents"] if e["name"] == "thread_name"}
    assert [(e["name"], e["ts"], e["dur"]) for e in spans[:2]] == [("wait full[0]", 0, 5), ("load x_smem[0]", 1, 3)]
    assert [names[e["pid"], e["tid"]] for e in spans] == ["task 1", "TMA loads", "TMA loads", "tensor cores"]
    assert spans[0]["args"]["line"] == "k.py:3"
    assert "not a time" in content["otherData"]["time"]


def test_html_tells_every_span(trace, tmp_path):
    trace.draw(str(tmp_path / "p.html"))
    page = (tmp_path / "p.html").read_text()
    assert "<title>load x_smem[1], k.py:2, default task, steps 2 to 6</title>" in page
    assert "wgmma" not in page  # of the second program


def test_an_unknown_suffix_is_named(trace):
    with pytest.raises(ValueError, match=r"must end in .png, .svg, .html, got p.gif"):
        trace.draw("p.gif")


def test_a_kernel_is_drawn(tmp_path):
    with tlxsim.simulate("sm_90", schedules=["random:1"], budgets=False) as sim:
        with pytest.raises(RuntimeError, match="nothing has been traced"):
            sim.trace(str(tmp_path / "none.json"))
        hopper_attention.start(hopper_attention.launch("cpu", tiles=5))
    for name in ("p.png", "p.svg", "p.html"):
        sim.picture(str(tmp_path / name))
        assert (tmp_path / name).stat().st_size > 3000
    assert {"default task", "TMA loads", "TMA stores", "tensor cores"} <= {span.lane for span in sim.last_trace.spans}
