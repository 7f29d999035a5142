"""What counts as an integer or a number, wherever one is asked for, and as a rotary table."""

import fractions

import numpy as np
import pytest
import torch

from blockattn import RotaryTable, TileTable, block_attention, block_attention_packed

OFFSETS = torch.tensor([0, 3, 70])


def test_numpy_numbers_are_numbers():
    qkv = torch.randn(70, 8, 16)
    q, k, v = qkv.split([4, 2, 2], 1)
    want = block_attention(q, k, v, OFFSETS, block_size=32, shift=8, scale=0.25)
    options = dict(block_size=np.int64(32), shift=np.uint8(8))
    table = TileTable.from_offsets(OFFSETS, total_rows=np.int32(70), **options)
    assert [type(x) for x in (table.total_rows, table.block_size, table.shift)] == [int] * 3
    for scale in (np.float32(0.25), np.float64(0.25), fractions.Fraction(1, 4)):
        heads = dict(num_heads=np.int64(4), num_kv_heads=np.int32(2))
        assert block_attention_packed(qkv, table, scale=scale, **heads).equal(want)
        assert block_attention(q, k, v, OFFSETS, scale=scale, **options).equal(want)
    made = RotaryTable.from_theta(np.int64(8), np.int64(5), theta=np.float32(100))
    assert made.cos.equal(RotaryTable.from_theta(8, 5, theta=100).cos)


@pytest.mark.parametrize("wrong", [True, np.True_, 4.0, np.float64(4), "4", None, torch.tensor(4)])
def test_other_things_are_not_integers(wrong):
    qkv = torch.randn(70, 12, 16)
    name = type(wrong).__name__
    with pytest.raises(TypeError, match=f"num_heads must be an integer, got {name}"):
        block_attention_packed(qkv, OFFSETS, num_heads=wrong)
    with pytest.raises(TypeError, match=f"block_size must be an integer, got {name}"):
        TileTable.from_offsets(OFFSETS, total_rows=70, block_size=wrong)
    with pytest.raises(TypeError, match=f"dim must be an integer, got {name}"):
        RotaryTable.from_theta(wrong, 10)


@pytest.mark.parametrize(
    ("theta", "error", "message"),
    [
        ("x", TypeError, "theta must be a number, got str"),
        (True, TypeError, "theta must be a number, got bool"),
        (None, TypeError, "theta must be a number, got NoneType"),
        (float("inf"), ValueError, "theta must be above 0 and finite, got inf"),
        (float("nan"), ValueError, "theta must be above 0 and finite, got nan"),
        (np.float32("inf"), ValueError, "theta must be above 0 and finite, got inf"),
        (-1, ValueError, "theta must be above 0 and finite, got -1"),
    ],
)
def test_a_wrong_theta_is_named(theta, error, message):
    with pytest.raises(error, match=message):
        RotaryTable.from_theta(8, 4, theta=theta)


def test_sparse_tensors_are_named():
    dense, q = torch.ones(70, 8), torch.randn(70, 2, 16)
    for cos, sin, name in ((dense.to_sparse(), dense, "cos"), (dense, dense.to_sparse(), "sin")):
        with pytest.raises(ValueError, match=f"{name} must be a dense tensor, got layout"):
            RotaryTable(cos, sin, per_token=True)
    with pytest.raises(ValueError, match="table must be a dense tensor, got layout"):
        RotaryTable.from_sin_cos(dense.to_sparse())
    with pytest.raises(ValueError, match="offsets must be a dense tensor, got layout"):
        block_attention(q, q, q, OFFSETS.to_sparse())


@pytest.mark.parametrize("name", ["cos", "sin"])
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_table_that_requires_a_gradient_later_is_refused(name, backend):
    table, q = RotaryTable(torch.ones(70, 8), torch.ones(70, 8), per_token=True), torch.randn(70, 2, 16)
    getattr(table, name).requires_grad_()
    with pytest.raises(ValueError, match=f"{name} must not require a gradient: the table is not differentiated"):
        block_attention(q, q, q, OFFSETS, rotary=table, backend=backend)


def test_a_table_of_columns_is_copied_once():
    """When it is made, and not at each call; one of rows is not copied at all."""
    columns, rows, q = torch.randn(8, 70).t(), torch.randn(70, 16)[:, :8], torch.randn(70, 2, 16)
    table = RotaryTable(columns, rows, per_token=True)
    assert table.cos.is_contiguous()
    assert table.cos.equal(columns)
    assert table.sin is rows
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.data_ptr()) or x, lambda x: x):
        block_attention(q.requires_grad_(), q, q, OFFSETS, rotary=table)
    assert {table.cos.data_ptr(), table.sin.data_ptr()} <= set(saved)


def test_a_table_of_inference_mode_serves_inference_only():
    with torch.inference_mode():
        table = RotaryTable.from_theta(8, 100)
    q = torch.randn(70, 2, 16)
    o = block_attention(q, q, q, OFFSETS, rotary=table)
    assert o.equal(block_attention(q, q, q, OFFSETS, rotary=RotaryTable.from_theta(8, 100)))
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        block_attention(q.requires_grad_(), q, q, OFFSETS, rotary=table)


def test_a_table_is_made_where_tensors_are_made():
    """On the default device, unless one is named; a compiled graph may make it too."""
    with torch.device("meta"):
        assert RotaryTable.from_theta(8, 5).cos.is_meta
        named = RotaryTable.from_theta(8, 5, device="cpu")
    assert named.cos.equal(RotaryTable.from_theta(8, 5).cos)

    def first_angle(x):
        return x + RotaryTable.from_theta(8, 5).sin[1, 0]

    x = torch.zeros(2)
    assert torch.compile(first_angle, fullgraph=True, backend="aot_eager")(x).equal(first_angle(x))
