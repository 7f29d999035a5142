"""Loads, stores and atomics on the caller's tensors: bounds, types, and who wrote what."""

import numpy as np
import pytest
import torch
from odd import BF16, same
from steps import Program, result, run, tensor

from tlxsim import Code, Unsupported
from tlxsim.global_memory import GlobalMemory
from tlxsim.ops.atomics import _KINDS

POINTEES = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64", torch.int8: "i8",
    torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.float8_e4m3fn: "f8E4M3FN", torch.float8_e5m2: "f8E5M2",
    torch.uint8: "i8",
}  # fmt: skip


def memory_of(**tensors: torch.Tensor) -> GlobalMemory:
    memory = GlobalMemory()
    for name, one in tensors.items():
        memory.add(name, one)
    return memory


def pointers(x: torch.Tensor, offsets, element: str = "") -> tuple[str, np.ndarray]:
    """Addresses of elements of x by offset."""
    offsets = np.asarray(offsets, np.int64)
    element = element or POINTEES[x.dtype]
    return tensor(x.data_ptr() + offsets * x.element_size(), f"!tt.ptr<{element}>")


def load(program: Program, p: tuple, mask=None, other=None):
    kind, addresses = p
    operands = {"p": p}
    if mask is not None:
        operands["m"] = tensor(np.asarray(mask), "i1")
    if other is not None:
        element = kind[kind.index("ptr<") + 4 : -2]
        operands["o"] = tensor(np.broadcast_to(np.asarray(other), addresses.shape), element)
    return result(f"%r = tt.load {', '.join('%' + n for n in operands)} : {kind}", program, **operands)


def store(program: Program, p: tuple, values, mask=None):
    kind, addresses = p
    element = kind[kind.index("ptr<") + 4 : -2]
    operands = {"p": p, "v": tensor(np.broadcast_to(values, addresses.shape), element)}
    if mask is not None:
        operands["m"] = tensor(np.asarray(mask), "i1")
    run(f"tt.store {', '.join('%' + n for n in operands)} : {kind}", program, **operands)


def codes(program: Program) -> list[Code]:
    return [code for code, _ in program.found]


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


def test_misaligned():
    x = torch.arange(4, dtype=torch.int32)
    program = Program(memory_of(x=x))
    addresses = tensor(x.data_ptr() + np.array([0, 6, 8]), "!tt.ptr<i32>")
    same(load(program, addresses), np.array([0, -1, 2], np.int32))
    assert codes(program) == [Code.ALIGNMENT]


# -- write conflicts -----------------------------------------------------------------------------------------------------


class Programs:
    """Programs of one launch, each made when it is first asked for."""

    def __init__(self, **tensors: torch.Tensor):
        self.memory, self.known = memory_of(**tensors), {}

    def __getitem__(self, number: int) -> Program:
        return self.known.setdefault(number, Program(self.memory, (number, 0, 0)))

    @property
    def found(self) -> list[tuple]:
        return [pair for program in self.known.values() for pair in program.found]


def test_two_programs_write_one_element():
    x = torch.zeros(16)
    programs = Programs(x=x)
    store(programs[0], pointers(x, np.arange(8)), np.float32(1))
    store(programs[0], pointers(x, np.arange(8)), np.float32(2))  # its own
    store(programs[1], pointers(x, np.arange(8, 16)), np.float32(3))
    assert not programs.found
    store(programs[1], pointers(x, np.arange(7, 9)), np.float32(4))
    assert programs.found == [(Code.WRITE_CONFLICT, "two programs write the same elements of x without atomics")]
    assert programs[1].details == ["byte 28 of x: program (0, 0, 0) first, then program (1, 0, 0)"]
    store(programs[2], pointers(x, [0]), np.float32(4), [False])
    assert len(programs.found) == 1


def test_conflicts_are_of_bytes_of_any_type():
    x = torch.zeros(4, dtype=torch.int32)
    programs = Programs(x=x)
    bytes_of = lambda n: tensor(x.data_ptr() + np.array([n]), "!tt.ptr<i8>")  # noqa: E731
    store(programs[0], pointers(x, [0]), np.int32(1))
    store(programs[1], bytes_of(4), np.int8(1))
    store(programs[2], bytes_of(5), np.int8(1))
    assert not programs.found
    store(programs[3], bytes_of(3), np.int8(1))
    assert len(programs.found) == 1
    store(programs[4], tensor(x.data_ptr() + np.array([8]), "!tt.ptr<i64>"), np.int64(1))
    assert len(programs.found) == 1
    store(programs[5], pointers(x, [3]), np.int32(1))
    assert len(programs.found) == 2


def rmw(program: Program, kind: str, p: tuple, value, mask=None, order="acq_rel"):
    text, addresses = p
    scalar = not isinstance(addresses, np.ndarray)
    element = text[text.index("ptr<") + 4 : -1 if scalar else -2]
    operands = {"p": p, "v": (element, value) if scalar else tensor(np.asarray(value), element)}
    if mask is not None:
        operands["m"] = ("i1", mask) if scalar else tensor(np.asarray(mask), "i1")
    kinds = ", ".join(kind for kind, _ in operands.values())
    names = ", ".join("%" + n for n in operands)
    return result(f"%r = tt.atomic_rmw {kind}, {order}, gpu, {names} : ({kinds}) -> {operands['v'][0]}", program, **operands)


def cas(program: Program, address: int, expected: int, value: int, order="acq_rel"):
    text = f"%r = tt.atomic_cas {order}, gpu, %p, %c, %v : (!tt.ptr<i32>, i32, i32) -> i32"
    return result(text, program, p=("!tt.ptr<i32>", address), c=("i32", expected), v=("i32", value))


def test_atomics_do_not_conflict_with_each_other():
    x = torch.zeros(4)
    programs = Programs(x=x)
    for number in range(3):
        rmw(programs[number], "fadd", pointers(x, [0, 1]), np.ones(2, np.float32))
    assert x.tolist() == [3, 3, 0, 0]
    assert not programs.found
    store(programs[3], pointers(x, [1]), np.float32(5))
    assert programs.found == [(Code.WRITE_CONFLICT, "two programs write the same elements of x with and without atomics")]


def test_a_plain_store_before_an_own_atomic_is_not_forgotten():
    x = torch.zeros(2)
    programs = Programs(x=x)
    store(programs[0], pointers(x, [0]), np.float32(0))
    rmw(programs[0], "fadd", pointers(x, [0, 1]), np.ones(2, np.float32))
    rmw(programs[1], "fadd", pointers(x, [1]), np.ones(1, np.float32))
    assert not programs.found
    rmw(programs[1], "fadd", pointers(x, [0]), np.ones(1, np.float32))
    assert codes(programs[1]) == [Code.WRITE_CONFLICT]


@pytest.mark.parametrize(
    ("taken", "released", "conflicts"), [("acquire", "release", 0), ("relaxed", "release", 2), ("acquire", "relaxed", 2)]
)
def test_a_lock_orders_stores(taken, released, conflicts):
    """What one program writes under a lock the next may write under it; without acquire or release it may not."""
    lock, x = torch.zeros(1, dtype=torch.int32), torch.zeros(4)
    programs = Programs(lock=lock, x=x)
    for number in range(3):
        assert cas(programs[number], lock.data_ptr(), 0, 1, taken) == 0
        store(programs[number], pointers(x, [0, 1]), np.float32(number))
        assert rmw(programs[number], "exch", ("!tt.ptr<i32>", lock.data_ptr()), 0, order=released) == 1
    assert len(programs.found) == conflicts
    store(programs[3], pointers(x, [0]), np.float32(9))  # it holds no lock
    assert codes(programs[3]) == [Code.WRITE_CONFLICT]


def test_a_counter_orders_nothing():
    count, x = torch.zeros(1, dtype=torch.int32), torch.zeros(4)
    programs = Programs(count=count, x=x)
    for number in range(2):
        assert rmw(programs[number], "add", ("!tt.ptr<i32>", count.data_ptr()), 1) == number
        store(programs[number], pointers(x, [0]), np.float32(number))
        rmw(programs[number], "add", ("!tt.ptr<i32>", count.data_ptr()), 0)
    assert codes(programs[1]) == [Code.WRITE_CONFLICT]


# -- atomics -------------------------------------------------------------------------------------------------------------

UPDATES = {
    "add": lambda a, b: a + b, "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "max": max,
    "min": min, "umax": lambda a, b: max(a % 2**32, b % 2**32), "umin": lambda a, b: min(a % 2**32, b % 2**32),
    "exch": lambda a, b: b,
}  # fmt: skip


@pytest.mark.parametrize("kind", UPDATES)
def test_atomics_lane_by_lane(kind):
    """Lanes that share an address see each other's updates, one after the other."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(-(2**31), 2**31, 6).astype(np.int32))
    values = rng.integers(-(2**31), 2**31, 40).astype(np.int32)
    places, mask = rng.integers(0, 6, 40), rng.random(40) < 0.8
    expected, olds = x.tolist(), []
    for place, value, on in zip(places, values.tolist(), mask):
        olds.append(expected[place] if on else -1)
        if on:
            expected[place] = (UPDATES[kind](expected[place], value) + 2**31) % 2**32 - 2**31
    found = rmw(Program(memory_of(x=x)), kind, pointers(x, places), values, mask)
    assert x.tolist() == expected
    assert found.tolist() == olds


def test_all_kinds_are_tested():
    assert set(UPDATES) | {"fadd"} == set(_KINDS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_atomic_add_of_floats(dtype):
    x = torch.zeros(2, dtype=dtype)
    values = np.array([1, 2, 3, 4.5]).astype(load(Program(memory_of(x=x)), pointers(x, [0])).dtype)
    old = rmw(Program(memory_of(x=x)), "fadd", pointers(x, [0, 1, 0, 0]), values)
    assert old.astype(float).tolist() == [0, 0, 1, 4]
    assert x.tolist() == [8.5, 2]


def test_compare_and_swap():
    x = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    kind = "tensor<4xi32>"
    text = f"%r = tt.atomic_cas relaxed, sys, %p, %c, %v : (tensor<4x!tt.ptr<i32>>, {kind}, {kind}) -> {kind}"
    operands = dict(c=(kind, np.array([1, 9, 3, 9], np.int32)), v=(kind, np.array([10, 20, 30, 40], np.int32)))
    old = result(text, Program(memory_of(x=x)), p=pointers(x, np.arange(4)), **operands)
    assert old.tolist() == [1, 2, 3, 4]
    assert x.tolist() == [10, 2, 30, 4]


def test_atomics_out_of_bounds():
    x = torch.zeros(2, dtype=torch.int32)
    program = Program(memory_of(x=x))
    old = rmw(program, "add", pointers(x, [1, 2]), np.array([5, 6], np.int32))
    assert old.tolist() == [0, -1]
    assert x.tolist() == [0, 5]
    assert codes(program) == [Code.OUT_OF_BOUNDS]
    assert rmw(program, "add", ("!tt.ptr<i32>", 0), 1, mask=False) == -1
    assert len(program.found) == 1


def test_other_atomics_are_refused():
    x = torch.zeros(2)
    with pytest.raises(Unsupported, match="the atomic and of float32"):
        rmw(Program(memory_of(x=x)), "and", pointers(x, [0]), np.ones(1, np.float32))
    with pytest.raises(Unsupported, match="the order seq_cst"):
        rmw(Program(memory_of(x=x)), "fadd", pointers(x, [0]), np.ones(1, np.float32), order="seq_cst")
