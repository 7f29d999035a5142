"""Addresses more than 2³¹ elements apart, which 32 bits do not hold: rows, heads, tiles and lines of a rotary table."""

import dataclasses

import pytest
import torch

from backends import HAS_GPU, HAS_TRITON
from blockattn import RotaryTable, block_attention, block_attention_packed

ROWS, HEAD_DIM, PAIRS = 48, 16, 8
FAR = (1 << 31) // 20  # from its 20th row on, a tensor lies past 2³¹
GUARD = 1 << 31  # what wraps to a negative offset stays in memory, and finds other values there

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason="needs triton"),
    *[pytest.mark.slow] * HAS_GPU,  # there, all of the memory is taken
]


class Memory:
    """Hands out places in one vast piece of memory; on the CPU it is a file with holes, whose pages exist once written."""

    def __init__(self, folder, device):
        size = GUARD + ROWS * FAR
        if device == "cuda":
            if torch.cuda.mem_get_info()[0] < 1.1 * 2 * size:
                pytest.skip("needs 16 GB of the GPU's memory")
            self.all = torch.zeros(size, device=device, dtype=torch.float16)
        else:
            self.all = torch.from_file(str(folder / "memory"), shared=True, size=size, dtype=torch.float16)
        self.free = GUARD

    def place(self, x, *strides):
        """x with these strides, beside what was placed with strides like them."""
        view = self.all.as_strided(x.shape, (*strides, 1), self.free)
        self.free += ROWS * HEAD_DIM * 8
        return view.copy_(x)


@pytest.fixture
def memory(tmp_path, device):
    yield Memory(tmp_path, device)
    (tmp_path / "memory").unlink(missing_ok=True)


@dataclasses.dataclass
class Operands:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


def operands(q_heads, kv_heads, device):
    generator = torch.Generator().manual_seed(0)
    heads = (q_heads, kv_heads, kv_heads, q_heads)
    tensors = [torch.randn(ROWS, h, HEAD_DIM, generator=generator) for h in heads]
    angles = torch.randn(ROWS, PAIRS, generator=generator)
    return Operands(*[x.to(device, torch.float16) for x in (*tensors, angles.cos(), angles.sin())])


def both_directions(x, form, block_size, by_position=True):
    """o and the gradients of q, k and v; a form is plain, or has the two conventions of pairs."""
    leaves = [y.detach().requires_grad_() for y in (x.q, x.k, x.v)]
    options = {}
    if form != "plain":
        options = dict(rotary=RotaryTable(x.cos, x.sin, per_token=not by_position), interleaved=form == "interleaved")
        options["rotate_v"] = True
    offsets = torch.tensor([0, ROWS], device=x.q.device)
    o = block_attention(*leaves, offsets, block_size=block_size, backend="triton", **options)
    return o.detach(), *torch.autograd.grad(o, leaves, x.do)


def assert_same(results, wanted):
    for got, want in zip(results, wanted, strict=True):
        assert torch.allclose(got, want, rtol=1e-3, atol=1e-3)


FORMS = ["plain", "interleaved", "halves"]


def with_rows_far_apart(x, memory):
    return dataclasses.replace(x, **{n: memory.place(getattr(x, n), FAR, HEAD_DIM) for n in ("q", "k", "v", "do")})


@pytest.mark.parametrize("form", FORMS)
def test_a_row_stride_that_needs_64_bits_inside_a_tile(form, memory, device):
    x = operands(2, 1, device)
    assert_same(both_directions(with_rows_far_apart(x, memory), form, 64), both_directions(x, form, 64))


@pytest.mark.parametrize("form", FORMS)
def test_tiles_far_apart(form, memory, device):
    """A tile's first row lies past 2³¹, though the rows of no tile are so far apart."""
    x = operands(2, 1, device)
    assert_same(both_directions(with_rows_far_apart(x, memory), form, 16), both_directions(x, form, 16))


@pytest.mark.parametrize("form", FORMS)
def test_heads_far_apart(form, memory, device):
    """The last head of each lies past 2³¹, though no head's stride does."""
    x = operands(6, 3, device)
    apart = {"q": 1 << 29, "do": 1 << 29, "k": 1 << 30, "v": 1 << 30}
    far = dataclasses.replace(x, **{n: memory.place(getattr(x, n), HEAD_DIM, stride) for n, stride in apart.items()})
    assert_same(both_directions(far, form, 64), both_directions(x, form, 64))


@pytest.mark.parametrize(("block_size", "by_position"), [(16, True), (16, False), (64, True)])
def test_lines_of_a_table_far_apart(block_size, by_position, memory, device):
    """Lines of cosines and sines, alone: past 2³¹ from tile to tile, and inside a tile."""
    x = operands(2, 1, device)
    far = dataclasses.replace(x, cos=memory.place(x.cos, FAR), sin=memory.place(x.sin, FAR))
    results, wanted = (both_directions(y, "interleaved", block_size, by_position) for y in (far, x))
    assert_same(results, wanted)


@pytest.mark.parametrize(
    ("packed", "rotary", "block_size"), [("flat", True, 16), ("heads", False, 64), ("three", True, 64), ("flat", False, 16)]
)
def test_packed_rows_far_apart(packed, rotary, block_size, memory, device):
    x = operands(2, 2, device)
    qkv = torch.cat([x.q, x.k, x.v], 1)
    shape = {"flat": (6 * HEAD_DIM,), "heads": (6, HEAD_DIM), "three": (3, 2, HEAD_DIM)}[packed]
    offsets = torch.tensor([0, ROWS], device=device)
    table = RotaryTable(x.cos, x.sin, per_token=True) if rotary else None
    options = dict(num_heads=2, block_size=block_size, backend="triton", rotary=table)

    def results(flat):
        leaf = flat.unflatten(1, shape).detach().requires_grad_()
        o = block_attention_packed(leaf, offsets, **options)
        return o.detach(), *torch.autograd.grad(o, leaf, x.do)

    assert_same(results(memory.place(qkv.flatten(1), FAR)), results(qkv.flatten(1)))
