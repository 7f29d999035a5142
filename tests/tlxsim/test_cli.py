"""`tlxsim run`, `replay`, `codes` and `info`."""

import json
import subprocess
import sys

import pytest

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
    replayed = tlxsim("replay", "--seed", "0", script, "100")
    assert replayed.returncode == 1
    assert "schedules random:0" in replayed.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing.py"], "script must be a file, got nothing.py"),
        (["run", "--arch", "sm_1"], "arch must be one of sm_80"),
        (["run", "--schedules", "0"], "schedules must be at least 1"),
    ],
)
def test_bad_input_is_one_line(script, arguments, message):
    found = tlxsim(*arguments, *([] if arguments[-1].endswith(".py") else [script, "128"]))
    assert found.returncode == 2
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_codes_and_info():
    codes = tlxsim("codes").stdout
    assert all(f"TLX{n:03d}" in codes for n in range(1, 21))
    assert "plain Triton kernels" in tlxsim("info").stdout
