"""TMA descriptors: blocks inside, partly outside and outside of the tensor, and what TMA asks of them."""

import itertools
import math
import types

import numpy as np
import pytest
import torch
from odd import BF16, same
from steps import Program, result, run, tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tlxsim import Code, Unsupported
from tlxsim.descriptor import Descriptor
from tlxsim.global_memory import GlobalMemory

OP = types.SimpleNamespace(name="copy", loc="kernel.py:1")


def launch_of(memory: GlobalMemory, found: list) -> types.SimpleNamespace:
    return types.SimpleNamespace(memory=memory, add=found.append, kernel="kernel", schedule="eager")


def host(x: torch.Tensor, block, **options) -> tuple[Descriptor, Program]:
    """The descriptor of a host TensorDescriptor and a program that may use it."""
    memory, found = GlobalMemory(), []
    memory.add("x", x)
    descriptor = Descriptor.from_host("x", TensorDescriptor.from_tensor(x, list(block), **options), launch_of(memory, found))
    assert not found
    return descriptor, Program(memory)


def window(x: np.ndarray, at, block, fill) -> np.ndarray:
    """The block of x at coordinates, element by element."""
    made = np.full(block, fill, x.dtype)
    for place in itertools.product(*(range(n) for n in block)):
        there = tuple(a + p for a, p in zip(at, place))
        if all(0 <= i < n for i, n in zip(there, x.shape)):
            made[place] = x[there]
    return made


def task_of(program: Program) -> types.SimpleNamespace:
    return types.SimpleNamespace(program=program, name="kernel")


CASES = [
    ((40,), (16,)), ((6, 24), (4, 8)), ((3, 5, 16), (2, 4, 8)), ((2, 3, 4, 16), (1, 2, 2, 16)),
    ((2, 2, 2, 3, 8), (1, 2, 1, 2, 8)),
]  # fmt: skip


def coordinates(offsets: list[set[int]], most: int) -> list[tuple[int, ...]]:
    """About so many of all combinations; the last coordinate is a multiple of 16 bytes."""
    *others, last = offsets
    picked = list(itertools.product(*map(sorted, others), sorted({offset // 4 * 4 for offset in last})))
    return picked[:: max(1, len(picked) // most)]


@pytest.mark.parametrize(("shape", "block"), CASES)
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_reads_fill_what_is_outside(shape, block, padding):
    x = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    descriptor, program = host(x, block, padding=padding)
    for at in coordinates([{-b, -1, 0, 1, n - b, n - 1, n, n + 3} for n, b in zip(shape, block)], 150):
        found = descriptor.read(at, OP, task_of(program))
        same(found, window(x.numpy(), at, block, math.nan if padding == "nan" else 0))
    assert not program.found


@pytest.mark.parametrize(("shape", "block"), CASES)
def test_writes_are_clipped(shape, block):
    x = torch.zeros(shape)
    descriptor, program = host(x, block)
    tile = np.arange(1, math.prod(block) + 1, dtype=np.float32).reshape(block)
    for at in coordinates([{-b, -1, 0, n - b, n - 1, n} for n, b in zip(shape, block)], 100):
        x.zero_()
        program.found.clear()
        descriptor.write(at, tile, OP, task_of(program))
        expected = window(tile, [-a for a in at], shape, 0)
        same(x.numpy(), expected)
        assert [code for code, _ in program.found] == [Code.OUT_OF_BOUNDS] * (min(at) < 0)


def test_the_last_coordinate_is_a_multiple_of_16_bytes():
    descriptor, program = host(torch.zeros(8, 64), (4, 16))
    descriptor.read([1, 4], OP, task_of(program))
    assert not program.found
    descriptor.read([1, 6], OP, task_of(program))
    assert program.found == [(Code.ALIGNMENT, "the last coordinate of x is 6, 24 bytes, no multiple of 16")]


def test_a_read_is_a_copy():
    x = torch.zeros(4, 8)
    descriptor, program = host(x, (4, 8))
    tile = descriptor.read((0, 0), OP, task_of(program))
    x.fill_(1)
    assert (tile == 0).all()


def test_slices_with_strides():
    """Columns of a wider tensor: the stride is the wide one's."""
    wide = torch.arange(8 * 32, dtype=torch.bfloat16).reshape(8, 32)
    x = wide[:, 8:24]
    descriptor, program = host(x, (4, 16))
    same(descriptor.read((6, 8), OP, task_of(program)), window(x.float().numpy().astype(BF16), (6, 8), (4, 16), 0))
    descriptor.write((0, 0), np.full((4, 16), -1, BF16), OP, task_of(program))
    assert (wide[:4, 8:24] == -1).all()
    assert (wide[:, :8] >= 0).all()
    assert (wide[4:] >= 0).all()
    assert not program.found


@pytest.mark.parametrize(
    ("dtype", "kind", "function"),
    [
        (torch.float32, "add", np.add), (torch.bfloat16, "add", np.add), (torch.bfloat16, "max", np.maximum),
        (torch.int32, "add", np.add), (torch.int32, "min", np.minimum), (torch.int32, "and", np.bitwise_and),
        (torch.int32, "or", np.bitwise_or), (torch.int32, "xor", np.bitwise_xor), (torch.uint32, "max", np.maximum),
        (torch.uint32, "min", np.minimum),
    ],
)  # fmt: skip
def test_reductions(dtype, kind, function):
    first, second = torch.arange(-16, 16).reshape(4, 8), torch.arange(16, -16, -1).reshape(4, 8) // 3
    x, tile = first.to(dtype), second.to(dtype)
    old, new = ((y.float().numpy() if dtype.is_floating_point else y.numpy()).copy() for y in (x, tile))
    descriptor, program = host(x, (4, 8))
    given = new.astype(descriptor.dtype) if dtype.is_floating_point else new.view(np.int32)
    descriptor.write((1, 0), given, OP, task_of(program), kind)
    expected = old.copy()
    expected[1:] = function(old[1:], new[:3])
    np.testing.assert_array_equal(x.float().numpy() if dtype.is_floating_point else x.numpy(), expected)


def test_other_reductions_are_refused():
    descriptor, program = host(torch.zeros(4, 8), (4, 8))
    for kind in ("inc", "and"):
        with pytest.raises(Unsupported, match=f"the reduction {kind} of float32"):
            descriptor.write((0, 0), np.zeros((4, 8), np.float32), OP, task_of(program), kind)


def test_conflicts_between_programs():
    x = torch.zeros(8, 16)
    descriptor, first = host(x, (4, 16))
    second, third = (Program(first.memory, (n, 0, 0)) for n in (1, 2))
    tile = np.ones((4, 16), np.float32)
    descriptor.write((0, 0), tile, OP, task_of(first))
    descriptor.write((4, 0), tile, OP, task_of(second))
    assert not second.found
    descriptor.write((2, 0), tile, OP, task_of(third))
    assert {code for code, _ in third.found} == {Code.WRITE_CONFLICT}
    assert "byte 128 of x: program (0, 0, 0) first" in third.details[0]


def test_reductions_of_programs_do_not_conflict():
    x = torch.zeros(8, 16)
    descriptor, first = host(x, (4, 16))
    second, third = (Program(first.memory, (n, 0, 0)) for n in (1, 2))
    tile = np.ones((4, 16), np.float32)
    descriptor.write((0, 0), tile, OP, task_of(first), "add")
    descriptor.write((0, 0), tile, OP, task_of(second), "add")
    assert (x[:4] == 2).all()
    assert not second.found
    descriptor.write((0, 0), tile, OP, task_of(third))
    assert [code for code, _ in third.found] == [Code.WRITE_CONFLICT]


def test_a_tensor_larger_than_its_memory():
    """What the descriptor claims beyond the tensor argument is out of bounds."""
    x = torch.ones(6, 16)
    memory, found = GlobalMemory(), []
    memory.add("x", x)
    claimed = TensorDescriptor(x, [8, 16], [16, 1], [4, 16])
    descriptor, program = Descriptor.from_host("x", claimed, launch_of(memory, found)), Program(memory)
    assert (descriptor.read((0, 0), OP, task_of(program)) == 1).all()
    assert not program.found
    tile = descriptor.read((4, 0), OP, task_of(program))
    assert (tile[:2] == 1).all()
    assert np.isnan(tile[2:]).all()
    descriptor.write((4, 0), np.full((4, 16), 3, np.float32), OP, task_of(program))
    assert (x[4:] == 3).all()
    assert [code for code, _ in program.found] == [Code.OUT_OF_BOUNDS] * 2


def test_a_tensor_that_lacks_one_element():
    x = torch.ones(95)
    memory, found = GlobalMemory(), []
    memory.add("x", x)
    claimed = TensorDescriptor(x, [6, 16], [16, 1], [2, 16])
    descriptor, program = Descriptor.from_host("x", claimed, launch_of(memory, found)), Program(memory)
    tile = descriptor.read((4, 0), OP, task_of(program))
    assert np.isnan(tile).sum() == 1
    assert np.isnan(tile[1, 15])
    assert [code for code, _ in program.found] == [Code.OUT_OF_BOUNDS]


# -- made in a kernel ----------------------------------------------------------------------------------------------------

MAKE = "%r = tt.make_tensor_descriptor %p, [%m, %n], [%s, %t]{padding} : <f32>, <{block}xf32>"


def made(program: Program, base: int, shape, strides, block="4x8", padding="") -> Descriptor:
    values = dict(zip("mn", (("i32", n) for n in shape))) | dict(zip("st", (("i64", n) for n in strides)))
    return result(MAKE.format(padding=padding, block=block), program, p=("!tt.ptr<f32>", base), **values)


def test_device_descriptors():
    x = torch.arange(64.0).reshape(4, 16)
    memory = GlobalMemory()
    memory.add("x", x)
    program = Program(memory)
    descriptor = made(program, x.data_ptr(), (4, 16), (16, 1))
    kind = "!tt.tensordesc<4x8xf32>"
    load = f"%r = tt.descriptor_load %d[%i, %j] : {kind} -> tensor<4x8xf32>"
    found = result(load, program, d=(kind, descriptor), i=("i32", -1), j=("i32", 12))
    same(found, window(x.numpy(), (-1, 12), (4, 8), 0))
    nan = made(program, x.data_ptr(), (4, 16), (16, 1), padding=" {padding = 2 : i32}")
    assert np.isnan(result(load, program, d=(kind, nan), i=("i32", -1), j=("i32", 12))).sum() == 20
    with pytest.raises(Unsupported, match="padding"):
        made(program, x.data_ptr(), (4, 16), (16, 1), padding=" {padding = 3 : i32}")
    store = f"tt.descriptor_store %d[%i, %j], %v : {kind}, tensor<4x8xf32>"
    ones = tensor(np.ones((4, 8), np.float32), "f32")
    run(store, program, d=(kind, descriptor), i=("i32", 2), j=("i32", 0), v=ones)
    assert (x[2:, :8] == 1).all()
    add = f"tt.descriptor_reduce add, %d[%i, %j], %v : {kind}, tensor<4x8xf32>"
    run(add, program, d=(kind, descriptor), i=("i32", 2), j=("i32", 0), v=ones)
    assert (x[2:, :8] == 2).all()
    assert x[1, 7] == 23
    assert not program.found


def test_a_block_of_more_dimensions_than_the_tile():
    x = torch.arange(64.0).reshape(2, 4, 8)
    descriptor, program = host(x, (1, 4, 8))
    kind = "!tt.tensordesc<1x4x8xf32>"
    load = f"%r = tt.descriptor_load %d[%i, %j, %j] : {kind} -> tensor<4x8xf32>"
    same(result(load, program, d=(kind, descriptor), i=("i32", 1), j=("i32", 0)), x[1].numpy())


def test_gather_and_scatter():
    x = torch.arange(8 * 32, dtype=torch.float32).reshape(8, 32)
    kept = x.clone().numpy()
    descriptor, program = host(x, (1, 16))
    rows = np.array([7, 0, 3, 8, -1, 3, 2, 5], np.int32)
    kind = "!tt.tensordesc<1x16xf32>"
    gather = f"%r = tt.descriptor_gather %d[%i, %j] : ({kind}, tensor<8xi32>, i32) -> tensor<8x16xf32>"
    found = result(gather, program, d=(kind, descriptor), i=tensor(rows, "i32"), j=("i32", 24))
    expected = np.zeros((8, 16), np.float32)
    inside = (rows >= 0) & (rows < 8)
    expected[inside, :8] = kept[rows[inside], 24:]
    same(found, expected)
    scatter = f"tt.descriptor_scatter %d[%i, %j], %v : {kind}, tensor<8xi32>, i32, tensor<8x16xf32>"
    operands = dict(i=tensor(rows, "i32"), j=("i32", -8), v=tensor(np.full((8, 16), -1, np.float32), "f32"))
    run(scatter, program, d=(kind, descriptor), **operands)
    kept[rows[inside], :8] = -1
    same(x.numpy(), kept)
    assert not program.found


FAULTS = [
    ("the base address", dict(base=4)), ("stride 0", dict(strides=(18, 1))), ("the last stride", dict(strides=(16, 2))),
    ("dimension 1", dict(shape=(4, 0))), ("a row of the block", dict(block="4x2")),
]  # fmt: skip


@pytest.mark.parametrize(("what", "changed"), FAULTS)
def test_rules_of_tma(what, changed):
    x = torch.zeros(64)
    memory = GlobalMemory()
    memory.add("x", x)
    program = Program(memory)
    arguments = dict(shape=(4, 16), strides=(16, 1)) | changed
    made(program, x.data_ptr() + arguments.pop("base", 0), **arguments)
    assert [code for code, _ in program.found] == [Code.ALIGNMENT]
    assert what in program.found[0][1]
    assert "%" not in program.found[0][1]
    assert " r " in program.found[0][1] + " "


def test_rules_of_tma_on_the_host():
    x = torch.zeros(4, 16)
    memory, found = GlobalMemory(), []
    memory.add("x", x)
    descriptor = TensorDescriptor.from_tensor(x, [4, 8])
    descriptor.strides = [18, 1]
    Descriptor.from_host("x", descriptor, launch_of(memory, found))
    assert [(one.code, one.message) for one in found] == [
        (Code.ALIGNMENT, "stride 0 of x is 72 bytes, no multiple of 16"),
    ]
    rounding = TensorDescriptor.from_tensor(x, [4, 8], round_f32_to_tf32=True)
    with pytest.raises(Unsupported, match="tf32"):
        Descriptor.from_host("x", rounding, launch_of(memory, found))


TENSOR_MAP = """%map = ttg.global_scratch_alloc {alignment = 128 : i32, nbytes = 128 : i32} : !tt.ptr<i8>
%one = arith.constant 1 : i32
ttng.tensormap_create %map, %p, [%bn, %bm], [%n, %m], [%s], [%one, %one] {elem_type = 7 : i32, fill_mode = 1 : i32, \
interleave_layout = 0 : i32, swizzle_mode = 3 : i32} : (!tt.ptr<i8>, !tt.ptr<f32>, i32, i32, i32, i32, i64, i32, i32) -> ()
ttng.tensormap_fenceproxy_acquire %map : !tt.ptr<i8>
%r = ttng.reinterpret_tensor_descriptor %map : !tt.ptr<i8> to !tt.tensordesc<4x8xf32>"""


def test_tensor_maps():
    x = torch.arange(64.0).reshape(4, 16)
    memory = GlobalMemory()
    memory.add("x", x)
    program = Program(memory)
    sizes = dict(bm=("i32", 4), bn=("i32", 8), m=("i32", 4), n=("i32", 16), s=("i64", 64))
    descriptor = result(TENSOR_MAP, program, p=("!tt.ptr<f32>", x.data_ptr()), **sizes)
    same(descriptor.read((1, 12), OP, task_of(program)), window(x.numpy(), (1, 12), (4, 8), math.nan))
    with pytest.raises(Unsupported, match="not made by this kernel"):
        run(TENSOR_MAP.splitlines()[-1], program, map=("!tt.ptr<i8>", 128))
