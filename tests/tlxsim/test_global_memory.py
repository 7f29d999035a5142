"""Loads and stores on the caller's tensors: bounds, types, and tables of pointers."""

import numpy as np
import pytest
import torch
from odd import BF16, same
from steps import POINTEES, Program, codes, load, memory_of, pointers, result, run, store, tensor, through

from tlxsim import Code


@pytest.mark.parametrize("dtype", POINTEES)
def test_every_type_goes_in_and_out(dtype):
    first = 200 if dtype == torch.uint8 else -8
    x = torch.arange(first, first + 32).to(dtype).reshape(4, 8)
    kept = x.clone()
    program = Program(memory_of(x=x))
    there = pointers(x, np.arange(32).reshape(4, 8))
    values = load(program, there)
    np.testing.assert_array_equal(values.astype(np.float64) % 256, kept.to(torch.float64).numpy() % 256)
    store(program, pointers(x, np.arange(32).reshape(4, 8)), values[::-1])
    torch.testing.assert_close(x.to(torch.float64), kept.flip(0).to(torch.float64), rtol=0, atol=0)
    assert not program.found


def test_pointer_arithmetic():
    x = torch.arange(16, dtype=torch.bfloat16)
    base = ("!tt.ptr<bf16>", x.data_ptr())
    one = "%q = tt.addptr %p, %o : !tt.ptr<bf16>, i32\n%r = tt.load %q : !tt.ptr<bf16>"
    assert result(one, Program(memory_of(x=x)), p=base, o=("i32", 5)) == BF16.type(5)
    many = """%q = tt.splat %p : !tt.ptr<bf16> -> tensor<4x!tt.ptr<bf16>>
%s = tt.addptr %q, %o : tensor<4x!tt.ptr<bf16>>, tensor<4xi32>
%r = tt.load %s cacheModifier = cg evictionPolicy = evict_first {isVolatile = true} : tensor<4x!tt.ptr<bf16>>"""
    offsets = np.array([15, 0, 3, 3], np.int32)
    same(result(many, Program(memory_of(x=x)), p=base, o=tensor(offsets, "i32")), offsets.astype(BF16))


def test_offsets_are_64_bits():
    kind, offsets = "tensor<2x!tt.ptr<f32>>", np.array([1 << 30, -(1 << 30)], np.int32)
    line = f"%r = tt.addptr %p, %o : {kind}, tensor<2xi32>"
    same(result(line, p=(kind, np.full(2, 1 << 40)), o=tensor(offsets, "i32")), (1 << 40) + offsets.astype(np.int64) * 4)
    line = "%r = tt.addptr %p, %o : !tt.ptr<f64>, i32"
    assert result(line, p=("!tt.ptr<f64>", 1 << 40), o=("i32", -5)) == (1 << 40) - 40


def test_scalars():
    x = torch.tensor([3, -4, 5])
    program = Program(memory_of(x=x))
    kind = "!tt.ptr<i64>"
    found = result(f"%r = tt.load %p : {kind}", program, p=(kind, x.data_ptr() + 8))
    assert found == -4
    assert type(found) is int
    masked = f"%r = tt.load %p, %m, %o : {kind}"
    assert result(masked, program, p=(kind, 0), m=("i1", False), o=("i64", 9)) == 9
    run(f"tt.store %p, %v : {kind}", program, p=(kind, x.data_ptr()), v=("i64", 11))
    run(f"tt.store %p, %v, %m : {kind}", program, p=(kind, 0), v=("i64", 11), m=("i1", False))
    assert x.tolist() == [11, -4, 5]
    assert not program.found


def test_masked_lanes_are_not_touched():
    x = torch.arange(4.0)
    program = Program(memory_of(x=x))
    there = pointers(x, np.arange(8))
    mask = np.arange(8) < 4
    same(load(program, there, mask, np.float32(7)), np.array([0, 1, 2, 3, 7, 7, 7, 7], np.float32))
    same(load(program, there, mask), np.array([0, 1, 2, 3, 0, 0, 0, 0], np.float32))
    same(load(program, there, ~(mask | True), np.float32(2)), np.full(8, 2, np.float32))
    store(program, there, np.float32(5), mask & (np.arange(8) > 1))
    assert x.tolist() == [0, 1, 5, 5]
    assert not program.found


def test_outside_is_reported_poisoned_and_not_stored():
    x = torch.arange(4.0)
    program = Program(memory_of(x=x))
    found = load(program, pointers(x, [2, 3, 4, 5]))
    same(found[:2], np.array([2, 3], np.float32))
    assert np.isnan(found[2:]).all()
    assert program.found == [(Code.OUT_OF_BOUNDS, "tt.load of 4-byte elements past the end of x")]
    assert "byte 16 of x, which has 16 bytes; 2 of 4 lanes" in program.details[0]
    store(program, pointers(x, [-1, 0]), np.float32(9))
    assert x.tolist() == [9, 1, 2, 3]
    assert program.found[1] == (Code.OUT_OF_BOUNDS, "tt.store of 4-byte elements before the start of x")
    kind = "!tt.ptr<i32>"
    assert result(f"%r = tt.load %p : {kind}", program, p=(kind, x.data_ptr() + 16)) == -1
    assert len(program.found) == 3


def test_an_element_must_lie_inside_as_a_whole():
    x = torch.zeros(6, dtype=torch.int8)
    program = Program(memory_of(x=x))
    kind = "!tt.ptr<i32>"
    assert result(f"%r = tt.load %p : {kind}", program, p=(kind, x.data_ptr())) == 0
    result(f"%r = tt.load %p : {kind}", program, p=(kind, x.data_ptr() + 4))
    assert codes(program) == [Code.OUT_OF_BOUNDS]


def test_bounds_are_those_of_the_argument_and_not_of_its_storage():
    storage = torch.arange(64.0).reshape(8, 8)
    x = storage[2:5, 1:4]  # elements 17 .. 35 of the storage, with gaps that belong to it
    program = Program(memory_of(x=x))
    same(load(program, pointers(x, [0, 18])), np.array([17, 35], np.float32))
    assert not program.found
    load(program, pointers(x, [-1]))
    load(program, pointers(x, [19]))
    assert codes(program) == [Code.OUT_OF_BOUNDS] * 2


def test_arguments_may_overlap():
    storage = torch.arange(64.0)
    program = Program(memory_of(low=storage[:40], high=storage[24:], wide=storage[30:34].view(torch.float64)))
    same(load(program, pointers(storage, [0, 39, 63])), np.array([0, 39, 63], np.float32))
    assert not program.found
    load(program, pointers(storage, [64]))
    assert "past the end of high" in program.found[0][1]


def test_several_arguments_in_one_access():
    x, y = torch.arange(4.0), torch.arange(4.0) + 10
    program = Program(memory_of(x=x, y=y))
    addresses = np.concatenate([pointers(x, [1, 2])[1], pointers(y, [0, 9, 3])[1]])
    found = load(program, tensor(addresses, "!tt.ptr<f32>"))
    same(found[[0, 1, 2, 4]], np.array([1, 2, 10, 13], np.float32))
    assert np.isnan(found[3])
    assert codes(program) == [Code.OUT_OF_BOUNDS]
    store(program, tensor(addresses, "!tt.ptr<f32>"), np.arange(5, dtype=np.float32))
    assert (x.tolist(), y.tolist()) == ([0, 0, 1, 3], [2, 11, 12, 4])


def test_empty_expanded_and_shifted_tensors():
    one, last = torch.ones(1).expand(50), torch.arange(9.0)[8:]
    program = Program(memory_of(none=torch.zeros(0), one=one, last=last))
    assert load(program, pointers(one, [0]))[0] == 1
    assert load(program, pointers(last, [0]))[0] == 8
    assert not program.found
    load(program, pointers(one, [1]))
    load(program, pointers(last, [1]))
    assert [message.split()[-1] for _, message in program.found] == ["one", "last"]
    with pytest.raises(ValueError, match="must be on the CPU"):
        memory_of(x=torch.zeros(1, device="meta"))


def test_without_arguments():
    program = Program()
    run("%r = tt.load %p : !tt.ptr<f32>", program, p=("!tt.ptr<f32>", 64))
    assert codes(program) == [Code.OUT_OF_BOUNDS]


def test_other_types_at_the_same_address():
    x = torch.tensor([1.0, -2.0])
    program = Program(memory_of(x=x))
    same(load(program, pointers(x, [0, 1], "i32")), x.numpy().view(np.int32))
    halves = tensor(x.data_ptr() + 2 * np.arange(4), "!tt.ptr<i16>")
    same(load(program, halves), x.numpy().view(np.int16))


@pytest.mark.parametrize("element", ["i16", "i32", "i64"])
def test_misaligned(element):
    x = torch.arange(64, dtype=torch.int8)
    program, size = Program(memory_of(x=x)), int(element[1:]) // 8
    found = load(program, tensor(x.data_ptr() + np.array([0, size // 2, size]), f"!tt.ptr<{element}>"))
    expected = x.numpy().view(found.dtype)
    same(found, np.array([expected[0], -1, expected[1]], found.dtype))
    assert codes(program) == [Code.ALIGNMENT]


def test_tables_of_pointers():
    """A tensor that is no argument may be reached through an address in memory, and through nothing else."""
    x, far = torch.zeros(4), torch.arange(8.0)
    program = Program(memory_of(x=x))
    assert through(program, far.data_ptr()) == 0
    assert through(program, far.data_ptr() + 28) == 7
    assert not program.found
    through(program, far.data_ptr() + 32)
    assert "past the end of a tensor of shape (8,)" in program.found[0][1]
    for address in (far.data_ptr() + 32, far.data_ptr() - 4):
        outside = Program(memory_of(x=x))
        through(outside, address)
        assert codes(outside) == [Code.OUT_OF_BOUNDS]
    other = torch.zeros(4)
    load(program, pointers(other, [0]))
    assert codes(program) == [Code.OUT_OF_BOUNDS] * 2
    table = torch.tensor([far.data_ptr(), other.data_ptr()])
    program = Program(memory_of(table=table))
    kind = "tensor<2x!tt.ptr<!tt.ptr<f32>>>"
    text = f"%q = tt.load %p : {kind}\n%r = tt.load %q : tensor<2x!tt.ptr<f32>>"
    same(result(text, program, p=(kind, table.data_ptr() + 8 * np.arange(2))), np.zeros(2, np.float32))
    assert not program.found
