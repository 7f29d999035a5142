"""Truth tables of the rest of TLX: predicates, aliases, reinterpretation, reductions, while loops, captures, operands."""

import pytest
from kernels import features as kernels
from verdicts import RIGHT, cases, check, right_or, wrong

from tlxsim.findings import Code

DEADLOCK, RACE, UNINITIALISED = Code.DEADLOCK, Code.RACE, Code.UNINITIALISED


def predicates(LAST_WAIT, LAST_LOAD):
    """The surplus wait has nobody to complete it; the surplus copy brings bytes that nothing expects to a buffer in use."""
    if not LAST_LOAD:
        return wrong(DEADLOCK) if LAST_WAIT else RIGHT
    return wrong(one_of=(RACE, DEADLOCK, Code.PENDING, Code.IN_FLIGHT), may=(Code.BYTES,))


def alias_specs(ORDERED):
    return right_or((not ORDERED, RACE))


def reinterprets(ORDERED):
    return RIGHT if ORDERED else wrong(RACE, may=(UNINITIALISED,))


def reductions(ADDS):
    return right_or((not ADDS, Code.WRITE_CONFLICT))


def while_rings(NB, LATE):
    return wrong(one_of=(RACE, Code.EARLY_WAIT, Code.LATE_WAIT, DEADLOCK), may=(UNINITIALISED,)) if LATE else RIGHT


def captures(FULL_WAIT):
    return RIGHT if FULL_WAIT else wrong(RACE, may=(UNINITIALISED,))


def wgmma_registers(WAITS, REFILLS):
    return right_or((REFILLS and not WAITS, RACE))


def tmem_operand(A_ARRIVES_AFTER, MMA_FREES):
    return RIGHT if A_ARRIVES_AFTER and MMA_FREES else wrong(RACE, may=(UNINITIALISED,))


FORMULAS = {
    f.__name__: f
    for f in (
        predicates, alias_specs, reinterprets, reductions, while_rings, captures, wgmma_registers, tmem_operand
    )
}  # fmt: skip


@pytest.mark.parametrize(("hazard", "arch", "switches"), cases(kernels))
def test_truth_table(hazard, arch, switches):
    check(hazard, arch, switches, FORMULAS[hazard.name](**switches))
