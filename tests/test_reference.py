"""The oracle as a backend: what the specification says of wrong contents holds for it too."""

import pytest
import torch

from blockattn import RotaryTable, block_attention


@pytest.mark.parametrize(
    ("start", "wrong"), [(-1, (0, 64)), (-100, (0, 100)), (41, (64, 100)), (2**62, (0, 100)), (2**63 - 1, (0, 100))]
)
@pytest.mark.parametrize("dim", [4, 32])
@pytest.mark.parametrize("causal", [False, True])
def test_a_position_outside_the_table_makes_its_block_nan(start, wrong, dim, causal):
    q, k, v = (torch.randn(200, 2, 32, requires_grad=True) for _ in range(3))
    table = RotaryTable(torch.ones(110, dim // 2), torch.zeros(110, dim // 2), per_token=False)
    starts = torch.tensor([start, 0])
    o, lse = block_attention(
        q, k, v, torch.tensor([0, 100, 200]), rotary=table, start_positions=starts, check_offsets=False,
        backend="reference", return_lse=True, causal=causal,
    )  # fmt: skip
    gradients = torch.autograd.grad([o, lse], (q, k, v), [torch.ones_like(o), torch.ones_like(lse)])
    rows = torch.zeros(200, dtype=torch.bool)
    rows[slice(*wrong)] = True
    for x in (o, lse, *gradients):
        assert x[rows].isnan().all()
        assert x[~rows].isfinite().all()
