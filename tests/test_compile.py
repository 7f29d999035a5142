"""The kernels compile for every supported GPU without one, do not spill, and fit the chip's shared memory."""

import json
import os
import subprocess
import sys

import pytest

from backends import HAS_TRITON

ARCHITECTURES = ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "gfx942")

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="needs triton")


def python(*arguments: str) -> subprocess.CompletedProcess:
    """A process in which Triton compiles rather than interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_variants_fit(arch, tmp_path):
    report = tmp_path / "report.json"
    done = python("-m", "blockattn.kernels.compile", "--arch", arch, "--json", str(report))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    rows = json.loads(report.read_text())
    assert 60 <= len(rows) <= 80
    assert all(row["faults"] == [] for row in rows)
    if arch.startswith("sm_"):
        assert all(row["registers"] > 0 for row in rows)


def test_the_variants_take_every_value_of_every_flag():
    code = """
import dataclasses, json
from blockattn.kernels.compile import VARIANTS
print(json.dumps([{k: str(v) for k, v in dataclasses.asdict(v).items()} for v in VARIANTS]))
"""
    done = python("-c", code)
    variants = json.loads(done.stdout)
    assert len(variants) <= 40
    for direction in ("forward", "backward"):
        some = [v for v in variants if v["direction"] == direction]
        for flag in ("causal", "has_lse", "wide"):
            assert {v[flag] for v in some} == {"True", "False"}
        assert {v["block_size"] for v in some} == {"16", "32", "64", "128"}
        assert {v["dtype"] for v in some} == {"torch.bfloat16", "torch.float16", "torch.float32"}
        assert {1, 2, 4} <= {int(v["group"]) for v in some}


def test_the_rotary_variants_take_every_value_of_every_flag():
    code = """
import dataclasses, json
from blockattn.kernels.compile import ROTARY_VARIANTS
print(json.dumps([dataclasses.asdict(v) | {"dtype": str(v.dtype)} for v in ROTARY_VARIANTS]))
"""
    variants = json.loads(python("-c", code).stdout)
    assert len(variants) <= 40
    for direction in ("forward", "backward"):
        some = [v for v in variants if v["direction"] == direction]
        for flag in ("causal", "has_lse", "wide", "halves", "rotate_v", "per_token", "has_starts", "full_table"):
            assert {v[flag] for v in some} == {True, False}
        assert {v["block_size"] for v in some} == {16, 32, 64, 128}
        assert {True, False} == {v["dim"] < v["head_dim"] for v in some}
        assert {1, 2, 4} <= {v["group"] for v in some}


def test_a_spill_or_too_much_shared_memory_is_a_fault():
    code = """
from blockattn.kernels.compile import Resources
print(Resources("v", "sm_86", 4, 99 << 10).faults())
print(Resources("v", "sm_86", 4, (99 << 10) + 1).faults())
print(Resources("v", "sm_90", 4, 0, 255, 8, 4).faults())
"""
    done = python("-c", code)
    assert done.stdout.splitlines() == [
        "[]", "['101377 bytes of shared memory, 101376 are there']", "['4 bytes spilled']",
    ]  # fmt: skip
