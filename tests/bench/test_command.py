"""`blockattn bench` and `blockattn accuracy` from the command line, on a CPU."""

import json

import pytest
import torch

from blockattn import cli
from blockattn.bench import measure, timer

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


def test_one_direction_and_lengths_from_a_file(tmp_path, capsys):
    (tmp_path / "lengths.txt").write_text("5\n70\n")
    arguments = ["--lengths", str(tmp_path / "lengths.txt"), "--direction", "bwd", "--provider", "blockattn-torch"]
    assert cli.main(["bench", *arguments]) == 0
    out = capsys.readouterr().out
    assert "lengths.txt   B2 given" in out
    assert "bwd" in out
    assert "fwd" not in out


def test_a_fallen_share_exits_with_1(tmp_path, capsys):
    path = tmp_path / "base.json"
    cli.main(["bench", *SMALL, "--direction", "fwd", "--json", str(path)])
    assert cli.main(["bench", *SMALL, "--direction", "fwd", "--base", str(path)]) == 0
    values = json.loads(path.read_text())
    values["rows"][0]["share"] = 0.9  # as on a GPU
    path.write_text(json.dumps(values))
    capsys.readouterr()
    assert cli.main(["bench", *SMALL, "--direction", "fwd", "--base", str(path)]) == 1
    assert "fell: " in capsys.readouterr().out


def test_an_earlier_run_is_printed_and_reported_again(tmp_path, capsys, monkeypatch):
    path = tmp_path / "run.json"
    cli.main(["bench", *SMALL, "--json", str(path)])
    first = capsys.readouterr().out
    monkeypatch.setattr(measure, "measure", None)
    assert cli.main(["bench", "--from", str(path), "--report", str(tmp_path / "report")]) == 0
    again = capsys.readouterr().out
    assert again.startswith(first.strip())
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "W129"], "workload must be one of W128"),
        (["--provider", "flash3"], "provider must be one of"),
        (["--direction", "sideways"], "direction must be of fwd, bwd, fwd.bwd, got 'sideways'"),
        (["--lengths", "nowhere.txt"], "nowhere.txt"),
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


def test_every_workload_of_the_cpu_is_known():
    from blockattn.bench import command

    assert [command.parse(name).name for name in command.CPU_WORKLOADS] == list(command.CPU_WORKLOADS)
