"""The torch backend where torch's own attention or gathered padding could go wrong."""

import dataclasses

import pytest
import torch

from backends import multiplies_in_tf32
from blockattn import RotaryTable
from blockattn.testing import Case, compare, make_inputs, run

FULL_AND_SHORT = Case((64, 150, 3), before=2, after=1, q_heads=2, kv_heads=1, head_dim=16)


@pytest.mark.parametrize("scale", [-0.7, 0.0, -0.0, 1e-46])  # the last is 0 in fp32
def test_causal_with_a_scale_that_is_not_positive(scale, device):
    case = dataclasses.replace(FULL_AND_SHORT, causal=True, scale=scale)
    inputs = make_inputs(case, device)
    assert compare(case, inputs, run(case, inputs, "torch"), multiplies_in_tf32("torch")) == []


@pytest.mark.parametrize("rotary", ["token", "position"])
@pytest.mark.parametrize("causal", [False, True])
def test_lines_that_no_row_uses_do_not_matter(rotary, causal, device):
    """NaN and infinity in the table next to the lines of short blocks, unused rows, and past the longest sequence."""
    case = dataclasses.replace(FULL_AND_SHORT, spans=(63, 150), used=(60, 130), rotary=rotary, causal=causal)
    inputs = make_inputs(case, device)
    cos, sin = inputs.rotary.cos.clone(), inputs.rotary.sin.clone()
    unused = ~case.used_rows(device) if rotary == "token" else slice(130, None)
    cos[unused], sin[unused] = torch.nan, torch.inf
    poisoned = dataclasses.replace(inputs, rotary=RotaryTable(cos, sin, per_token=rotary == "token"))
    for name, result in run(case, poisoned, "torch").items():
        assert result.equal(run(case, inputs, "torch")[name]), name
