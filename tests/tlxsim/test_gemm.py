"""Complete kernels: no finding on any schedule, the right numbers, rings that wrap at least three times."""

import pytest

from mutation import subjects

SEEDS = 50
LEVELS = ("ttir", "fenced")


@pytest.mark.parametrize("kernel", subjects.ARCHS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_right_kernel_is_clean(kernel, level):
    schedules = SEEDS if level == "ttir" else 4
    outcome = subjects.simulate(subjects.load(subjects.source(kernel), kernel), subjects.ARCHS[kernel], schedules, level)
    assert not outcome.text, outcome.text
    assert not outcome.refused
    assert outcome.right


@pytest.mark.parametrize("kernel", subjects.ARCHS)
def test_every_ring_wraps_three_times(kernel):
    module = subjects.load(subjects.source(kernel), kernel)
    launched = module.launch("cpu")
    if kernel == "hopper_attention":
        tiles = launched.args[-2]
        turns = [(tiles, module.SLOTS)]
    else:
        m, n, k = launched.args[-3:]
        rows = module.BM * getattr(module, "CONSUMERS", 1)
        tiles = (m // rows) * (n // module.BN) // module.GRID[0]
        turns = [(tiles * k // module.BK, module.SLOTS), (tiles, getattr(module, "PLACES", 1))]
    assert all(number >= 3 * slots for number, slots in turns)
