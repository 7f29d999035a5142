"""The attention layer: the same as its parts, its state, and the ways that a model is run."""

import copy
import io

import pytest
import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from backends import BACKENDS, HAS_GPU
from blockattn import RotaryTable, TileTable, block_attention
from blockattn.nn import BlockSelfAttention
from blockattn.rotary import turn

DEVICE = "cuda" if HAS_GPU else "cpu"
OFFSETS = torch.tensor([0, 3, 70], device=DEVICE)


def layer(**options):
    torch.manual_seed(0)
    options = dict(num_heads=4, num_kv_heads=2, head_dim=16, block_size=32, qkv_bias=True, out_bias=True) | options
    return BlockSelfAttention(48, **options).to(DEVICE)


def rows():
    return torch.randn(70, 48, generator=torch.Generator().manual_seed(1)).to(DEVICE).requires_grad_()


def by_hand(module, x, rotary=None, per_token=False):
    """Projection, rotation in plain torch, separate q, k, v, and projection."""
    qkv = linear(x, module.qkv_proj.weight, module.qkv_proj.bias).unflatten(1, (8, 16))
    q, k, v = qkv.split([4, 2, 2], 1)
    if rotary is not None:
        place = torch.arange(70, device=x.device)
        lines = place if per_token else torch.where(place < 3, place, place - 3)
        cos, sin = rotary.cos[lines][:, None].float(), rotary.sin[lines][:, None].float()
        q, k = (turn(x, cos, sin, module.interleaved) for x in (q, k))
    o = block_attention(q, k, v, OFFSETS, block_size=32, backend="reference").flatten(1)
    return linear(o, module.out_proj.weight, module.out_proj.bias)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["none", "position", "halves", "token"])
def test_it_is_its_parts(backend, kind):
    table = None if kind in ("none", "token") else RotaryTable.from_theta(8, 100, device=DEVICE)
    module = layer(rotary=table, interleaved=kind != "halves")
    given = RotaryTable(*torch.randn(2, 70, 8, device=DEVICE), per_token=True) if kind == "token" else None
    x = rows()
    got = module(x, OFFSETS, given, backend=backend)
    want = by_hand(module, x, table or given, per_token=kind == "token")
    names = [name for name, _ in module.named_parameters()]
    inputs = [x, *module.parameters()]
    most = 2e-3 if HAS_GPU else 1e-5  # of the whole result: a GPU multiplies in TF32
    gradients = (torch.autograd.grad(y.square().sum(), inputs) for y in (got, want))
    for name, mine, other in zip(["y", "x", *names], *((y, *g) for y, g in zip((got, want), gradients)), strict=True):
        assert (mine - other).norm() <= most * other.norm(), name


def test_a_table_brings_its_own_cut():
    module, x = layer(), rows()
    table = TileTable.from_offsets(OFFSETS, total_rows=70, block_size=32)
    assert module(x, table).equal(module(x, OFFSETS))
    assert not module(x, TileTable.from_offsets(OFFSETS, total_rows=70, block_size=16)).equal(module(x, OFFSETS))


def test_the_state_is_the_projections():
    module = layer(rotary=RotaryTable.from_theta(8, 100))
    shapes = {name: tuple(x.shape) for name, x in module.state_dict().items()}
    assert shapes == {
        "qkv_proj.weight": (128, 48), "qkv_proj.bias": (128,), "out_proj.weight": (48, 64), "out_proj.bias": (48,),
    }  # fmt: skip
    other = layer(rotary=RotaryTable.from_theta(8, 100))
    other.load_state_dict(module.state_dict())
    assert other(rows(), OFFSETS).equal(module(rows(), OFFSETS))
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    assert torch.load(saved, weights_only=False)(rows(), OFFSETS).equal(module(rows(), OFFSETS))
    assert copy.deepcopy(module)(rows(), OFFSETS).equal(module(rows(), OFFSETS))


def test_the_table_keeps_its_dtype_when_the_parameters_change():
    module = layer(rotary=RotaryTable.from_theta(8, 100)).bfloat16()
    assert module.qkv_proj.weight.dtype == torch.bfloat16
    assert module.rotary_cos.dtype == module.rotary_sin.dtype == torch.float32
    assert module(rows().bfloat16(), OFFSETS).dtype == torch.bfloat16


def test_the_table_keeps_its_values_when_the_parameters_lose_theirs():
    """A model that is made on the meta device has them loaded later; the table is not among them."""
    made = layer(rotary=RotaryTable.from_theta(8, 100))
    with torch.device("meta"):
        table = RotaryTable.from_theta(8, 100, device="cpu")
    module = BlockSelfAttention(48, 4, 2, 16, 32, rotary=table, qkv_bias=True, out_bias=True, device="meta")
    module = torch.nn.Sequential(module).to_empty(device=DEVICE)[0]
    module.load_state_dict(made.state_dict())
    assert module(rows(), OFFSETS).equal(made(rows(), OFFSETS))


def test_a_table_without_values_is_refused():
    with torch.device("meta"):
        table = RotaryTable.from_theta(8, 100)
    module = BlockSelfAttention(48, 4, 2, 16, rotary=table, device="meta")
    assert module(rows().to("meta"), OFFSETS.to("meta")).shape == (70, 48)
    with pytest.raises(RuntimeError, match=r"rotary was made on the meta device.*from_theta\(\.\.\., device='cpu'\)"):
        module.to_empty(device=DEVICE)


def test_without_projection_out():
    module = layer(out_proj=False, out_bias=False)
    assert module.out_proj is None
    assert module(rows(), OFFSETS).shape == (70, 64)


def test_autocast():
    module = layer(rotary=RotaryTable.from_theta(8, 100))
    with torch.autocast(DEVICE, torch.bfloat16):
        out = module(rows(), OFFSETS)
    assert out.dtype == torch.bfloat16
    assert (out.float() - module(rows(), OFFSETS)).abs().max() < 0.1
    out.sum().backward()
    assert module.qkv_proj.weight.grad.dtype == torch.float32


def test_activation_checkpointing():
    module, x = layer(rotary=RotaryTable.from_theta(8, 100)), rows()
    (want,) = torch.autograd.grad(module(x, OFFSETS).square().sum(), x)
    out = checkpoint(module, x, OFFSETS, use_reentrant=False)
    assert torch.autograd.grad(out.square().sum(), x)[0].equal(want)


def test_compile_without_a_graph_break():
    module = layer(rotary=RotaryTable.from_theta(8, 100))
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (70, 50):
        x, offsets = rows()[:count], torch.tensor([0, 3, count], device=DEVICE)
        torch.testing.assert_close(compiled(x, offsets), module(x, offsets))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_heads=4, num_kv_heads=3), "num_heads must be a multiple of num_kv_heads, got 4 and 3"),
        (dict(num_heads=0, num_kv_heads=0), "num_heads must be at least 1, got 0"),
        (dict(num_kv_heads=-1), "num_kv_heads must be at least 1, got -1"),
        (dict(num_heads=5, num_kv_heads=5, head_dim=None), "embed_dim must be a multiple of num_heads"),
        (dict(head_dim=None), "head_dim must be a multiple of 8 from 16 to 256, got 12"),
        (dict(head_dim=264), "head_dim must be a multiple of 8 from 16 to 256, got 264"),
        (dict(block_size=48), r"block_size must be one of \(16, 32, 64, 128\), got 48"),
        (dict(shift=32), "shift must be within 0 and block_size - 1 = 31, got 32"),
        (dict(rotary=RotaryTable(torch.ones(3, 4), torch.ones(3, 4), per_token=True)), "one per token goes in at forward"),
        (dict(rotary=RotaryTable.from_theta(18, 3)), "rotary must turn at most the 16 channels of q, got R = 18"),
        (dict(out_proj=False), "out_bias is an option of out_proj, which is False"),
    ],
)
def test_wrong_numbers_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        layer(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_heads=4.0), "num_heads must be an integer, got float"),
        (dict(num_kv_heads="2"), "num_kv_heads must be an integer, got str"),
        (dict(head_dim=16.0), "head_dim must be an integer, got float"),
        (dict(block_size=32.0), "block_size must be an integer, got float"),
        (dict(shift=None), "shift must be an integer, got NoneType"),
        (dict(rotary=torch.ones(3, 4)), "rotary must be a RotaryTable or None, got Tensor"),
        *[
            ({name: 1}, f"{name} must be True or False, got 1")
            for name in ("causal", "interleaved", "rotate_v", "qkv_bias", "out_proj", "out_bias")
        ],
    ],
)
def test_wrong_types_are_named(options, message):
    with pytest.raises(TypeError, match=message):
        layer(**options)
    with pytest.raises(TypeError, match="embed_dim must be an integer, got float"):
        BlockSelfAttention(64.0, 4)


def test_a_wrong_x_is_named():
    with pytest.raises(ValueError, match=r"x must have shape \[T, 48\], got \(70, 47\)"):
        layer()(rows()[:, 1:], OFFSETS)
    with pytest.raises(TypeError, match="x must be a tensor, got list"):
        layer()([1], OFFSETS)
