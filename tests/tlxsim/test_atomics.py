"""Who wrote what: conflicts between programs, locks, and atomics."""

import numpy as np
import pytest
import torch
from steps import Program, Programs, cas, codes, load, memory_of, pointers, result, rmw, store, tensor, through

from tlxsim import Code, Unsupported
from tlxsim.ops.atomics import _KINDS


def test_a_tensor_found_later_keeps_who_wrote_its_part():
    whole = torch.zeros(16)
    programs = Programs(part=whole[4:8])
    store(programs[0], pointers(whole, [4, 7]), np.float32(1))
    through(programs[1], whole.data_ptr())
    store(programs[1], pointers(whole, [3, 5, 6, 8]), np.float32(2))
    assert not programs.found
    store(programs[1], pointers(whole, [7]), np.float32(2))
    assert codes(programs[1]) == [Code.WRITE_CONFLICT]


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


def test_a_releasing_exchange_acquires_nothing():
    lock, x = torch.zeros(1, dtype=torch.int32), torch.zeros(4)
    programs = Programs(lock=lock, x=x)
    for number in range(2):
        rmw(programs[number], "exch", ("!tt.ptr<i32>", lock.data_ptr()), 1, order="release")
        store(programs[number], pointers(x, [0]), np.float32(number))
        rmw(programs[number], "exch", ("!tt.ptr<i32>", lock.data_ptr()), 0, order="release")
    assert codes(programs[1]) == [Code.WRITE_CONFLICT]


def test_an_acquiring_swap_releases_nothing():
    lock, x = torch.zeros(1, dtype=torch.int32), torch.zeros(4)
    programs = Programs(lock=lock, x=x)
    for number in range(2):
        cas(programs[number], lock.data_ptr(), 0, 1, "acquire")
        store(programs[number], pointers(x, [0]), np.float32(number))
        cas(programs[number], lock.data_ptr(), 1, 0, "acquire")
    assert codes(programs[1]) == [Code.WRITE_CONFLICT]


def test_a_counter_orders_nothing():
    count, x = torch.zeros(1, dtype=torch.int32), torch.zeros(4)
    programs = Programs(count=count, x=x)
    for number in range(2):
        assert rmw(programs[number], "add", ("!tt.ptr<i32>", count.data_ptr()), 1) == number
        store(programs[number], pointers(x, [0]), np.float32(number))
        rmw(programs[number], "add", ("!tt.ptr<i32>", count.data_ptr()), 0)
    assert codes(programs[1]) == [Code.WRITE_CONFLICT]


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
