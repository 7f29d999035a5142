"""Every backend equals the fp64 oracle within the error budget, in both directions, on every kind of batch.

NaN stands in every row that no sequence uses and in all memory that a kernel has not written yet.
"""

import dataclasses

import pytest

from backends import BACKENDS, DTYPES, multiplies_in_tf32
from blockattn.testing import LAYOUTS, Case, compare, make_inputs, run

USUAL = Case((0, 1, 63, 64, 65, 150, 0), used=(0, 1, 60, 64, 32, 147, 0), before=3, after=2)


def about(n: int) -> tuple[int, ...]:
    """Rows of sequences about a block of n."""
    return 0, 1, n - 1, n, n + 1, 2 * n + 5


CASES = [
    USUAL,
    Case((64, 128, 64)),
    Case((1,)),
    Case(()),
    Case((0, 0)),
    Case((), after=70),
    Case((5, 90), before=70, after=130, q_heads=2, kv_heads=1),
    *[dataclasses.replace(USUAL, layout=layout, grad_layout="packed") for layout in LAYOUTS[1:]],
    dataclasses.replace(USUAL, grad_layout="expanded"),
    *[dataclasses.replace(USUAL, shift=shift) for shift in (1, 32, 63)],
    dataclasses.replace(USUAL, causal=True),
    dataclasses.replace(USUAL, causal=True, shift=17, q_heads=6, kv_heads=2, layout="packed"),
    dataclasses.replace(USUAL, q_heads=8, kv_heads=1),
    dataclasses.replace(USUAL, scale=-0.7),
    dataclasses.replace(USUAL, scale=0.0),
    dataclasses.replace(USUAL, scale=3.0),
    *[
        Case(about(n), after=2, block_size=n, head_dim=d, q_heads=4, kv_heads=2, shift=s, causal=s > 0)
        for n, d, s in ((16, 16, 0), (16, 256, 5), (32, 24, 0), (32, 72, 7), (64, 136, 3), (128, 40, 0), (128, 128, 9))
    ],
    Case((3, 130), before=1, after=130, block_size=128, head_dim=256, q_heads=2, kv_heads=1, causal=True),
    Case((3, 65), before=1, after=65, head_dim=256, q_heads=2, kv_heads=2, layout="mixed"),
    Case((100,), head_dim=200, q_heads=1, kv_heads=1),
]


def with_dtypes(backend):
    for case in CASES:
        # Every dtype on the usual batch and on one odd shape; the cheapest exact one elsewhere.
        every = case is USUAL or case.head_dim in (72, 136)
        for dtype in DTYPES[backend] if every else DTYPES[backend][:1]:
            yield dataclasses.replace(case, dtype=dtype)


@pytest.mark.parametrize(("backend", "case"), [pytest.param(b, c, id=f"{b}-{c}") for b in BACKENDS for c in with_dtypes(b)])
def test_both_directions_equal_the_oracle(backend, case, device):
    inputs = make_inputs(case, device)
    results = run(case, inputs, backend)
    assert compare(case, inputs, results, multiplies_in_tf32(backend)) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_lse(backend, device):
    """The kernels skip lse and its gradient when it is not asked for."""
    inputs = make_inputs(USUAL, device)
    results = run(USUAL, inputs, backend, with_lse=False)
    assert compare(USUAL, inputs, results, multiplies_in_tf32(backend), with_lse=False) == []


@pytest.mark.parametrize("name", ["o", "lse", "dq", "dk", "dv"])
@pytest.mark.parametrize("factor", [1.01, 0.0])
def test_the_comparison_rejects_wrong_results(name, factor, device):
    inputs = make_inputs(USUAL, device)
    results = run(USUAL, inputs, "torch")
    used = USUAL.used_rows(device)
    results[name][used] *= factor
    assert any(line.startswith(name) for line in compare(USUAL, inputs, results, multiplies_in_tf32("torch")))
