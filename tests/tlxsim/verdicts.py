"""What a truth table says of a combination of switches, and the check that the simulator says the same."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import pytest
from kernels.hazard import Hazard, Launch, label

import tlxsim
from tlxsim import Code, Report, Severity

SCHEDULES = ("eager", "late", "random:0", "random:1")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is reported: all of `must`, some of `one_of`, and beside them nothing but `may`; `warns` are all the warnings.

    A wrong combination is reported in every schedule.
    """

    must: frozenset[Code] = frozenset()
    one_of: frozenset[Code] = frozenset()
    may: frozenset[Code] = frozenset()
    warns: frozenset[Code] | None = None

    @property
    def right(self) -> bool:
        return not (self.must or self.one_of or self.warns)


RIGHT = Verdict(warns=frozenset())


def wrong(*must: Code, one_of: tuple[Code, ...] = (), may: tuple[Code, ...] = ()) -> Verdict:
    return Verdict(frozenset(must), frozenset(one_of), frozenset(may))


def warned(*codes: Code) -> Verdict:
    return Verdict(warns=frozenset(codes))


def right_or(*faults: tuple[Any, Code], warns: tuple[Any, Code] | None = None) -> Verdict:
    """Each fault, and a warning, as (whether it is there, its code)."""
    codes = [code for there, code in faults if there]
    expected = None if warns is None else frozenset([warns[1]] if warns[0] else [])
    return dataclasses.replace(wrong(*codes), warns=expected) if codes or expected else RIGHT


def cases(module: ModuleType) -> list[Any]:
    """Every combination of every kernel of a module, for each GPU that it compiles for."""
    return [
        pytest.param(hazard, arch, switches, id=f"{hazard.name}-{arch}-{label(switches)}")
        for hazard in module.HAZARDS
        for switches in hazard.combinations()
        for arch in hazard.archs
    ]


def simulated(hazard: Hazard, arch: str, switches: dict, **options: Any) -> tuple[Launch, Report]:
    launch = hazard.launch("cpu", switches)
    options = dict(schedules=SCHEDULES, budgets=False, trace=False) | options
    with tlxsim.simulate(arch, **options) as sim:
        hazard.start(launch, switches)
    return launch, sim.report


def check(hazard: Hazard, arch: str, switches: dict, verdict: Verdict, **options: Any) -> None:
    """Simulate a combination and compare what is reported with what its truth table says."""
    launch, report = simulated(hazard, arch, switches, **options)
    found = {f.code for f in report.errors}
    text = report.text()
    assert verdict.must <= found, text
    assert not verdict.one_of or verdict.one_of & found, text
    assert found <= verdict.must | verdict.one_of | verdict.may, text
    if verdict.warns is not None:
        assert {f.code for f in report.findings if f.severity is Severity.WARNING} == verdict.warns, text
    if verdict.right:
        assert launch.right(), f"no finding, but the output is off by {launch.error()}"
    elif not options.get("budgets"):
        silent = set(report.launches[0]["schedules"]) - {name for f in report.findings for name in f.schedules}
        assert not silent, f"nothing reported in {silent}\n{text}"
