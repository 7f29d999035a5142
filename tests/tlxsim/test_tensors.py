"""Shapes, indices, reductions, scans and products."""

import math

import ml_dtypes
import numpy as np
import pytest
from odd import BF16, same
from steps import Program, result, run, tensor

from tlxsim import Code, Unsupported

RNG = np.random.default_rng(5)
X = RNG.standard_normal((4, 8)).astype(np.float32)


# -- shapes --------------------------------------------------------------------------------------------------------------


def test_making():
    same(result("%r = tt.make_range {end = 12 : i32, start = 4 : i32} : tensor<8xi32>"), np.arange(4, 12, dtype=np.int32))
    same(result("%r = tt.splat %a : bf16 -> tensor<2x3xbf16>", a=("bf16", BF16.type(1.5))), np.full((2, 3), 1.5, BF16))
    same(result("%r = tt.splat %a : i1 -> tensor<2xi1>", a=("i1", True)), np.array([True, True]))
    kind = "!tt.ptr<f32>"
    same(result(f"%r = tt.splat %a : {kind} -> tensor<2x{kind}>", a=(kind, 1 << 40)), np.full(2, 1 << 40, np.int64))
    assert result("%r = tt.unsplat %a : tensor<1xi32>", a=("tensor<1xi32>", np.array([-7], np.int32))) == -7
    poison = result("%r = ub.poison : tensor<2xf32>")
    assert np.isnan(poison).all()
    assert result("%r = ub.poison : i32") == -1


def test_shapes():
    row = np.arange(4, dtype=np.int32)
    same(
        result("%r = tt.expand_dims %a {axis = 1 : i32} : tensor<4xi32> -> tensor<4x1xi32>", a=tensor(row, "i32")),
        row[:, None],
    )
    column = row[:, None]
    line = "%r = tt.broadcast %a : tensor<4x1xi32> -> tensor<4x8xi32>"
    same(result(line, a=tensor(column, "i32")), np.broadcast_to(column, (4, 8)))
    line = "%r = tt.broadcast %a : tensor<1x1xi32> -> tensor<2x8xi32>"
    same(result(line, a=tensor(column[:1], "i32")), np.zeros((2, 8), np.int32))
    for order in ("", " allow_reorder", " efficient_layout"):
        same(
            result(f"%r = tt.reshape %a{order} : tensor<4x8xf32> -> tensor<2x16xf32>", a=tensor(X, "f32")), X.reshape(2, 16)
        )
    same(result("%r = ttg.convert_layout %a : tensor<4x8xf32> -> tensor<4x8xf32>", a=tensor(X, "f32")), X)
    cube = X.reshape(2, 2, 8)
    line = "%r = tt.trans %a {order = array<i32: 2, 0, 1>} : tensor<2x2x8xf32> -> tensor<8x2x2xf32>"
    same(result(line, a=tensor(cube, "f32")), cube.transpose(2, 0, 1))


def test_join_split_cat():
    a, b = X[:2], X[2:]
    joined = result("%r = tt.join %a, %b : tensor<2x8xf32> -> tensor<2x8x2xf32>", a=tensor(a, "f32"), b=tensor(b, "f32"))
    same(joined, np.stack([a, b], -1))
    env = run("%p, %q = tt.split %a : tensor<2x8x2xf32> -> tensor<2x8xf32>", a=tensor(joined, "f32"))
    same(env["%p"], a)
    same(env["%q"], b)
    env = run("%p, %q = tt.split %a : tensor<2xi32> -> i32", a=tensor(np.array([5, 6], np.int32), "i32"))
    assert (env["%p"], env["%q"]) == (5, 6)
    line = "%r = tt.cat %a, %b : tensor<8xf32> -> tensor<16xf32>"
    same(result(line, a=tensor(X[0], "f32"), b=tensor(X[1], "f32")), np.concatenate([X[0], X[1]]))


def test_gather():
    places = np.array([[1, 0, 3, 3, 2, 1, 0, 0]], np.int32)
    line = "%r = tt.gather %a[%i] {axis = 0 : i32} : (tensor<4x8xf32>, tensor<1x8xi32>) -> tensor<1x8xf32>"
    same(result(line, a=tensor(X, "f32"), i=tensor(places, "i32")), np.take_along_axis(X, places, 0))
    program = Program()
    places[0, 2] = 4
    found = result(line, program, a=tensor(X, "f32"), i=tensor(places, "i32"))
    assert [code for code, _ in program.found] == [Code.OUT_OF_BOUNDS]
    assert np.isnan(found[0, 2])
    assert not np.isnan(found[0, 3])


def test_histogram():
    values = np.array([0, 3, 3, 1, 2, 3, 0, 3], np.int32)
    line = "%r = tt.histogram %a : tensor<8xi32> -> tensor<4xi32>"
    same(result(line, a=tensor(values, "i32")), np.array([2, 1, 1, 4], np.int32))
    mask = values != 3
    line = "%r = tt.histogram %a, %m : tensor<8xi32> -> tensor<4xi32>"
    same(result(line, a=tensor(values, "i32"), m=tensor(mask, "i1")), np.array([2, 1, 1, 0], np.int32))
    program = Program()
    values[0] = -1
    line = "%r = tt.histogram %a : tensor<8xi32> -> tensor<4xi32>"
    same(result(line, program, a=tensor(values, "i32")), np.array([1, 1, 1, 4], np.int32))
    assert [code for code, _ in program.found] == [Code.OUT_OF_BOUNDS]


def test_program():
    program = Program(pid=(3, 0, 1))
    assert result("%r = tt.get_program_id x : i32", program) == 3
    assert result("%r = tt.get_program_id z : i32", program) == 1
    assert result("%r = tt.get_num_programs x : i32", program) == 4


def test_checks(capsys):
    program = Program(pid=(2, 0, 0))
    condition = tensor(np.array([True, False]), "i1")
    run('tt.assert %c, "x must be small" : tensor<2xi1>', program, c=condition)
    run('tt.assert %c, "fine" : i1', program, c=("i1", True))
    run("llvm.intr.assume %c : i1", program, c=("i1", False))
    assert [code for code, _ in program.found] == [Code.ASSERT, Code.ASSERT]
    assert "x must be small" in program.found[0][1]
    assert "1 of 2 lanes" in program.details[0]
    run(
        'tt.print " a: " {hex = false, isSigned = array<i32: 1>} : %a : tensor<2xi32>',
        program,
        a=tensor(np.array([7, 8], np.int32), "i32"),
    )
    assert capsys.readouterr().out == "pid (2, 0, 0) [eager] a: [7 8]\n"


# -- reductions ----------------------------------------------------------------------------------------------------------


def reduction(body: str, element: str, array: np.ndarray, axis: int, kind: str = "reduce", more: str = ""):
    """`tt.reduce` or `tt.scan` of one tensor by the region `body`, which gives %z of %x and %y."""
    shape = list(array.shape)
    made = shape if kind == "scan" else shape[:axis] + shape[axis + 1 :]
    of = "x".join(map(str, made))
    target = f"tensor<{of}x{element}>" if made else element
    text = f'%r = "tt.{kind}"(%a) <{{axis = {axis} : i32{more}}}> ({{\n^bb0(%x: {element}, %y: {element}):\n{body}\n'
    text += f"tt.{kind}.return %z : {element}\n}}) : (tensor<{'x'.join(map(str, shape))}x{element}>) -> {target}"
    return result(text, a=tensor(array, element))


@pytest.mark.parametrize("axis", [0, 1])
def test_known_reductions(axis):
    np.testing.assert_allclose(reduction("%z = arith.addf %x, %y : f32", "f32", X, axis), X.sum(axis), rtol=1e-6)
    same(reduction("%z = arith.maxnumf %x, %y : f32", "f32", X, axis), X.max(axis))
    odd = X.copy()
    odd[1, 2] = math.nan
    same(reduction("%z = arith.maxnumf %x, %y : f32", "f32", odd, axis), np.fmax.reduce(odd, axis))
    same(reduction("%z = arith.maximumf %x, %y : f32", "f32", odd, axis), odd.max(axis))
    same(
        reduction("%z = arith.minnumf %y, %x : bf16", "bf16", X.astype(BF16), axis),
        X.astype(BF16).astype(np.float32).min(axis).astype(BF16),
    )
    numbers = (X * 1e9).astype(np.int32)
    same(reduction("%z = arith.addi %x, %y : i32", "i32", numbers, axis), numbers.sum(axis, dtype=np.int32))
    same(reduction("%z = arith.maxui %x, %y : i32", "i32", numbers, axis), numbers.view(np.uint32).max(axis).view(np.int32))
    same(reduction("%z = arith.xori %x, %y : i32", "i32", numbers, axis), np.bitwise_xor.reduce(numbers, axis))
    same(reduction("%z = arith.ori %x, %y : i1", "i1", X > 1, axis), (X > 1).any(axis))


def test_reduction_to_a_scalar():
    found = reduction("%z = arith.addi %x, %y : i64", "i64", np.arange(8), 0)
    assert found == 28
    assert type(found) is int
    assert reduction("%z = arith.addf %x, %y : f32", "f32", X[0], 0).dtype == np.float32


def test_zeros_in_extremes():
    zeros = np.array([[-0.0, 0.0], [-0.0, -0.0], [0.0, -1.0]], np.float32)
    same(reduction("%z = arith.maxnumf %x, %y : f32", "f32", zeros, 1), np.array([0.0, -0.0, 0.0], np.float32))
    same(reduction("%z = arith.minnumf %x, %y : f32", "f32", zeros, 1), np.array([-0.0, -0.0, -1.0], np.float32))


def test_16_bit_sums_are_rounded_at_every_step():
    """256 + 1 is 256 in bf16; a sum in fp32 would be 258."""
    values = np.array([256, 1, 1, 0]).astype(BF16)
    assert reduction("%z = arith.addf %x, %y : bf16", "bf16", values, 0) == 256


def test_generic_reduction_keeps_the_order():
    """Affine maps, which do not commute: `a` is on the left."""
    text = """%r:2 = "tt.reduce"(%a, %b) <{axis = 0 : i32}> ({
^bb0(%x: f32, %y: f32, %u: f32, %v: f32):
%p = arith.mulf %x, %u : f32
%q = arith.mulf %y, %u : f32
%s = arith.addf %q, %v : f32
tt.reduce.return %p, %s : f32, f32
}) : (tensor<5x8xf32>, tensor<5x8xf32>) -> (tensor<8xf32>, tensor<8xf32>)"""
    a, b = RNG.standard_normal((2, 5, 8)).astype(np.float32)
    env = run(text, a=tensor(a, "f32"), b=tensor(b, "f32"))
    scale, shift = a[0].astype(float), b[0].astype(float)
    for n in range(1, 5):
        scale, shift = scale * a[n], shift * a[n] + b[n]
    np.testing.assert_allclose(env["%r#0"], scale, rtol=1e-5)
    np.testing.assert_allclose(env["%r#1"], shift, rtol=1e-4, atol=1e-6)


def test_argmax_takes_the_first():
    text = """%r:2 = "tt.reduce"(%a, %i) <{axis = 1 : i32}> ({
^bb0(%x: f32, %m: i32, %y: f32, %n: i32):
%same = arith.cmpf oeq, %x, %y : f32
%before = arith.cmpi slt, %m, %n : i32
%tie = arith.andi %same, %before : i1
%more = arith.cmpf ogt, %x, %y : f32
%mine = arith.ori %more, %tie : i1
%v = arith.select %mine, %x, %y : f32
%w = arith.select %mine, %m, %n : i32
tt.reduce.return %v, %w : f32, i32
}) : (tensor<4x8xf32>, tensor<4x8xi32>) -> (tensor<4xf32>, tensor<4xi32>)"""
    values = np.round(X)
    places = np.broadcast_to(np.arange(8, dtype=np.int32), (4, 8))
    env = run(text, a=tensor(values, "f32"), i=tensor(places, "i32"))
    same(env["%r#0"], values.max(1))
    same(env["%r#1"], values.argmax(1).astype(np.int32))


@pytest.mark.parametrize("inside", [False, True])
def test_a_combine_region_uses_constants(inside):
    constant, body = "%k = arith.constant 1 : i32\n", "%w = arith.muli %y, %k : i32\n%z = arith.addi %x, %w : i32"
    text = f'%r = "tt.reduce"(%a) <{{axis = 0 : i32}}> ({{\n^bb0(%x: i32, %y: i32):\n{constant if inside else ""}{body}\n'
    text = ("" if inside else constant) + text + "tt.reduce.return %z : i32\n}) : (tensor<8xi32>) -> i32"
    assert result(text, a=tensor(np.arange(8, dtype=np.int32), "i32")) == 28


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(axis, reverse):
    more = f", reverse = {str(reverse).lower()}"
    turn = (lambda x: np.flip(x, axis)) if reverse else lambda x: x
    numbers = (X * 1e9).astype(np.int32)
    found = reduction("%z = arith.addi %x, %y : i32", "i32", numbers, axis, "scan", more)
    same(found, turn(np.cumsum(turn(numbers), axis, dtype=np.int32)))
    found = reduction("%z = arith.mulf %x, %y : f32", "f32", X, axis, "scan", more)
    np.testing.assert_allclose(found, turn(np.cumprod(turn(X), axis)), rtol=1e-5)
    body = "%w = arith.subf %y, %x : f32\n%v = arith.addf %w, %x : f32\n%z = arith.maxnumf %x, %v : f32"
    whole = np.round(X * 8)
    found = reduction(body, "f32", whole, axis, "scan", more)
    same(found + 0, turn(np.maximum.accumulate(turn(whole), axis)) + 0)


@pytest.mark.parametrize("shape", [(8,), (2, 3, 4)])
def test_scans_of_any_rank(shape):
    values = np.round(RNG.standard_normal(shape) * 9).astype(np.float32)
    body = "%w = arith.negf %y : f32\n%z = arith.subf %x, %w : f32"
    for axis in range(len(shape)):
        same(reduction(body, "f32", values, axis, "scan"), np.cumsum(values, axis, dtype=np.float32))
        made = np.asarray(reduction(body, "f32", values, axis))
        same(made, values.sum(axis, dtype=np.float32))


def test_map():
    text = """%r:2 = "tt.map_elementwise"(%a, %b) <{pack = 1 : i32}> ({
^bb0(%x: f32, %y: f32):
%c = arith.cmpf ogt, %x, %y : f32
%s = arith.subf %x, %y : f32
%w = arith.select %c, %s, %y : f32
tt.map_elementwise.return %w, %c : f32, i1
}) : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xi1>)"""
    other = X[::-1].copy()
    env = run(text, a=tensor(X, "f32"), b=tensor(other, "f32"))
    same(env["%r#0"], np.where(other < X, X - other, other))
    same(env["%r#1"], other < X)


def test_map_with_control_flow():
    text = """%r = "tt.map_elementwise"(%a) <{pack = 1 : i32}> ({
^bb0(%x: i32):
%zero = arith.constant 0 : i32
%c = arith.cmpi slt, %x, %zero : i32
%w = scf.if %c -> (i32) {
%n = arith.subi %zero, %x : i32
scf.yield %n : i32
} else {
scf.yield %x : i32
}
tt.map_elementwise.return %w : i32
}) : (tensor<2x4xi32>) -> tensor<2x4xi32>"""
    values = np.array([[-4, 3, -2, 0], [7, -1, 5, -9]], np.int32)
    same(result(text, a=tensor(values, "i32")), np.abs(values))


def test_control_flow_in_a_reduction_is_refused():
    body = (
        "%c = arith.cmpi slt, %x, %y : i32\n%z = scf.if %c -> (i32) {\nscf.yield %x : i32\n} else {\nscf.yield %y : i32\n}"
    )
    with pytest.raises(Unsupported, match=r"scf\.if"):
        reduction(body, "i32", np.arange(4, dtype=np.int32), 0)


# -- products ------------------------------------------------------------------------------------------------------------


def dot(a: np.ndarray, b: np.ndarray, element: str, made: str = "f32", precision: str = "", c: np.ndarray | None = None):
    (m, k), n = a.shape, b.shape[1]
    kinds = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "f64": np.float64}
    c = np.zeros((m, n), kinds[made]) if c is None else c
    how = f", inputPrecision = {precision}" if precision else ""
    line = f"%r = tt.dot %a, %b, %c{how} : tensor<{m}x{k}x{element}> * tensor<{k}x{n}x{element}> -> tensor<{m}x{n}x{made}>"
    return result(line, a=tensor(a, element), b=tensor(b, element), c=tensor(c, made))


def test_dot_of_narrow_floats():
    a, b = RNG.standard_normal((16, 64)), RNG.standard_normal((64, 32))
    for element, dtype in (("bf16", BF16), ("f16", np.float16), ("f8E4M3FN", ml_dtypes.float8_e4m3fn)):
        p, q = a.astype(dtype), b.astype(dtype)
        exact = p.astype(float) @ q.astype(float)
        np.testing.assert_allclose(dot(p, q, element, precision="tf32"), exact, rtol=1e-4, atol=1e-5)
    start = RNG.standard_normal((16, 32)).astype(np.float32)
    exact = a.astype(BF16).astype(float) @ b.astype(BF16).astype(float) + start
    np.testing.assert_allclose(dot(a.astype(BF16), b.astype(BF16), "bf16", c=start), exact, rtol=1e-4, atol=1e-5)
    half = dot(np.full((16, 64), 1, np.float16), np.full((64, 16), 1000, np.float16), "f16", "f16")
    assert half.dtype == np.float16
    assert (half == 64000).all()


def test_dot_of_integers():
    a, b = np.full((16, 32), -128, np.int8), np.full((32, 16), -128, np.int8)
    same(dot(a, b, "i8", "i32"), np.full((16, 16), 128 * 128 * 32, np.int32))
    start = np.full((16, 16), (1 << 30) + 1, np.int32)
    same(dot(a, b, "i8", "i32", c=start), np.full((16, 16), 128 * 128 * 32 + (1 << 30) + 1, np.int32))


def test_precision_of_fp32_operands():
    """Products with the unit matrix give what the tensor core has read of the other operand."""
    one = np.eye(16, dtype=np.float32)
    x = RNG.standard_normal((16, 16)).astype(np.float32)
    cut = (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    same(dot(x, one, "f32", precision="tf32"), cut)
    same(dot(x, one, "f32"), x)
    assert not np.array_equal(cut, x)
    y = RNG.standard_normal((16, 16)).astype(np.float32)
    exact = x.astype(float) @ y.astype(float)
    error = {
        how: np.abs(dot(x, y, "f32", precision=how) - exact).max() for how in ("tf32", "bf16x3", "tf32x3", "bf16x6", "ieee")
    }
    assert error["tf32"] > 20 * error["bf16x3"] > 20 * error["tf32x3"] > error["bf16x6"] / 20
    assert max(error[how] for how in ("tf32x3", "bf16x6", "ieee")) < 1e-5
    with pytest.raises(Unsupported, match="tf64"):
        dot(x, y, "f32", precision="tf64")


def test_dot_of_doubles():
    x, y = RNG.standard_normal((2, 16, 16))
    np.testing.assert_allclose(dot(x, y, "f64", "f64"), x @ y, rtol=1e-13)
