"""Arguments, autocast, TileTable, lse, empty batches: what the function promises apart from its values."""

import pytest
import torch

from backends import BACKENDS, HAS_GPU
from blockattn import RotaryTable, TileTable, block_attention

EVERY = ("reference", *BACKENDS)


def qkv(rows=100, heads=2, kv_heads=2, head_dim=16, dtype=torch.float32, device="cpu"):
    return [torch.randn(rows, h, head_dim, dtype=dtype, device=device) for h in (heads, kv_heads, kv_heads)]


def offsets(device="cpu", *values):
    return torch.tensor(values or (0, 60, 100), device=device)


BAD = {
    "q not a tensor": (dict(q=[1.0]), TypeError, "q must be a tensor, got list"),
    "q 2-D": (dict(q=torch.randn(100, 32)), ValueError, r"q must have shape \[T, heads, D\], got \(100, 32\)"),
    "q integer": (dict(q=torch.ones(100, 2, 16, dtype=torch.int32)), ValueError, "q must be bfloat16, float16, float32 or"),
    "sparse": (dict(q=torch.randn(100, 2, 16).to_sparse()), ValueError, "q must be a dense tensor"),
    "mixed dtypes": (dict(k=torch.randn(100, 2, 16).half()), ValueError, "k must have q's dtype torch.float32, got"),
    "mixed devices": (dict(v=torch.randn(100, 2, 16, device="meta")), ValueError, "v must be on q's device cpu, got meta"),
    "k rows": (dict(k=torch.randn(99, 2, 16)), ValueError, r"k must have shape \[100, Hk, 16\] to match q, got \(99,"),
    "v shape": (dict(v=torch.randn(100, 1, 16)), ValueError, r"v must have k's shape \(100, 2, 16\)"),
    "head dim 12": (dict(zip("qkv", qkv(head_dim=12), strict=True)), ValueError, "multiple of 8 from 16 to 256, got 12"),
    "head dim 8": (dict(zip("qkv", qkv(head_dim=8), strict=True)), ValueError, "multiple of 8 from 16 to 256, got 8"),
    "head dim 264": (dict(zip("qkv", qkv(head_dim=264), strict=True)), ValueError, "multiple of 8 from 16 to 256, got 264"),
    "heads": (dict(q=torch.randn(100, 3, 16)), ValueError, "multiple of k's, got 3 and 2"),
    "no heads": (dict(zip("qkv", qkv(heads=0, kv_heads=0), strict=True)), ValueError, "multiple of k's, got 0 and 0"),
    "block size": (dict(block_size=48), ValueError, r"block_size must be one of \(16, 32, 64, 128\), got 48"),
    "block size type": (dict(block_size=64.0), TypeError, "block_size must be an integer, got float"),
    "shift": (dict(shift=64), ValueError, "shift must be within 0 and block_size - 1 = 63, got 64"),
    "shift type": (dict(shift="x"), TypeError, "shift must be an integer, got str"),
    "check_offsets type": (dict(check_offsets=1), TypeError, "check_offsets must be True, False or None, got int"),
    "backend type": (dict(backend=1), TypeError, "backend must be a string or None, got int"),
    "scale too large": (dict(scale=10**400), ValueError, "scale must be finite in float32"),
    "shift negative": (dict(shift=-1), ValueError, "shift must be"),
    "causal": (dict(causal=1), TypeError, "causal must be True or False, got 1"),
    "return_lse": (dict(return_lse="yes"), TypeError, "return_lse must be True or False"),
    "scale type": (dict(scale="1"), TypeError, "scale must be a number, got str"),
    "scale inf": (dict(scale=float("inf")), ValueError, "scale must be finite in float32, got inf"),
    "backend": (dict(backend="cuda"), ValueError, "backend must be one of .*, got 'cuda'"),
    "offsets list": (dict(offsets=[0, 100]), TypeError, "offsets must be a tensor, got list"),
    "offsets float": (dict(offsets=torch.tensor([0.0, 100.0])), ValueError, "offsets must be int32 or int64, got"),
    "offsets 2-D": (dict(offsets=torch.zeros(2, 2, dtype=torch.int64)), ValueError, r"offsets must have shape \[B \+ 1\]"),
    "offsets none": (dict(offsets=torch.zeros(0, dtype=torch.int64)), ValueError, "offsets must hold B \\+ 1 entries"),
    "offsets device": (dict(offsets=torch.zeros(2, dtype=torch.int64, device="meta")), ValueError, "offsets must be on q's"),
    "offsets decrease": (dict(offsets=offsets("cpu", 0, 100, 50)), ValueError, r"offsets\[1\] = 100 and offsets\[2\] = 50"),
    "offsets past q": (dict(offsets=offsets("cpu", 0, 101)), ValueError, r"offsets\[1\] must be within 0 and the 100 rows"),
    "offsets negative": (dict(offsets=offsets("cpu", -1, 100)), ValueError, r"offsets\[0\] must be within 0"),
    "lengths size": (dict(lengths=torch.tensor([1])), ValueError, "lengths must hold B = 2 entries"),
    "lengths dtype": (dict(lengths=torch.tensor([1.0, 2.0])), ValueError, "lengths must be int32 or int64"),
    "lengths content": (dict(lengths=torch.tensor([61, 2])), ValueError, r"lengths\[0\] must be within 0 and the 60 rows"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "error", "message"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("backend", [None, "reference"])
def test_bad_arguments_are_named(change, error, message, backend):
    arguments = dict(zip("qkv", qkv(), strict=True)) | dict(offsets=offsets(), backend=backend) | change
    with pytest.raises(error, match=message):
        block_attention(**arguments)


def test_a_table_carries_its_options():
    q, k, v = qkv()
    table = TileTable.from_offsets(offsets(), total_rows=100, block_size=16, shift=3)
    assert block_attention(q, k, v, table).equal(block_attention(q, k, v, offsets(), block_size=16, shift=3))
    for name, value in (("block_size", 16), ("shift", 3), ("lengths", torch.tensor([1, 1]))):
        with pytest.raises(ValueError, match=f"{name} is part of the TileTable"):
            block_attention(q, k, v, table, **{name: value})
    with pytest.raises(ValueError, match="TileTable of q's 99 rows, got one of 100"):
        block_attention(q[1:], k[1:], v[1:], table)
    for wrong, error in ((-1, ValueError), (2**63, ValueError), ("x", TypeError), (True, TypeError), (70.0, TypeError)):
        with pytest.raises(error, match="total_rows must be"):
            TileTable.from_offsets(offsets(), total_rows=wrong)


@pytest.mark.parametrize("backend", EVERY)
def test_one_table_serves_layers_and_their_backward(backend, device):
    dtype = torch.float32
    q, k, v = (x.requires_grad_() for x in qkv(dtype=dtype, device=device))
    table = TileTable.from_offsets(offsets(device), total_rows=100, block_size=32)
    x = block_attention(q, k, v, table, backend=backend)
    block_attention(x, k, v, table, backend=backend).sum().backward()
    two = torch.autograd.grad(
        block_attention(block_attention(q, k, v, offsets(device), block_size=32, backend=backend), k, v, offsets(device),
                        block_size=32, backend=backend).sum(), (q, k, v))  # fmt: skip
    for got, want in zip((q.grad, k.grad, v.grad), two, strict=True):
        assert got.equal(want)


@pytest.mark.parametrize("backend", EVERY)
def test_unchecked_wrong_offsets_make_everything_nan(backend, device):
    q, k, v = (x.requires_grad_() for x in qkv(device=device))
    o, lse = block_attention(q, k, v, offsets(device, 0, 100, 50), check_offsets=False, return_lse=True, backend=backend)
    gradients = torch.autograd.grad((o, lse), (q, k, v), (torch.ones_like(o), torch.ones_like(lse)))
    for x in (o, lse, *gradients):
        assert x.isnan().all()


@pytest.mark.parametrize("backend", EVERY)
def test_lse_alone_is_differentiable(backend, device):
    q, k, v = (x.requires_grad_() for x in qkv(device=device))
    _, lse = block_attention(q, k, v, offsets(device), return_lse=True, backend=backend)
    got = torch.autograd.grad(lse.sum(), (q, k, v), allow_unused=True)
    _, want_lse = block_attention(q, k, v, offsets(device), return_lse=True, backend="reference")
    want = torch.autograd.grad(want_lse.sum(), (q, k, v), allow_unused=True)
    for x, y in zip(got[:2], want[:2], strict=True):
        torch.testing.assert_close(x, y, atol=2e-2 if HAS_GPU else 1e-5, rtol=1e-2 if HAS_GPU else 1e-4)
    assert not got[2].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_never_alias_inputs(backend, device):
    for rows in (0, 1):
        q, k, v = qkv(rows, device=device)
        o, lse = block_attention(q, k, v, offsets(device, 0, rows), return_lse=True, backend=backend)
        assert o.shape == q.shape
        assert lse.shape == (rows, 2)
        addresses = {x.untyped_storage().data_ptr() for x in (q, k, v)} - {0}
        assert o.untyped_storage().data_ptr() not in addresses
        if rows:  # a row alone attends to itself; TF32 keeps ten bits of v
            torch.testing.assert_close(o, v, rtol=2**-10 if HAS_GPU else 1e-6, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_needed_gradients(backend, device):
    q, k, v = qkv(device=device)
    k.requires_grad_()
    block_attention(q, k, v, offsets(device), backend=backend).sum().backward()
    assert k.grad is not None
    assert q.grad is None
    assert v.grad is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_derivative_is_refused(backend, device):
    q, k, v = (x.requires_grad_() for x in qkv(device=device))
    for function in (torch.sum, lambda x: x.square().sum()):
        loss = function(block_attention(q, k, v, offsets(device), backend=backend))
        (dq,) = torch.autograd.grad(loss, q, create_graph=True)
        with pytest.raises(NotImplementedError, match="block_attention has no second derivative, which backend='reference'"):
            (loss + dq.square().sum()).backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_mode_and_torch_func_are_refused(backend, device):
    """By a message of ours; what they do not transform is computed."""
    q, k, v = qkv(device=device)

    def attend(x):
        return block_attention(x, k, v, offsets(device), backend=backend)

    for transformed in (
        lambda: torch.func.jvp(attend, (q,), (q,)),
        lambda: torch.func.vjp(attend, q),
        lambda: torch.func.grad(lambda x: attend(x).sum())(q),
    ):
        with pytest.raises(
            NotImplementedError, match=r"has no derivatives inside torch.func, which backend='reference' has"
        ):
            transformed()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(NotImplementedError, match="has no forward mode, which backend='reference' has"):
            attend(dual)
    two, x = torch.stack([q, q]), q.clone().requires_grad_()
    for mapped in (
        lambda: torch.vmap(attend)(two),
        lambda: torch.autograd.grad(attend(x), x, two, is_grads_batched=True),
    ):
        with pytest.raises(NotImplementedError, match="has no vmap, which backend='reference' has"):
            mapped()
    assert torch.vmap(lambda factor: factor * attend(q))(torch.ones(2, device=device))[1].equal(attend(q))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_forward_keeps_its_inputs_and_nothing_else(backend, device):
    q, k, v = (x.requires_grad_() for x in qkv(device=device))
    table, rotary = TileTable.from_offsets(offsets(device), total_rows=100), RotaryTable.from_theta(8, 200, device=device)
    starts, kept = torch.tensor([3, 0], device=device), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.data_ptr()) or x, lambda x: x):
        block_attention(q, k, v, table, rotary=rotary, start_positions=starts, return_lse=True, backend=backend)
    assert sorted(kept) == sorted(x.data_ptr() for x in (q, k, v, table.tiles, rotary.cos, rotary.sin, starts))


@pytest.mark.parametrize("backend", BACKENDS)
def test_negative_views_have_their_sign(backend, device):
    q, k, v = qkv(device=device)
    got = block_attention(torch._neg_view(q), k, v, offsets(device), backend=backend)
    assert got.equal(block_attention(-q, k, v, offsets(device), backend=backend))


def test_a_table_is_checked_on_request():
    q, k, v = qkv()
    table = TileTable.from_offsets(offsets("cpu", 0, 101), total_rows=100, check_offsets=False)
    with pytest.raises(ValueError, match=r"offsets\[1\] must be within 0 and the 100 rows of q, got 101"):
        block_attention(q, k, v, table, check_offsets=True)


def test_meta_tensors_have_shapes():
    q, k, v = (x.to("meta") for x in qkv())
    o, lse = block_attention(q, k, v, offsets("cpu", 0, 100).to("meta"), return_lse=True)
    assert (o.shape, lse.shape, o.device.type) == (q.shape, (100, 2), "meta")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_q_k_v_alone(dtype, device):
    q, k, v = (x.requires_grad_() for x in qkv(device=device))
    with torch.autocast(device, dtype=dtype):
        o, lse = block_attention(q, k, v, offsets(device), return_lse=True)
    assert (o.dtype, lse.dtype) == (dtype, torch.float32)
    o.sum().backward()
    assert q.grad.dtype == torch.float32
    want = block_attention(*(x.detach().to(dtype) for x in (q, k, v)), offsets(device))
    assert o.equal(want)
    if device == "cpu":
        with torch.autocast(device, dtype=dtype):
            assert block_attention(*qkv(dtype=torch.float64), offsets()).dtype == torch.float64


def test_autocast_stays_out_of_the_computation(device):
    """lse and gradients under autocast are those of the cast tensors without it."""
    q, k, v = (300 * x for x in qkv(device=device))
    cast = [x.half().requires_grad_() for x in (q, k, v)]
    o, lse = block_attention(*cast, offsets(device), return_lse=True)
    want = torch.autograd.grad((o, lse), cast, (torch.ones_like(o), torch.ones_like(lse)))
    with torch.autocast(device, dtype=torch.float16):
        again, again_lse = block_attention(*cast, offsets(device), return_lse=True)
        got = torch.autograd.grad((again, again_lse), cast, (torch.ones_like(o), torch.ones_like(lse)))
    assert all(a.equal(b) for a, b in zip((again, again_lse, *got), (o, lse, *want), strict=True))
    assert lse.isfinite().all()


def test_mixed_dtypes_agree_under_autocast(device):
    q, k, v = qkv(device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert block_attention(q, k.half(), v.bfloat16(), offsets(device)).dtype == torch.bfloat16


@pytest.mark.parametrize("backend", EVERY)
def test_channels_far_apart_are_right_too(backend, device):
    """A last stride other than 1 costs a copy and stays right."""
    q, k, v = (x.transpose(0, 2).contiguous().transpose(0, 2) for x in qkv(device=device))
    o = block_attention(q, k, v, offsets(device), backend=backend)
    assert o.equal(block_attention(q.contiguous(), k.contiguous(), v.contiguous(), offsets(device), backend=backend))


def test_int32_offsets(device):
    q, k, v = qkv(device=device)
    assert block_attention(q, k, v, offsets(device).int()).equal(block_attention(q, k, v, offsets(device)))
