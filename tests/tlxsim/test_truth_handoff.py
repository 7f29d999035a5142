"""Truth tables of handoffs between tasks: waits, arrivals, phases, turns, counts, named barriers."""

import pytest
from kernels import handoff as kernels
from verdicts import RIGHT, cases, check, right_or, wrong

from tlxsim.findings import Code

DEADLOCK, RACE, EARLY_WAIT, UNINITIALISED = Code.DEADLOCK, Code.RACE, Code.EARLY_WAIT, Code.UNINITIALISED
OVER_ARRIVAL, NAMED_BARRIER, PENDING, LATE_WAIT = Code.OVER_ARRIVAL, Code.NAMED_BARRIER, Code.PENDING, Code.LATE_WAIT
OUT_OF_STEP = (RACE, EARLY_WAIT, LATE_WAIT, DEADLOCK)  # which of them shows depends on who is faster


def handoff(FULL_ARRIVE, FULL_WAIT, EMPTY_ARRIVE, EMPTY_WAIT):
    stuck = (FULL_WAIT and not FULL_ARRIVE) or (EMPTY_WAIT and not EMPTY_ARRIVE)
    if stuck:
        return wrong(DEADLOCK, may=(RACE, UNINITIALISED, EARLY_WAIT, LATE_WAIT))
    if FULL_WAIT and EMPTY_WAIT:
        return RIGHT
    return wrong(RACE, may=(UNINITIALISED, *OUT_OF_STEP))


def phases(PRODUCER_PHASE, PRODUCER_FLIPS, CONSUMER_PHASE, CONSUMER_FLIPS):
    flips = PRODUCER_FLIPS and CONSUMER_FLIPS
    if (PRODUCER_PHASE, CONSUMER_PHASE) == (1, 0):
        return RIGHT if flips else wrong(one_of=OUT_OF_STEP)
    if (PRODUCER_PHASE, CONSUMER_PHASE) == (0, 0):
        return wrong(DEADLOCK)  # each waits for the other's first arrival
    if (PRODUCER_PHASE, CONSUMER_PHASE) == (0, 1):  # the consumer goes first, and stays a lap ahead
        return wrong(UNINITIALISED) if flips else wrong(UNINITIALISED, one_of=OUT_OF_STEP)
    return wrong(one_of=OUT_OF_STEP, may=(UNINITIALISED,))


def turns(NB, NC):
    """Before its turn i a consumer knows the arrivals up to turn i - NC, and needs the one of the lap before, i - NB."""
    return RIGHT if NC <= NB else wrong(EARLY_WAIT, may=(UNINITIALISED, OVER_ARRIVAL, *OUT_OF_STEP))


def arrivals(count, each, consumers):
    """`consumers` arrive `each` times on a barrier that counts to `count`."""
    if count == each * consumers:
        return RIGHT
    if count > each * consumers:
        return wrong(DEADLOCK)
    if count % each:
        return wrong(OVER_ARRIVAL)
    return wrong(one_of=OUT_OF_STEP, may=(OVER_ARRIVAL,))


def counts(COUNT, ARRIVALS):
    return arrivals(COUNT, ARRIVALS, consumers=2)


def warp_counts(WARPS, ARRIVALS, NC):
    return arrivals(WARPS * ARRIVALS, 4, NC)


def pending(COUNT, ARRIVALS):
    return right_or((ARRIVALS % COUNT, PENDING))


def named(ARRIVE_THREADS, WAIT_THREADS, ARRIVES):
    if not ARRIVES:
        return wrong(RACE, may=(UNINITIALISED,)) if WAIT_THREADS == 128 else wrong(DEADLOCK)
    if ARRIVE_THREADS == WAIT_THREADS:
        outcomes = {128: wrong(RACE, may=(UNINITIALISED,)), 256: RIGHT, 384: wrong(DEADLOCK)}
        return outcomes[WAIT_THREADS]
    alone = {128: RACE}.get(WAIT_THREADS) or {128: DEADLOCK}.get(ARRIVE_THREADS)  # whoever counts to 128 goes on alone
    return wrong(one_of=(NAMED_BARRIER, alone), may=(UNINITIALISED,)) if alone else wrong(NAMED_BARRIER)


def ping_pong(FIRST_ARRIVES, SECOND_ARRIVES, SAME_BARRIER):
    if not SAME_BARRIER:
        return RIGHT if FIRST_ARRIVES and SECOND_ARRIVES else wrong(DEADLOCK)
    if not FIRST_ARRIVES:
        return wrong(RACE)  # both wait at the same place, and go on together
    return wrong(one_of=(RACE, DEADLOCK, NAMED_BARRIER))


FORMULAS = {f.__name__: f for f in (handoff, phases, turns, counts, warp_counts, pending, named, ping_pong)}


@pytest.mark.parametrize(("hazard", "arch", "switches"), cases(kernels))
def test_truth_table(hazard, arch, switches):
    check(hazard, arch, switches, FORMULAS[hazard.name](**switches))
