"""`blockattn bench` and `blockattn accuracy` from the command line, on a CPU."""

import json

import pytest
import torch

from blockattn import cli
from blockattn.bench import command, measure, timer
from blockattn.bench.providers import all_providers
from blockattn.bench.result import BASELINES, Run

SMALL = ["--workload", "B2,H2,D16,L70,block64", "--provider", "blockattn-torch", "--provider", "flash2"]


@pytest.fixture(autouse=True)
def quick_and_without_a_gpu(monkeypatch):
    monkeypatch.setattr(measure, "ROUNDS", 2)
    monkeypatch.setattr(timer, "CPU_MS", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_bench_prints_writes_and_reports(tmp_path, capsys):
    code = cli.main(["bench", *SMALL, "--json", str(tmp_path / "run.json"), "--report", str(tmp_path / "report")])
    out = capsys.readouterr().out
    assert code == 0
    assert f"wrote {tmp_path / 'run.json'}" in out
    assert "No GPU: small sizes on the CPU. These figures say nothing about any GPU" in out
    assert "B2,L70,fill1,H2,Hk2,D16,block64" in out
    assert "absent: flash2: needs an NVIDIA GPU" in out
    assert "of limit" not in out
    values = json.loads((tmp_path / "run.json").read_text())
    assert values["limit"] is None
    assert values["machine"]["device"].startswith("CPU")
    assert {"torch", "triton", "python", "commit", "blockattn"} <= set(values["machine"])
    assert {row["provider"] for row in values["rows"]} == {"blockattn-torch", "flash2"}
    assert (tmp_path / "report" / "report.html").exists()


def test_rotary_and_a_layer_are_added(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    path = tmp_path / "run.json"
    arguments = ["--workload", "B2,H2,D16,L70,block64", "--direction", "fwd", "--rotary", "--layer", "--json", str(path)]
    assert cli.main(["bench", *arguments]) == 0
    run = Run.read(path)
    asked = {operation: {provider.name for provider in all_providers(operation)} for operation in BASELINES}
    assert {place.operation: {row.provider for row in rows} for place, rows in run.by_place()} == asked
    assert set(run.providers) == set.union(*asked.values())
    out = capsys.readouterr().out
    assert "B2,H2,D16,L70,block64, rotary" in out
    assert "B2,H2,D16,L70,block64, layer" in out


def test_names_choose_what_is_measured_of_every_operation(tmp_path, capsys):
    path = tmp_path / "run.json"
    names = ["--provider", "blockattn-layer", "--provider", "flash2-compiled-layer", "--provider", "blockattn-fused"]
    arguments = ["--workload", "B2,H2,D16,L70,block64", "--direction", "fwd+bwd", "--layer", *names]
    assert cli.main(["bench", *arguments, "--json", str(path)]) == 0
    run = Run.read(path)
    found = [(row.operation, row.provider, row.status, row.tbs) for row in run.rows]
    assert found == [("layer", "blockattn-layer", "timed", None), ("layer", "flash2-compiled-layer", "absent", None)]
    out = capsys.readouterr().out
    assert "TFLOP/s" in out
    assert "TB/s" not in out
    assert cli.main(["bench", *arguments, "--rotary", "--json", str(path)]) == 0
    assert {row.operation for row in Run.read(path).rows} == {"rotary", "layer"}
    with pytest.raises(SystemExit, match="provider must be one that computes attention, got blockattn-fused"):
        cli.main(["bench", "--provider", "blockattn-fused"])
    with pytest.raises(SystemExit, match="provider must be one that computes attention, got blockattn-layer"):
        cli.main(["accuracy", "--provider", "blockattn-layer"])


def test_one_direction_and_lengths_from_a_file(tmp_path, capsys):
    (tmp_path / "lengths.txt").write_text("5\n70\n")
    arguments = ["--lengths", str(tmp_path / "lengths.txt"), "--direction", "bwd", "--provider", "blockattn-torch"]
    assert cli.main(["bench", *arguments]) == 0
    out = capsys.readouterr().out
    assert "lengths.txt   B2 given,75 rows," in out
    assert "bwd" in out
    assert "fwd" not in out


def with_shares(path, share):
    """As a run on a GPU would have written it."""
    values = json.loads(path.read_text())
    values["limit"] = {"forward": 4.4, "backward": 4.1, "trusted": True, "datasheet_tbs": None}
    for row in values["rows"]:
        row["share"] = share if row["status"] == "timed" else None
    path.write_text(json.dumps(values))
    return str(path)


def test_a_fallen_share_exits_with_1(tmp_path, capsys):
    base, new = tmp_path / "base.json", tmp_path / "new.json"
    for path in (base, new):
        cli.main(["bench", *SMALL, "--direction", "fwd", "--json", str(path)])
    old = with_shares(base, 0.9)
    capsys.readouterr()
    assert cli.main(["bench", "--from", with_shares(new, 0.89), "--base", old]) == 0
    assert "0 of 1 shares of ours fell by more than 0.03" in capsys.readouterr().out
    assert cli.main(["bench", "--from", with_shares(new, 0.8), "--base", old]) == 1
    assert "fell: " in capsys.readouterr().out
    assert cli.main(["bench", "--from", str(new), "--base", old, "--tolerance", "0.2"]) == 0
    with pytest.raises(SystemExit, match="nothing to compare with"):
        cli.main(["bench", "--from", str(new), "--base", with_shares(base, None)])


def test_a_base_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    base = tmp_path / "base.json"
    cli.main(["bench", *SMALL, "--direction", "fwd", "--json", str(base)])
    monkeypatch.setattr(measure, "measure", None)
    with pytest.raises(SystemExit, match="nothing to compare with"):
        cli.main(["bench", *SMALL, "--base", str(base)])
    values = json.loads(base.read_text())
    values["machine"]["device"] = "another GPU"
    base.write_text(json.dumps(values))
    with pytest.raises(SystemExit, match=r"--base must be of the same device CPU, .*, got another GPU"):
        cli.main(["bench", *SMALL, "--base", str(base)])


def test_small_sizes_are_small_on_a_cpu(tmp_path, capsys):
    path = tmp_path / "run.json"
    (tmp_path / "lengths.txt").write_text("100000\n5\n")
    arguments = ["--lengths", str(tmp_path / "lengths.txt"), "--direction", "fwd", "--provider", "blockattn-torch"]
    cli.main(["bench", *arguments, "--json", str(path)])
    assert "is made smaller to fit this machine" in capsys.readouterr().out
    assert [row["rows"] for row in json.loads(path.read_text())["rows"]] == [8192]


def test_what_was_measured_before_an_interruption_is_written(tmp_path, monkeypatch, capsys):
    path, right = tmp_path / "run.json", measure.measure

    def interrupted(workload, *others):
        if workload.name == "B2,D16,L70":
            raise KeyboardInterrupt
        return right(workload, *others)

    monkeypatch.setattr(measure, "measure", interrupted)
    assert cli.main(["bench", *SMALL, "--workload", "B2,D16,L70", "--json", str(path)]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert {row["spec"] for row in json.loads(path.read_text())["rows"]} == {"B2,L70,fill1,H2,Hk2,D16,block64"}


def test_a_lost_gpu_ends_the_run_with_what_was_measured(tmp_path, monkeypatch):
    path, right = tmp_path / "run.json", measure.measure

    def broken(workload, *others):
        if workload.name == "B2,D16,L70":
            raise measure.LostDevice("sdpa-math: RuntimeError: illegal memory access")
        return right(workload, *others)

    monkeypatch.setattr(measure, "measure", broken)
    with pytest.raises(SystemExit, match=r"B2,D16,L70: sdpa-math: .*illegal memory access.* without that provider"):
        cli.main(["bench", *SMALL, "--workload", "B2,D16,L70", "--json", str(path)])
    assert {row["spec"] for row in json.loads(path.read_text())["rows"]} == {"B2,L70,fill1,H2,Hk2,D16,block64"}


@pytest.mark.parametrize("width", [70, 100, 200])
def test_digits_are_not_cut_in_a_narrow_terminal(tmp_path, capsys, monkeypatch, width):
    path = tmp_path / "run.json"
    cli.main(["bench", *SMALL, "--direction", "fwd", "--json", str(path)])
    with_shares(path, 0.9876)
    monkeypatch.setattr(command, "WIDTH", width)
    capsys.readouterr()
    cli.main(["bench", "--from", str(path)])
    out = capsys.readouterr().out
    assert "0.988" in out
    assert "…" not in out
    assert ("kept MiB" in out) == (width >= 110)


def test_the_help_names_every_provider():
    names = {operation: [provider.name for provider in all_providers(operation)] for operation in BASELINES}
    assert {operation: ", ".join(some) for operation, some in names.items()} == command.PROVIDER_NAMES


def test_an_earlier_run_is_printed_and_reported_again(tmp_path, capsys, monkeypatch):
    path = tmp_path / "run.json"
    cli.main(["bench", *SMALL, "--json", str(path)])
    first = capsys.readouterr().out
    monkeypatch.setattr(measure, "measure", None)
    copy = tmp_path / "folders that" / "are made" / "run.json"
    assert cli.main(["bench", "--from", str(path), "--report", str(tmp_path / "report"), "--json", str(copy)]) == 0
    again = capsys.readouterr().out
    assert again.startswith(first[: first.index("wrote ")].strip())
    assert f"wrote {copy}" in again
    assert copy.read_text() == path.read_text()
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "W129"], "workload must be one of W128"),
        (["--provider", "flash3"], "provider must be one of"),
        (["--direction", "sideways"], "direction must be of fwd, bwd, fwd.bwd, got 'sideways'"),
        (["--lengths", "nowhere.txt"], "nowhere.txt"),
        (["--tolerance", "nan"], "--tolerance must be"),
        (["--tolerance", "-1"], "--tolerance must be"),
        (["--from", "x.json", "--workload", "W64", "--rotary"], "--from measures nothing: it takes no --workload, --rotary"),
        *[
            (["--from", "x.json", *given], f"--from measures nothing: it takes no {given[0]}$")
            for given in (["--rotary"], ["--layer"], ["--direction", "fwd"], ["--commit", "x"], ["--lengths", "x"])
        ],
        (["--json", "."], "Is a directory"),
        (["--report", "/dev/null"], "exists|Not a directory"),
        (["--workload", "B1,L1,fill0.2"], "must have 1 to"),
        (["--workload", "B99999999999"], "B must be at most"),
        (["--workload", "B2,B3"], "comes twice"),
        (["--base", "nowhere.json"], "nowhere.json"),
        (["--from", "nowhere.json"], "nowhere.json"),
        (["--workload", "B2,H3,Hk2,D16,L70"], "H must be a multiple of Hk, got 3 and 2"),
        (["--workload", "B2,D20,L70"], "D must be a multiple of 8"),
        (["--workload", "B2,D16,L70,block48"], "block must be one of"),
    ],
)
def test_wrong_input_ends_with_its_message(arguments, message):
    with pytest.raises(SystemExit, match=message):
        cli.main(["bench", *arguments])


def test_accuracy(tmp_path, capsys):
    arguments = ["--workload", "B2,H2,D16,L70", "--seeds", "2", "--provider", "blockattn-torch", "--provider", "sdpa-flash"]
    assert cli.main(["accuracy", *arguments, "--json", str(tmp_path / "accuracy.json")]) == 0
    out = capsys.readouterr().out
    assert "RMS" in out
    assert "largest" in out
    values = json.loads((tmp_path / "accuracy.json").read_text())
    assert values["seeds"] == 2
    assert set(values["errors"][0]["rms"]) == {"o", "dq", "dk", "dv"}
    assert f"wrote {tmp_path / 'accuracy.json'}" in out


@pytest.mark.parametrize("seeds", ["0", "-1"])
def test_wrong_seeds(seeds):
    with pytest.raises(SystemExit, match="--seeds must be at least 1"):
        cli.main(["accuracy", "--seeds", seeds])


def test_every_workload_of_the_cpu_is_known():
    assert [command.parse(name).name for name in command.CPU_WORKLOADS] == list(command.CPU_WORKLOADS)
