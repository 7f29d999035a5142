"""Results: JSON, speed-ups, and the comparison with an earlier run."""

import dataclasses
import json

import pytest

from blockattn.bench.result import Row, Run, compared, fallen, with_speedups


def row(provider="blockattn-triton", share=0.9, status="timed", direction="forward", **fields):
    values = dict(rows=100, ms=1.0, share=share, tbs=1.0, tflops=1.0) if status == "timed" else {}
    values |= dict(operation="attention")
    return Row("W", "B1", provider=provider, direction=direction, status=status, **values | fields)


def run_of(*rows):
    return Run({"device": "X"}, {"forward": 4.4, "backward": 4.1, "trusted": True}, {"flash2": "it"}, rows)


def test_json_and_back(tmp_path):
    run = run_of(row(), row("flash2", status="wrong", reason="dk"))
    run.write(tmp_path / "new" / "run.json")
    assert Run.read(tmp_path / "new" / "run.json") == run


def test_a_layer_has_no_bandwidth(tmp_path):
    run = run_of(row("blockattn-layer", operation="layer", tbs=None, share=None))
    run.write(tmp_path / "run.json")
    assert Run.read(tmp_path / "run.json") == run
    run_of(row(tbs=None)).write(tmp_path / "other.json")
    with pytest.raises(ValueError, match="a timed row lacks a value"):
        Run.read(tmp_path / "other.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": {}, "limit": null, "providers": {}, "rows": [{"x": 1}]}'])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"other\.json must be a JSON file that `blockattn bench --json` wrote"):
        Run.read(path)


def test_speedups_are_rows_a_second_over_the_baseline():
    rows = [row("flash2", ms=4.0), row(ms=2.0), row("sdpa-flash", rows=50, ms=4.0), row("flash2", direction="both", ms=9.0)]
    rows += [row("flex", status="failed"), row("sdpa-math", direction="backward")]
    assert [found.speedup for found in with_speedups(rows)] == [1.0, 2.0, 0.5, 1.0, None, None]
    layers = [row(name, operation="layer", ms=ms) for name, ms in (("blockattn-layer", 2.0), ("flash2-compiled-layer", 3.0))]
    assert [found.speedup for found in with_speedups([*rows, *layers])][6:] == [1.5, 1.0]


def test_a_fallen_share_is_found_and_others_are_not():
    others = row("flash2", share=0.5), row("flex", status="absent")
    base = run_of(row(share=0.9), row(share=0.8, direction="backward"), *others)
    same = run_of(row(share=0.875), row(share=0.9, direction="backward"), row("flash2", share=0.1))
    pairs = compared(same, base)
    assert len(pairs) == 2
    assert fallen(pairs, 0.03) == []
    assert fallen(pairs, 0.02) == ["W blockattn-triton forward: 0.875 of the limit, was 0.900"]


def test_what_is_wrong_now_has_fallen_and_what_was_not_asked_for_has_not():
    base = run_of(row(), row(direction="backward"))
    now = run_of(row(status="wrong", reason="o: 1 of 2 values are not finite"))
    (line,) = fallen(compared(now, base), 0.03)
    assert line == "W blockattn-triton forward: wrong (o: 1 of 2 values are not finite), was 0.900 of the limit"


@pytest.mark.parametrize("change", ["spec", "device", "trusted", "share"])
def test_runs_that_cannot_be_compared_are_refused(change):
    base, now = run_of(row()), run_of(row())
    if change == "spec":
        now = run_of(dataclasses.replace(row(), spec="B2"))
    elif change == "device":
        now = dataclasses.replace(now, machine={"device": "Y"})
    elif change == "trusted":
        now = dataclasses.replace(now, limit={"forward": 4.4, "backward": 4.1, "trusted": False})
    else:
        base = run_of(row(share=None))
    with pytest.raises(ValueError, match=r"nothing was compared|nothing to compare|same device|not trusted"):
        compared(now, base)


@pytest.mark.parametrize(
    "change",
    [
        dict(machine={}), dict(machine={"device": 3}), dict(limit={"forward": 4.4}), dict(limit={"forward": "x"}),
        dict(rows=(row(ms="1"),)), dict(rows=(row(direction="up"),)), dict(rows=(row(ms=0),)), dict(rows=(row(rows=None),)),
        dict(rows=(row(tbs=float("inf")),)), dict(providers=["flash2"]),
    ],
)  # fmt: skip
def test_values_that_a_run_never_holds_are_refused(tmp_path, change):
    run = dataclasses.replace(run_of(row()), **change)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(dataclasses.asdict(run)))
    with pytest.raises(ValueError, match=r"run\.json must be a JSON file that `blockattn bench --json` wrote"):
        Run.read(path)
