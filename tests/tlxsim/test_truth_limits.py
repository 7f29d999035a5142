"""Truth tables of what a launch takes from the GPU, which the real compile says."""

import pytest
from kernels import limits as kernels
from verdicts import cases, check, right_or

from tlxsim.findings import Code

SHARED_MEMORY = 227 * 1024


def registers(NC, REGISTERS):
    """All threads start with the same number, a multiple of 8; the requests must leave 24 for the default task's."""
    groups = 1 + NC
    pool = 64 * 1024 // (128 * groups) // 8 * 8 * groups  # for one thread of each group
    return right_or((pool < NC * REGISTERS + 24, Code.REGISTERS))


def shared_memory(NB):
    return right_or((NB * 16 * 1024 > SHARED_MEMORY, Code.BUDGET))


def tensor_memory(NB, COLUMNS):
    return right_or((NB * COLUMNS > 512, Code.BUDGET))


def threads(NC):
    return right_or(((1 + NC) * 128 > 1024, Code.BUDGET))


FORMULAS = {f.__name__: f for f in (registers, shared_memory, tensor_memory, threads)}


@pytest.mark.parametrize(("hazard", "arch", "switches"), cases(kernels))
def test_truth_table(hazard, arch, switches):
    check(hazard, arch, switches, FORMULAS[hazard.name](**switches), budgets=True, schedules=("eager",))
