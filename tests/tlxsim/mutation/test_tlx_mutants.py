"""The generator of mutants, and a sample of them in the simulator; `run.py` takes all."""

import ast

import pytest

from mutation import equivalents, subjects
from mutation.generate import Mutant, generate

GEMMS = ("hopper_gemm", "blackwell_gemm")


def texts(kernel: str) -> dict[str, Mutant]:
    return {str(mutant): mutant for mutant in generate(subjects.source(kernel))}


MUTANTS = {kernel: texts(kernel) for kernel in subjects.ARCHS}


def sample(kernel: str, per_operator: int = 1) -> list[str]:
    """The first mutants of each operator that are no equivalents."""
    chosen: dict[str, list[str]] = {}
    for text, mutant in MUTANTS[kernel].items():
        if equivalents.find(kernel, text) is None and len(chosen.setdefault(mutant.operator, [])) < per_operator:
            chosen[mutant.operator].append(text)
    return [text for found in chosen.values() for text in found]


@pytest.mark.parametrize(("kernel", "text"), [(kernel, text) for kernel in GEMMS for text in sample(kernel)])
def test_a_mutant_is_reported(kernel, text):
    module = subjects.load(MUTANTS[kernel][text].source, kernel)
    outcome = subjects.simulate(module, subjects.ARCHS[kernel], ("eager", "late", "random:1"))
    assert outcome.kind in ("reported", "warned", "refused"), outcome


@pytest.mark.parametrize("kernel", subjects.ARCHS)
def test_each_mutant_is_another_program_under_its_own_name(kernel):
    source = ast.unparse(ast.parse(subjects.source(kernel)))
    mutants = generate(subjects.source(kernel))
    assert len({mutant.source for mutant in mutants} | {source}) == len(mutants) + 1
    assert len(MUTANTS[kernel]) == len(mutants)


def test_the_operators():
    kernel = """
@triton.jit
def kernel(full, SLOTS):
    turn = 0
    for i in range(9):
        tlx.barrier_wait(full[turn % SLOTS], turn // SLOTS & 1)
        x = tlx.local_load(ring[0])
        turn += 1
"""
    found = {(mutant.operator, mutant.after) for mutant in generate("full = tlx.alloc_barriers(SLOTS)\n" + kernel)}
    wait = "tlx.barrier_wait(full[turn % SLOTS], turn // SLOTS & 1)"
    assert found == {
        ("start", "turn = 1"),
        ("dropped", "(nothing)"),
        ("moved", "below local_load"),
        ("phase", wait.replace("& 1", "& 1 ^ 1")),
        ("index", "full[turn % SLOTS + 1]"),
        ("index", "full[(turn % SLOTS + 1) % SLOTS]"),
        ("ring", "turn % (SLOTS + 1)"),
        ("ring", "turn % (SLOTS - 1)"),
        ("ring", "turn // (SLOTS + 1)"),
        ("ring", "turn // (SLOTS - 1)"),
        ("step", "(nothing)"),
        ("step", "turn += 1 + 1"),
    }


def test_equivalents_name_mutants_that_exist_with_a_proof():
    for equivalence in equivalents.EQUIVALENT:
        assert equivalence.level in ("ttir", "both")
        assert len(equivalence.proof) > 40
        assert all(text in MUTANTS[kernel] for kernel, texts in equivalence.mutants.items() for text in texts)
