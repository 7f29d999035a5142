"""Truth tables of matrix products: when operands may be overwritten, results read, accumulators used again."""

import pytest
from kernels import products as kernels
from verdicts import RIGHT, cases, check, right_or, wrong

from tlxsim.findings import Code

DEADLOCK, RACE, EARLY_WAIT, UNINITIALISED = Code.DEADLOCK, Code.RACE, Code.EARLY_WAIT, Code.UNINITIALISED


def wgmma_release(RELEASE, DRAINS):
    released_early = RELEASE in (kernels.BEFORE_THE_WAIT, kernels.THIS_ONE)
    in_flight = RELEASE in (kernels.ONE_BEHIND, kernels.THIS_ONE) and not DRAINS
    return right_or((released_early, RACE), (in_flight, Code.EARLY_USE))


def wgmma_overwrite(WAITS, FENCE):
    """Inside a task the compiler adds the fence."""
    return right_or((not WAITS, RACE))


def fence(FENCE):
    return right_or((FENCE not in (kernels.BETWEEN, kernels.AFTER_WAIT), Code.MISSING_FENCE))


def tcgen05_release(RELEASE, DONE, FIRST_ADDS, READS):
    return right_or((RELEASE == 0 or DONE == 0 or not READS, RACE), (FIRST_ADDS, UNINITIALISED))


def tmem_ring(NB, MMA_WAITS, READER_WAITS, RELEASE):
    if MMA_WAITS and RELEASE == 0:
        return wrong(DEADLOCK) if READER_WAITS else wrong(DEADLOCK, RACE)
    if MMA_WAITS and READER_WAITS:
        return right_or((RELEASE == 2, RACE))
    return wrong(one_of=(RACE, DEADLOCK), may=(EARLY_WAIT, Code.LATE_WAIT))


FORMULAS = dict(
    wgmma_release=wgmma_release, wgmma_overwrite=wgmma_overwrite, wgmma_fence=fence, tcgen05_fence=fence,
    tcgen05_release=tcgen05_release, tmem_ring=tmem_ring,
)  # fmt: skip


@pytest.mark.parametrize(("hazard", "arch", "switches"), cases(kernels))
def test_truth_table(hazard, arch, switches):
    check(hazard, arch, switches, FORMULAS[hazard.name](**switches))


def test_right_is_among_the_tables():
    """A table without a right combination would pass with a simulator that refuses everything."""
    for hazard in kernels.HAZARDS:
        assert RIGHT in [FORMULAS[hazard.name](**switches) for switches in hazard.combinations()]
