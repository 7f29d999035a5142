"""`tlxsim.simulate`: schedules, memory between them, the report, and what it leaves behind."""

import json
import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl

import tlxsim
from tlxsim.session import Options

tlx = pytest.importorskip("triton.language.extra.tlx")


@triton.jit
def double(x_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 2 * tl.load(x_ptr + at))


@triton.jit
def handoff(x_ptr, out_ptr, N: tl.constexpr, WAITS: tl.constexpr):
    smem = tlx.local_alloc((N,), tl.float32, 1)
    full = tlx.alloc_barriers(1, arrive_count=1)
    at = tl.arange(0, N)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tlx.local_store(smem[0], tl.load(x_ptr + at))
            tlx.barrier_arrive(full[0], 1)
        with tlx.async_task(num_warps=4):
            if WAITS:
                tlx.barrier_wait(full[0], 0)
            tl.store(out_ptr + at, tlx.local_load(smem[0]))


def run_handoff(waits, **options):
    x, out = torch.randn(64), torch.empty(64)
    with tlxsim.simulate(**options) as sim:
        handoff[(1,)](x, out, N=64, WAITS=waits)
    return sim, x, out


def test_every_schedule_starts_from_the_same_memory():
    x = torch.arange(128.0)
    with tlxsim.simulate(schedules=5) as sim:
        double[(2,)](x, BLOCK=64)
    sim.report.raise_if_errors()
    assert torch.equal(x, 2 * torch.arange(128.0))
    (launch,) = sim.report.launches
    assert launch["schedules"] == ["eager", "late", "random:0", "random:1", "random:2"]
    assert launch["grid"] == [2, 1, 1]


def test_a_race_is_found_in_every_schedule_and_stands_once():
    sim, *_ = run_handoff(False, schedules=6)
    races = [finding for finding in sim.report.findings if finding.code is tlxsim.Code.RACE]
    assert {name for finding in races for name in finding.schedules} == set(Options(schedules=6).names())
    assert len(races) == 2  # the read after the write, and the write after the read
    first = races[0]
    assert [p.source for p in first.places] == [
        "tl.store(out_ptr + at, tlx.local_load(smem[0]))",
        "tlx.local_store(smem[0], tl.load(x_ptr + at))",
    ]
    assert "smem[0]" in first.message
    with pytest.raises(tlxsim.SimulationError, match="TLX002 race"):
        sim.report.raise_if_errors()
    found = json.loads(sim.report.to_json())["findings"]
    assert found[0]["code"] == "TLX002"


def test_a_schedule_is_replayed_by_its_name():
    texts = [run_handoff(False, schedules=["random:3"])[0].report.text() for _ in range(2)]
    assert texts[0] == texts[1]


def test_fifty_seeds_of_a_right_kernel_find_nothing():
    sim, x, out = run_handoff(True, schedules=52, budgets=False)
    assert not sim.report.findings
    assert torch.equal(out, x)


def test_the_device_is_as_it_was_afterwards():
    from triton.runtime.jit import JITFunction

    before = JITFunction.run
    run_handoff(True, schedules=1)
    assert JITFunction.run is before
    with pytest.raises(ValueError, match="boom"), tlxsim.simulate():
        raise ValueError("boom")
    assert JITFunction.run is before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(arch="hopper"), "arch must be like \"sm_90\", got 'hopper'"),
        (dict(level="ptx"), "level must be one of ttir, fenced, got 'ptx'"),
        (dict(schedules=0), "schedules must be at least 1, got 0"),
        (dict(schedules=["fast"]), 'a schedule must be "eager", "late" or "random:N", got \'fast\''),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match="must be") as error, tlxsim.simulate(**options):
        pass
    assert message in str(error.value)


@triton.jit
def per_thread(out_ptr, N: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, N), tlx.thread_id(0))


def test_what_is_not_modelled_is_refused_by_name_and_line():
    with pytest.raises(tlxsim.Unsupported, match=r"gpu.thread_id at test_session.py:\d+"), tlxsim.simulate():
        per_thread[(1,)](torch.zeros(64, dtype=torch.int32), N=64)


def test_importing_the_package_imports_neither_torch_nor_triton():
    code = "import sys, tlxsim; print(sorted({'torch', 'triton', 'numpy', 'blockattn'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
