"""A row's bits: the same in every run, whatever else is in the batch, whatever foreign rows hold, however tensors lie."""

import dataclasses

import pytest
import torch

from backends import BACKENDS, DTYPES
from blockattn import TileTable, block_attention
from blockattn.testing import LAYOUTS, RESULTS, Case, Inputs, make_inputs, run

CASE = Case((70, 0, 33, 130), used=(66, 0, 33, 128), before=5, after=9, q_heads=4, kv_heads=2, head_dim=32)


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def case_for(backend, **changes):
    return dataclasses.replace(CASE, **{"dtype": DTYPES[backend][-1], **changes})


def same_bits(one, other, rows=slice(None)):
    return all(one[name][rows].equal(other[name][rows]) for name in RESULTS)


def test_repeats_give_the_same_bits(backend, device):
    case = case_for(backend)
    inputs = make_inputs(case, device)
    first = run(case, inputs, backend)
    for _ in range(3):
        assert same_bits(run(case, inputs, backend), first)


def test_each_sequence_alone_gives_the_same_bits(backend, device):
    case = case_for(backend)
    inputs = make_inputs(case, device)
    whole = run(case, inputs, backend)
    for begin, used in zip(inputs.offsets.tolist(), case.used, strict=False):
        rows = slice(begin, begin + used)
        alone = dataclasses.replace(case, spans=(used,), used=None, before=0, after=0)
        parts = {f.name: getattr(inputs, f.name)[rows] for f in dataclasses.fields(Inputs)[:5]}
        single = run(alone, Inputs(**parts, offsets=alone.offsets(device), lengths=None), backend)
        for name in RESULTS:
            assert whole[name][rows].equal(single[name]), name


@pytest.mark.parametrize("foreign", [torch.inf, -torch.inf, 3e38, 0.0])
def test_foreign_rows_never_matter(backend, foreign, device):
    case = case_for(backend, dtype=torch.float32)
    one = run(case, make_inputs(case, device), backend)
    assert same_bits(one, run(case, make_inputs(case, device, unused=foreign), backend))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_give_the_same_bits(backend, layout, device):
    plain = case_for(backend)
    strided = dataclasses.replace(plain, layout=layout, grad_layout=layout)
    assert same_bits(run(plain, make_inputs(plain, device), backend), run(strided, make_inputs(strided, device), backend))


def test_nan_stays_in_its_block(backend, device):
    case = case_for(backend, spans=(64, 64, 20), used=None, before=0, after=0)
    inputs = make_inputs(case, device)
    clean = run(case, inputs, backend)
    for name in ("q", "k", "v", "grad_o"):
        value = getattr(inputs, name).detach().clone()
        value[70] = torch.nan
        dirty = run(case, dataclasses.replace(inputs, **{name: value}), backend)
        assert same_bits(clean, dirty, slice(0, 64))
        assert same_bits(clean, dirty, slice(128, 148))
        assert any(dirty[result][64:128].isnan().any() for result in RESULTS)


def test_a_table_and_offsets_give_the_same_bits(backend, device):
    case = case_for(backend)
    inputs = make_inputs(case, device)
    table = TileTable.from_offsets(
        inputs.offsets, total_rows=case.total_rows, block_size=case.block_size, lengths=inputs.lengths
    )
    assert same_bits(run(case, inputs, backend), run(case, inputs, backend, table=table))


def test_inputs_are_left_alone(backend, device):
    case = case_for(backend)
    inputs = make_inputs(case, device)
    before = [x.detach().clone() for x in (inputs.q, inputs.k, inputs.v, inputs.grad_o)]
    run(case, inputs, backend)
    for x, y in zip((inputs.q, inputs.k, inputs.v, inputs.grad_o), before, strict=True):
        torch.testing.assert_close(x.detach(), y, rtol=0, atol=0, equal_nan=True)


def test_causal_rows_do_not_see_later_ones(backend, device):
    q, k, v = (torch.randn(100, 2, 16, device=device) for _ in range(3))
    offsets = torch.tensor([0, 100], device=device)
    first = block_attention(q, k, v, offsets, causal=True, backend=backend)
    k[40:], v[40:] = 7.0, -3.0
    assert block_attention(q, k, v, offsets, causal=True, backend=backend)[:40].equal(first[:40])
