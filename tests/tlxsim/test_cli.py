"""`tlxsim run`, `replay`, `codes` and `info`."""

import json
import subprocess
import sys
import time

import pytest

from tlxsim import cli

SCRIPT = """
import sys, torch, triton, triton.language as tl

@triton.jit
def copy(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))

x = torch.randn(128, device="cuda")
out = torch.empty(int(sys.argv[1]), device="cuda")
copy[(2,)](x, out, BLOCK=64)
print("equal", torch.equal(out[:64], x[:64]))
exec(" ".join(sys.argv[2:]))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def tlxsim(*arguments):
    return subprocess.run([sys.executable, "-m", "tlxsim", *arguments], capture_output=True, text=True, timeout=120)


def test_a_right_script_ends_with_0(script):
    found = tlxsim("run", "--schedules", "3", script, "128")
    assert found.returncode == 0, found.stderr
    assert "equal True" in found.stdout
    assert "simulated copy (2, 1, 1); 0 errors" in found.stdout


def test_a_wrong_script_ends_with_1_and_writes_its_findings(script, tmp_path):
    path = tmp_path / "found.json"
    found = tlxsim("run", "--schedules", "3", "--json", str(path), script, "100")
    assert found.returncode == 1
    assert "TLX008" in found.stdout
    assert "script.py:7" in found.stdout
    (fault,) = json.loads(path.read_text())["findings"]
    assert (fault["code"], fault["severity"], fault["schedules"]) == ("TLX008", "error", ["eager", "late", "random:0"])
    again = found.stdout.rpartition("to see it again: ")[2].split()
    assert again == ["tlxsim", "replay", "--seed", "0", "--arch", "sm_90", "--level", "ttir", script, "100"]
    replayed = tlxsim(*again[1:])
    assert replayed.returncode == 1
    assert "schedules random:0" in replayed.stdout
    assert "to see it again" not in replayed.stdout


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("raise RuntimeError('by itself')", "RuntimeError: by itself"),
        ("assert x.is_cpu, 'not equal'", "AssertionError: not equal"),
        ("sys.exit(3)", "tlxsim: the script has ended with 3"),
        ("copy[(1,)](x, out, BLOCK=60)", "the compiler refuses it"),
    ],
)
def test_findings_are_told_however_a_script_ends(script, ending, message):
    right = tlxsim("run", "--schedules", "1", script, "128", ending)
    assert (right.returncode, "simulated copy (2, 1, 1); 0 errors" in right.stdout) == (2, True)
    assert message in right.stderr
    assert "runpy" not in right.stderr
    assert "site-packages" not in right.stderr
    wrong = tlxsim("run", "--schedules", "1", script, "100", ending)
    assert (wrong.returncode, "TLX008" in wrong.stdout) == (1, True)
    assert message in wrong.stderr


def test_a_script_may_end_itself(script):
    assert tlxsim("run", "--schedules", "1", script, "128", "sys.exit()").returncode == 0


def test_files_are_written(script, tmp_path):
    files = [tmp_path / name for name in ("trace.json", "picture.svg")]
    found = tlxsim("run", "--trace", str(files[0]), "--picture", str(files[1]), "--schedules", "1", script, "128")
    assert found.returncode == 0, found.stderr
    assert "traceEvents" in files[0].read_text()
    assert files[1].read_text().startswith("<?xml")


def test_nothing_is_launched(tmp_path):
    path = tmp_path / "nothing.py"
    path.write_text("print('here')")
    assert tlxsim("run", str(path)).stdout.splitlines() == ["here", "simulated no kernel; 0 errors, 0 warnings and notes"]
    found = tlxsim("run", "--trace", str(tmp_path / "t.json"), str(path))
    assert (found.returncode, found.stderr) == (2, "tlxsim: no launch has been traced\n")


def test_a_long_launch_is_told(capsys, monkeypatch):
    monkeypatch.setattr(cli, "PATIENCE", 0.01)
    cli._watched(lambda kernel, seconds: time.sleep(seconds))(test_codes_and_info, 0.1)
    assert "launch 1, of test_codes_and_info, is being simulated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing.py"], "script must be a file, got nothing.py"),
        (["run", "--arch", "sm_1"], "arch must be one of sm_80"),
        (["run", "--schedules", "0"], "schedules must be at least 1"),
        (["run", "--json", "/nowhere/f.json"], "--json must be a file in a directory that exists, got /nowhere/f.json"),
        (["run", "--trace", "/"], "--trace must be a file in a directory that exists, got /"),
        (["run", "--picture", "p.gif"], "--picture must end in .png, .svg, .html, got p.gif"),
        (["replay", "--seed", "-1"], "a schedule must be"),
    ],
)
def test_bad_input_is_one_line(script, arguments, message):
    found = tlxsim(*arguments, *([] if arguments[-1].endswith(".py") else [script, "128"]))
    assert found.returncode == 2
    assert message in found.stderr
    assert found.stderr.count("\n") == 1


def test_codes_and_info():
    codes = tlxsim("codes").stdout
    assert all(f"TLX{n:03d}" in codes for n in range(1, 21))
    assert "plain Triton kernels" in tlxsim("info").stdout
