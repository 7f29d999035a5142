"""Truth tables of ways of working together: meetings, several producers, relays, tiles of other ranks and types."""

import pytest
from kernels import patterns as kernels
from verdicts import RIGHT, cases, check, wrong

from tlxsim.findings import Code

DEADLOCK, RACE, UNINITIALISED = Code.DEADLOCK, Code.RACE, Code.UNINITIALISED
BYTES_AWAY = (DEADLOCK, RACE, Code.IN_FLIGHT, Code.PENDING)  # what wrong bytes lead to
OUT_OF_STEP = (RACE, Code.EARLY_WAIT, Code.LATE_WAIT, DEADLOCK, Code.OVER_ARRIVAL)


def meeting(COUNT, SECOND):
    if COUNT == 3:
        return wrong(DEADLOCK)
    if COUNT == 1:
        return wrong(one_of=OUT_OF_STEP, may=(UNINITIALISED,))
    return RIGHT if SECOND else wrong(RACE, may=OUT_OF_STEP)


def producers(NB, BOTH_WAIT, COUNT):
    return RIGHT if BOTH_WAIT and COUNT == 2 else wrong(one_of=OUT_OF_STEP, may=(UNINITIALISED,))


def relay(NB, FENCE, FREED_BY):
    """The loader overwrites what the second has written, so the fence is for its copies as well."""
    early = FREED_BY == 1
    faults = [code for there, code in ((early, RACE), (not FENCE, Code.MISSING_FENCE)) if there]
    return wrong(*faults, may=OUT_OF_STEP if early else ()) if faults else RIGHT


def rank_3(BYTES, WAITS):
    if BYTES == 2 * 32 * 64 * 4:
        return RIGHT if WAITS else wrong(RACE, may=(Code.IN_FLIGHT,))
    return wrong(Code.BYTES, may=BYTES_AWAY) if WAITS else wrong(RACE, Code.PENDING, may=(Code.BYTES, Code.IN_FLIGHT))


def bytes_of_types(BYTES, DTYPE):
    return RIGHT if DTYPE.primitive_bitwidth == 8 * BYTES else wrong(Code.BYTES, may=BYTES_AWAY)


FORMULAS = {f.__name__: f for f in (meeting, producers, relay, rank_3, bytes_of_types)}


@pytest.mark.parametrize(("hazard", "arch", "switches"), cases(kernels))
def test_truth_table(hazard, arch, switches):
    check(hazard, arch, switches, FORMULAS[hazard.name](**switches))
