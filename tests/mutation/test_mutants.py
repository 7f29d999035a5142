"""The generator of mutants and the pool that runs them."""

import ast
import os
import signal
import time
from pathlib import Path

import pool
import pytest
from equivalents import EQUIVALENT
from mutants import generate

KERNELS = Path(__file__).parents[2] / "src/blockattn/kernels"
HEADER = "@triton.jit\ndef kernel(x_ptr, q_row, q_head, k_row, v_row, n, scale, D: tl.constexpr = 4):\n    "


def texts(statement):
    return {(m.before, m.after) for m in generate("module", HEADER + statement)}


@pytest.mark.parametrize(
    ("statement", "before", "after"),
    [
        ("y = n < 3", "n < 3", ["n <= 3", "n < 2"]),
        ("y = n == 3", "n == 3", ["n != 3"]),
        ("y = n & D", "n & D", ["n", "D"]),
        ("y = n * D", "n * D", ["n", "D"]),
        ("y = n // D", "n // D", ["n", "n % D"]),
        ("y = x_ptr + n", "x_ptr + n", ["x_ptr", "x_ptr - n"]),
        ("y = f(scale)", "f(scale)", ["f(scale * scale)"]),
        ("y = n * q_row", "n * q_row", ["n", "q_row", "n * q_head"]),
        ("y = n * k_row", "n * k_row", ["n", "k_row", "n * v_row"]),
        ("y = n[:, None]", "n[:, None]", ["n[None, :]"]),
        ("y = tl.trans(n)", "tl.trans(n)", ["n"]),
        ("y = tl.dot(n, n, y)", "tl.dot(n, n, y)", ["tl.dot(n, n)"]),
        ("y = n.to(tl.int64)", "n.to(tl.int64)", ["n"]),
        ("y = tl.minimum(n, D)", "tl.minimum(n, D)", ["tl.maximum(n, D)", "n", "D"]),
        ("y = tl.where(n, scale, D)", "tl.where(n, scale, D)", ["scale", "D", "tl.where(n, scale * scale, D)"]),
        ("y = tl.sum(n, 1)", "tl.sum(n, 1)", ["tl.sum(n, 0)"]),
        ("x_ptr += n", "x_ptr += n", ["(nothing)", "x_ptr -= n"]),
        ("for i in range(0, n, D):\n        pass", "range(0, n, D)",
         ["range(D, n, D)", "range(0, n + D, D)", "range(0, n - D, D)"]),
        ("y = f(float('-inf'))", "float('-inf')", ["0.0"]),
        ("if not n:\n        pass", "not n", ["n"]),
    ],
)  # fmt: skip
def test_what_an_expression_becomes(statement, before, after):
    assert texts(statement) == {(before, text) for text in after}


def test_a_load_moves_and_loses_its_mask():
    before = "tl.load(x_ptr, mask=n, other=0.0)"
    after = ["tl.load(x_ptr + 1, mask=n, other=0.0)", "tl.load(x_ptr - 1, mask=n, other=0.0)", "tl.load(x_ptr)"]
    assert texts(f"y = {before}") == {*[(before, text) for text in after], ("other=0.0", "other=1.0")}


def test_repeated_statements_are_numbered_and_known_apart():
    once = texts("x_ptr += n")
    assert texts("x_ptr += n\n    x_ptr += n") == once | {(before, f"{after} (2)") for before, after in once}
    assert ("y = n < 3", "y = n <= 3") in texts("y = n < 3\n    z = n < 3")


def test_only_jit_functions_change_and_not_their_signature():
    assert generate("module", "def host(n=1):\n    return n < 3") == []
    assert generate("module", "@triton.jit(debug=True)\ndef kernel(n):\n    return n < 3") != []
    assert generate("module", HEADER + '"""n < 3"""\n    return n') == []


@pytest.mark.parametrize("module", ["walk", "tile_math", "triton_forward", "triton_backward", "triton_tiles"])
def test_each_mutant_of_the_kernels_is_another_program_under_its_own_name(module):
    source = (KERNELS / f"{module}.py").read_text()
    mutants = generate(module, source)
    functions = [x.name for x in ast.parse(source).body if isinstance(x, ast.FunctionDef) and x.decorator_list]
    assert {m.function for m in mutants} == set(functions)
    assert len({m.source for m in mutants} | {ast.unparse(ast.parse(source))}) == len(mutants) + 1
    names = {(m.place, str(m)) for m in mutants}
    assert len(names) == len(mutants)
    declared = {key for keys in EQUIVALENT.values() for key in keys if key[0].startswith(f"{module}.")}
    assert declared <= names


def test_the_pool_reports_results_crashes_and_hangs():
    def work(job, starts):
        starts(f"test of {job}")
        if job == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "hang":
            time.sleep(60)
        return job

    outcomes = dict(pool.run_all(["result", "crash", "hang"], work, workers=2, seconds_a_test=2))
    assert outcomes["result"] == pool.Outcome("test of result", "result", "")
    assert outcomes["crash"] == pool.Outcome("test of crash", None, "SIGKILL")
    assert outcomes["hang"] == pool.Outcome("test of hang", None, "no end within 2 s")
