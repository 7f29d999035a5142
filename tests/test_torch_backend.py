"""The torch backend where torch's own attention or gathered padding could go wrong."""

import dataclasses

import pytest
import torch

from backends import multiplies_in_tf32
from blockattn import RotaryTable, block_attention
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


def test_a_position_past_what_64_bits_hold(device):
    """A block from 2⁶³ - 1 on ends beyond int64: it is refused, and NaN where it is not checked, as its neighbour is not."""
    q = torch.randn(6, 2, 16, device=device, requires_grad=True)
    offsets, starts = torch.tensor([0, 3, 6], device=device), torch.tensor([2**63 - 1, 0], device=device)
    table = RotaryTable(torch.ones(3, 8, device=device), torch.zeros(3, 8, device=device), per_token=False)
    options = dict(rotary=table, start_positions=starts, backend="torch")
    with pytest.raises(ValueError, match=r"reaches 9223372036854775809 from start_positions\[0\] = 9223372036854775807"):
        block_attention(q, q, q, offsets, check_offsets=True, **options)
    o, lse = block_attention(q, q, q, offsets, check_offsets=False, return_lse=True, **options)
    (dq,) = torch.autograd.grad((o, lse), q, (torch.ones_like(o), torch.ones_like(lse)))
    for x in (o, lse, dq):
        assert x[:3].isnan().all()
        assert x[3:].isfinite().all()
