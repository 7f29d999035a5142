"""Integers, comparisons, selection and constants, to the bit."""

import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from odd import BF16, INTEGERS, both_ways, pairs, same, signed
from steps import result, tensor

from tlxsim import Unsupported


def divided(x: int, y: int) -> int:
    return math.trunc(Fraction(x, y)) if y else -1


def modulus(x: int, y: int) -> int:
    return x - divided(x, y) * y if y else -1


def shifted(x: int, n: int, width: int) -> int:
    return x << n if 0 <= n < width else 0


SIGNED = {
    "arith.addi": operator.add, "arith.subi": operator.sub, "arith.muli": operator.mul, "arith.andi": operator.and_,
    "arith.ori": operator.or_, "arith.xori": operator.xor, "arith.divsi": divided, "arith.remsi": modulus,
    "arith.maxsi": max, "arith.minsi": min,
}  # fmt: skip
UNSIGNED = {"arith.divui": divided, "arith.remui": modulus, "arith.maxui": max, "arith.minui": min}


@pytest.mark.parametrize("element", INTEGERS)
class TestIntegers:
    def check(self, name, element, function):
        a, b = pairs(element)
        width = int(element[1:])
        expected = [signed(function(int(x), int(y)), width) for x, y in zip(a, b)]
        same(both_ways(f"{name} %a, %b", element, a, b), np.array(expected, INTEGERS[element]))

    @pytest.mark.parametrize("name", SIGNED)
    def test_signed(self, name, element):
        self.check(name, element, SIGNED[name])

    @pytest.mark.parametrize("name", UNSIGNED)
    def test_unsigned(self, name, element):
        mask = (1 << int(element[1:])) - 1
        self.check(name, element, lambda x, y: UNSIGNED[name](x & mask, y & mask))

    def test_shifts(self, element):
        width = int(element[1:])
        mask = (1 << width) - 1
        self.check("arith.shli", element, lambda x, n: shifted(x, n, width))
        self.check("arith.shrsi", element, lambda x, n: x >> n if 0 <= n < width else -(x < 0))
        self.check("arith.shrui", element, lambda x, n: (x & mask) >> n if 0 <= n < width else 0)

    @pytest.mark.parametrize("relation", ["eq", "ne", "lt", "le", "gt", "ge"])
    @pytest.mark.parametrize("kind", ["s", "u"])
    def test_compare(self, element, relation, kind):
        a, b = pairs(element)
        predicate = relation if relation in ("eq", "ne") else kind + relation
        mask = (1 << int(element[1:])) - 1 if kind == "u" else -1
        expected = [getattr(operator, relation)(int(x) & mask, int(y) & mask) for x, y in zip(a, b)]
        same(both_ways(f"arith.cmpi {predicate}, %a, %b", element, a, b, made="i1"), np.array(expected))

    def test_absolute(self, element):
        values = np.unique(pairs(element)[0])
        expected = [signed(abs(int(x)), int(element[1:])) for x in values]
        same(both_ways("math.absi %a", element, values), np.array(expected, INTEGERS[element]))

    @pytest.mark.parametrize("made", INTEGERS)
    def test_resize(self, element, made):
        values, old, new = np.unique(pairs(element)[0]), int(element[1:]), int(made[1:])
        if old == new:
            return
        names = ["arith.trunci"] if new < old else ["arith.extsi", "arith.extui"]
        for name in names:
            mask = (1 << old) - 1 if name == "arith.extui" else -1
            expected = [signed(int(x) & mask, new) for x in values]
            same(both_ways(f"{name} %a", element, values, made=made), np.array(expected, INTEGERS[made]))


@pytest.mark.parametrize("element", ["i32", "i64"])
def test_high_product(element):
    a, b = pairs(element)
    width = int(element[1:])
    mask = (1 << width) - 1
    expected = [signed((int(x) & mask) * (int(y) & mask) >> width, width) for x, y in zip(a, b)]
    same(both_ways("tt.mulhiui %a, %b", element, a, b), np.array(expected, INTEGERS[element]))


def test_bits_as_integers():
    """i1 counts modulo 2, and true is the least where it is signed."""
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    table = {
        "arith.addi %a, %b": [0, 1, 1, 0], "arith.subi %a, %b": [0, 1, 1, 0], "arith.muli %a, %b": [0, 0, 0, 1],
        "arith.andi %a, %b": [0, 0, 0, 1], "arith.ori %a, %b": [0, 1, 1, 1], "arith.xori %a, %b": [0, 1, 1, 0],
        "arith.maxsi %a, %b": [0, 0, 0, 1], "arith.minui %a, %b": [0, 0, 0, 1], "arith.maxui %a, %b": [0, 1, 1, 1],
        "arith.cmpi slt, %a, %b": [0, 0, 1, 0], "arith.cmpi ult, %a, %b": [0, 1, 0, 0],
        "arith.cmpi eq, %a, %b": [1, 0, 0, 1],
    }  # fmt: skip
    for text, expected in table.items():
        same(both_ways(text, "i1", a, b), np.array(expected, bool))
    for name, expected in (("arith.extui", 1), ("arith.extsi", -1)):
        same(both_ways(f"{name} %a", "i1", a, made="i32"), np.array([0, 0, expected, expected], np.int32))
    same(both_ways("arith.trunci %a", "i32", np.array([2, 3, -1], np.int32), made="i1"), np.array([False, True, True]))
    same(both_ways("arith.uitofp %a", "i1", a, made="f32"), np.array([0, 0, 1, 1], np.float32))
    same(both_ways("arith.sitofp %a", "i1", a, made="f32"), np.array([0, 0, -1, -1], np.float32))


def test_select():
    condition = np.array([True, False, True])
    a, b = np.array([1, 2, 3], np.int32), np.array([-1, -2, -3], np.int32)
    line = "%r = arith.select %c, %a, %b : tensor<3xi1>, tensor<3xi32>"
    same(result(line, c=tensor(condition, "i1"), a=tensor(a, "i32"), b=tensor(b, "i32")), np.array([1, -2, 3], np.int32))
    line = "%r = arith.select %c, %a, %b : tensor<3xi32>"
    same(result(line, c=("i1", False), a=tensor(a, "i32"), b=tensor(b, "i32")), b)
    assert result("%r = arith.select %c, %a, %b : i32", c=("i1", True), a=("i32", 4), b=("i32", 5)) == 4


def test_constants():
    same(result("%r = arith.constant dense<0x7FC0> : tensor<2xbf16>"), np.full(2, math.nan, BF16))
    same(result("%r = arith.constant dense<0xFF800000> : tensor<2xf32>"), np.full(2, -math.inf, np.float32))
    same(result("%r = arith.constant dense<[[1, -2], [3, 4]]> : tensor<2x2xi8>"), np.array([[1, -2], [3, 4]], np.int8))
    same(result("%r = arith.constant dense<true> : tensor<3xi1>"), np.full(3, True))
    same(result("%r = arith.constant dense<4.6566126E-10> : tensor<1xf32>"), np.array([4.6566126e-10], np.float32))
    assert result("%r = arith.constant true") is True
    assert result("%r = arith.constant -766435501 : i32") == -766435501
    assert result("%r = arith.constant 3.000000e+00 : bf16").dtype == BF16
    with pytest.raises(Unsupported, match="not understood"):
        result('%r = arith.constant dense<"0x00"> : tensor<1xi8>')


def test_what_is_not_modelled_is_refused():
    one = ("f32", np.float32(1))
    with pytest.raises(Unsupported, match=r"attribute saturate"):
        result("%r = arith.addf %a, %a {saturate} : f32", a=one)
    with pytest.raises(Unsupported, match="form"):
        result("%r = arith.addf %a, %a to_nearest : f32", a=one)
    with pytest.raises(Unsupported, match="i1"):
        result("%r = arith.divsi %a, %a : i1", a=("i1", True))
    with pytest.raises(Unsupported, match=r"arith\.ceildivsi"):
        result("%r = arith.ceildivsi %a, %a : i32", a=("i32", 1))
