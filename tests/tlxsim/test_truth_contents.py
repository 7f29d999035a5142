"""Truth tables of bounds, unwritten memory, aliases and writes of several programs."""

import pytest
from kernels import contents as kernels
from verdicts import RIGHT, cases, check, right_or, warned, wrong

from tlxsim.findings import Code


def masks(LOAD_MASK, STORE_MASK, START):
    return right_or((not (LOAD_MASK and STORE_MASK), Code.OUT_OF_BOUNDS))


def ring_index(INDEX, OF_BARRIER):
    return right_or((not 0 <= INDEX < 2, Code.OUT_OF_BOUNDS))


def ring_predicate(TURNS, GUARDED):
    return right_or((TURNS > 2 and not GUARDED, Code.OUT_OF_BOUNDS))


def tma_edges(ROW, COLUMN, BACK):
    return right_or((BACK and min(ROW, COLUMN) < 0, Code.OUT_OF_BOUNDS))


def written_first(LEFT, RIGHT, READ):
    return right_or((not (LEFT, RIGHT, LEFT and RIGHT)[READ], Code.UNINITIALISED))


def tmem_columns(OFFSET, WRITES):
    """A warning only: kernels load what they then discard."""
    return RIGHT if WRITES and OFFSET == 0 else warned(Code.UNINITIALISED)


def aliases(SHARED, ORDERED, RETURNS):
    if ORDERED and not RETURNS:
        return wrong(Code.DEADLOCK)
    return right_or((SHARED and not ORDERED, Code.RACE))


def conflicts(STRIDE, ATOMIC):
    return right_or((STRIDE < 64 and not ATOMIC, Code.WRITE_CONFLICT))


def tma_conflicts(STRIDE):
    return right_or((STRIDE < 64, Code.WRITE_CONFLICT))


def alignment(OFFSET, STRIDE):
    return right_or((OFFSET * 2 % 16 or STRIDE * 2 % 16, Code.ALIGNMENT))


FORMULAS = {
    f.__name__: f
    for f in (
        masks, ring_index, ring_predicate, tma_edges, written_first, tmem_columns, aliases, conflicts, tma_conflicts,
        alignment,
    )
}  # fmt: skip


@pytest.mark.parametrize(("hazard", "arch", "switches"), cases(kernels))
def test_truth_table(hazard, arch, switches):
    check(hazard, arch, switches, FORMULAS[hazard.name](**switches))
