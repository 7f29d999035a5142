"""Inline assembly."""

import ml_dtypes
import numpy as np
import pytest
from odd import BF16, same
from steps import run, tensor

from tlxsim import Unsupported

RNG = np.random.default_rng(6)


def assembly(text: str, constraints: str, pack: int, made: list[str], *arrays: tuple[np.ndarray, str]):
    names = "abc"[: len(arrays)]
    shape = "x".join(map(str, arrays[0][0].shape))
    quoted = text.replace("\n", "\\0A").replace("\t", "\\09")
    inputs = ", ".join(f"tensor<{shape}x{element}>" for _, element in arrays)
    outputs = ", ".join(f"tensor<{shape}x{element}>" for element in made)
    targets = ", ".join(f"%r{n}" for n in range(len(made)))
    options = f'{{constraints = "{constraints}", packed_element = {pack} : i32, pure = true}}'
    given = ", ".join("%" + n for n in names)
    line = f'{targets} = tt.elementwise_inline_asm "{quoted}" {options} {given} : {inputs} -> {outputs}'
    env = run(line, **{n: tensor(x, element) for n, (x, element) in zip(names, arrays)})
    found = [env[f"%r{n}"] for n in range(len(made))]
    return found[0] if len(found) == 1 else found


FMA2 = """
{
    .reg .b64 ra, rb, rc, rd;
    mov.b64 ra, { $2, $3 };  // two floats
    mov.b64 rb, { $4, $5 };
    mov.b64 rc, { $6, $7 };
    fma.rn.f32x2 rd, ra, rb, rc;
    mov.b64 { $0, $1 }, rd;
}
"""


def test_pairs_of_floats():
    a, b, c = RNG.standard_normal((3, 4, 8)).astype(np.float32)
    found = assembly(FMA2, "=r,=r,r,r,r,r,r,r", 2, ["f32"], (a, "f32"), (b, "f32"), (c, "f32"))
    same(found, (a.astype(float) * b + c).astype(np.float32))
    two = FMA2.replace("mov.b64 rc, { $6, $7 };", "").replace("fma.rn.f32x2 rd, ra, rb, rc", "mul.f32x2 rd, ra, rb")
    same(assembly(two, "=r,=r,r,r,r,r", 2, ["f32"], (a, "f32"), (b, "f32")), a * b)


def test_approximations():
    x = np.linspace(-3, 3, 16).astype(np.float32)
    same(assembly("ex2.approx.ftz.f32 $0, $1;", "=f,f", 1, ["f32"], (x, "f32")), np.exp2(x))
    same(assembly("tanh.approx.f32 $0, $1;", "=r,r", 1, ["f32"], (x, "f32")), np.tanh(x))
    same(assembly("rcp.approx.f32 $0, $1;", "=f,f", 1, ["f32"], (x, "f32")), 1 / x)
    half = x.astype(np.float16)
    found = assembly("tanh.approx.f16x2 $0, $1;", "=r,r", 2, ["f16"], (half, "f16"))
    same(found, np.tanh(half.astype(np.float32)).astype(np.float16))


def test_packed_conversions():
    """The first source is the upper half of the result."""
    text = "{ .reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f32 lo, $2, $1;"
    text += " cvt.rn.satfinite.e4m3x2.f32 hi, $4, $3; mov.b32 $0, {lo, hi}; }"
    x = np.array([0.3, -1.7, 500, 2, 17, -0.01, 448, 3], np.float32)
    found = assembly(text, "=r,f,f,f,f", 4, ["f8E4M3FN"], (x, "f32"))
    same(found, np.minimum(x, 448).astype(ml_dtypes.float8_e4m3fn))
    text = "cvt.rn.bf16x2.f32 $0, $2, $1;"
    same(assembly(text, "=r,f,f", 2, ["bf16"], (x, "f32")), x.astype(BF16))
    same(assembly("cvt.rz.f16.f32 $0, $1;", "=h,f", 1, ["f16"], (x[:2], "f32"))[1], np.float16(-1.699))
    same(assembly("cvt.rzi.s32.f32 $0, $1;", "=r,f", 1, ["i32"], (x, "f32")), np.trunc(x).astype(np.int32))
    same(
        assembly("cvt.rna.tf32.f32 $0, $1;", "=r,f", 1, ["f32"], (np.array([1 + 2**-11], np.float32), "f32")),
        np.float32([1 + 2**-10]),
    )


def test_integers_in_assembly():
    a = np.array([1, -2, 0x12345678, 77], np.int32)
    b = np.array([3, 5, -1, 0], np.int32)
    same(assembly("lop3.b32 $0, $1, $2, $1, 0x3c;", "=r,r,r", 1, ["i32"], (a, "i32"), (b, "i32")), a ^ b)
    same(
        assembly("prmt.b32 $0, $1, $2, 0x4321;", "=r,r,r", 1, ["i32"], (a[2:3], "i32"), (b[:1], "i32")),
        np.array([0x03123456], np.int32),
    )
    same(assembly("mad.lo.s32 $0, $1, $2, 7;", "=r,r,r", 1, ["i32"], (a, "i32"), (b, "i32")), a * b + np.int32(7))
    text = "{ .reg .pred p; setp.lt.s32 p, $2, $3; selp.b32 $0, $2, $3, p; mov.u32 $1, 9; }"
    low, nine = assembly(text, "=r,=r,r,r", 1, ["i32", "i32"], (a, "i32"), (b, "i32"))
    same(low, np.minimum(a, b))
    same(nine, np.full(4, 9, np.int32))
    same(assembly("shr.s32 $0, $1, 4;", "=r,r", 1, ["i32"], (a, "i32")), a >> 4)
    found = assembly("shr.b32 $0, $1, $2;", "=r,r,r", 1, ["i32"], (a, "i32"), (b & 63, "i32"))
    same(found, np.array([0, 0x7FFFFFF, 0, 77], np.int32))
    small = np.arange(8, dtype=np.int8)
    same(assembly("add.u32 $0, $1, 0x01010101;", "=r,r", 4, ["i8"], (small, "i8")), small + np.int8(1))


@pytest.mark.parametrize(
    ("text", "constraints"),
    [
        ("mov.u32 $0, %smid;", "=r,r"), ("bar.sync 0;", "=r,r"), ("@p add.s32 $0, $1, $1;", "=r,r"),
        ("shfl.sync.bfly.b32 $0, $1, 1, 31, -1;", "=r,r"), ("add.rz.f32 $0, $1, $1;", "=f,f"),
        ("cvt.rs.f32.f16 $0, $1;", "=r,r"), ("add.s32 $0, $1, $1;", "=r,0"), ("add.s32 $0, $1, $1;", "=r,r,r"),
        ("ld.global.b32 $0, [$1];", "=r,r"),
    ],
)  # fmt: skip
def test_other_assembly_is_refused(text, constraints):
    with pytest.raises(Unsupported, match=r"not modelled"):
        assembly(text, constraints, 1, ["i32"], (np.zeros(4, np.int32), "i32"))
