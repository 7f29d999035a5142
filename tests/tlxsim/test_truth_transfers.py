"""Truth tables of TMA, cp.async and the proxy fence."""

import pytest
from kernels import transfers as kernels
from verdicts import RIGHT, cases, check, right_or, wrong

from tlxsim.findings import Code

DEADLOCK, RACE, EARLY_WAIT, UNINITIALISED = Code.DEADLOCK, Code.RACE, Code.EARLY_WAIT, Code.UNINITIALISED
OVER_ARRIVAL, PENDING, IN_FLIGHT, LATE_WAIT = Code.OVER_ARRIVAL, Code.PENDING, Code.IN_FLIGHT, Code.LATE_WAIT


def load_bytes(COPIES, BYTES):
    expected = COPIES * kernels.TILE_BYTES
    if expected == BYTES:
        return RIGHT
    if BYTES < 0:
        return wrong(DEADLOCK)  # nobody arrives
    consequences = (DEADLOCK, RACE, UNINITIALISED, PENDING, EARLY_WAIT, LATE_WAIT, OVER_ARRIVAL, IN_FLIGHT)
    return wrong(Code.BYTES, may=consequences)


def load_handoff(FULL_WAIT, EMPTY_WAIT, EMPTY_ARRIVE, EXPECT_FIRST):
    if EMPTY_WAIT and not EMPTY_ARRIVE:
        return wrong(DEADLOCK) if FULL_WAIT else wrong(DEADLOCK, RACE, may=(UNINITIALISED, EARLY_WAIT, LATE_WAIT))
    if FULL_WAIT and EMPTY_WAIT:
        return RIGHT
    return wrong(one_of=(RACE, OVER_ARRIVAL), may=(UNINITIALISED, EARLY_WAIT, LATE_WAIT, DEADLOCK, IN_FLIGHT))


def load_turns(NB, NC):
    """A consumer sees every phase of its buffers where each belongs to one of them."""
    consequences = (RACE, UNINITIALISED, LATE_WAIT, DEADLOCK, OVER_ARRIVAL, PENDING, IN_FLIGHT)
    return RIGHT if NB % NC == 0 else wrong(EARLY_WAIT, may=consequences)


def store_reuse(NB, PENDING, DRAINS):
    """The store before the last NB must have read its buffer."""
    return right_or((not 0 <= PENDING <= NB - 1, RACE), warns=(not DRAINS, IN_FLIGHT))


def pass_through(NB, STORE_WAIT, FREES):
    if not FREES:
        return wrong(DEADLOCK)
    return right_or((STORE_WAIT != 1, RACE))


def store_fence(NB, FENCE):
    return right_or((FENCE not in (kernels.BETWEEN, kernels.AFTER_WAIT), Code.MISSING_FENCE))


def async_groups(NB, PENDING, COMMITS):
    """NB - 1 groups are ahead, the oldest of them must have come."""
    return right_or((not (COMMITS and 0 <= PENDING <= NB - 2), RACE), (not COMMITS, IN_FLIGHT))


def async_handoff(GROUP_WAIT, EMPTY_WAIT):
    return RIGHT if GROUP_WAIT and EMPTY_WAIT else wrong(RACE, may=(DEADLOCK, EARLY_WAIT, LATE_WAIT, UNINITIALISED))


FORMULAS = {
    f.__name__: f
    for f in (load_bytes, load_handoff, load_turns, store_reuse, pass_through, store_fence, async_groups, async_handoff)
}


@pytest.mark.parametrize(("hazard", "arch", "switches"), cases(kernels))
def test_truth_table(hazard, arch, switches):
    check(hazard, arch, switches, FORMULAS[hazard.name](**switches))
