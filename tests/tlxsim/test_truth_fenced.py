"""The truth tables once more at level "fenced": right kernels stay clean in what the compiler makes of them, and wrong ones
are reported unless the compiler repairs them, which level "ttir" does not count on."""

import pytest
import test_truth_contents
import test_truth_features
import test_truth_handoff
import test_truth_patterns
import test_truth_products
import test_truth_transfers
from verdicts import RIGHT, cases, check, simulated

TABLES = (
    test_truth_contents, test_truth_features, test_truth_handoff, test_truth_patterns, test_truth_products,
    test_truth_transfers,
)  # fmt: skip
SCHEDULES = ("late", "random:1")


def repaired(kernel, switches):
    """Wrong as written, right as compiled."""
    if kernel == "async_groups":  # the compiler counts the groups that may be left itself
        return switches["COMMITS"] and switches["PENDING"] >= switches["NB"] - 1
    if kernel == "wgmma_fence":  # it puts a fence before every wgmma
        return True
    if kernel == "tcgen05_release":  # it waits for the MMAs of a loop after the loop
        return switches["DONE"] == 0 and switches["RELEASE"] != 0 and switches["READS"] and not switches["FIRST_ADDS"]
    return False


CASES = [
    pytest.param(*case.values, RIGHT if repaired(case.values[0].name, case.values[2]) else verdict, id=case.id)
    for table in TABLES
    for case in cases(table.kernels)
    for verdict in [table.FORMULAS[case.values[0].name](**case.values[2])]
]


@pytest.mark.parametrize(("hazard", "arch", "switches", "verdict"), CASES)
def test_as_compiled(hazard, arch, switches, verdict):
    if verdict.right:
        check(hazard, arch, switches, RIGHT, level="fenced", schedules=SCHEDULES)
    else:
        _, report = simulated(hazard, arch, switches, level="fenced", schedules=SCHEDULES)
        assert report.findings
