"""The parser of Triton's textual IR: each piece of its syntax, refusals, and the corpus."""

import pathlib
import time

import ml_dtypes
import numpy as np
import pytest

from tlxsim import ir
from tlxsim.ir.locations import Locations
from tlxsim.ir.types import split_list

CORPUS = sorted((pathlib.Path(__file__).parent / "corpus").glob("*.mlir"))

HEAD = """#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128}>
#mma = #ttg.nvidia_mma<{versionMajor = 3}>
#smem = #ttg.shared_memory
#loc = loc("/home/me/kernel.py":7:1)
#loc1 = loc("/home/me/kernel.py":12:5)
#loc2 = loc("x"(#loc1))
"""


def module(*lines: str, arguments: str = "", attributes: str = '"ttg.num-warps" = 4 : i32') -> ir.Module:
    body = "\n".join(lines)
    return ir.parse(f"""{HEAD}module attributes {{{attributes}}} {{
  tt.func public @kernel({arguments}) attributes {{noinline = false}} {{
{body}
    tt.return loc(#loc1)
  }} loc(#loc)
}} loc(#loc)
#loc3 = loc(callsite(#loc2 at #loc))
""")


def first(*lines: str, **options) -> ir.Op:
    return module(*lines, **options).entry.region[0].ops[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i32", dict(kind="scalar", dtype=np.int32)),
        ("i1", dict(kind="scalar", dtype=np.bool_)),
        ("index", dict(kind="scalar", dtype=np.int64)),
        ("bf16", dict(kind="scalar", dtype=ml_dtypes.bfloat16)),
        ("ui8", dict(kind="scalar", dtype=np.int8, unsigned=True)),
        ("!tt.ptr<f32>", dict(kind="pointer", dtype=np.int64, pointee=np.float32)),
        ("!tt.ptr<!tt.ptr<i8>>", dict(kind="pointer", dtype=np.int64, pointee=np.int64)),
        ("tensor<64x32xf8E4M3FN>", dict(kind="tensor", shape=(64, 32), dtype=ml_dtypes.float8_e4m3fn)),
        ("tensor<8x!tt.ptr<bf16>>", dict(kind="tensor", shape=(8,), dtype=np.int64, pointee=ml_dtypes.bfloat16)),
        (
            "tensor<8x4xf32, #ttg.slice<{dim = 1, parent = #mma}>>",
            dict(shape=(8, 4), encoding="#ttg.slice<{dim = 1, parent = #ttg.nvidia_mma<{versionMajor = 3}>}>"),
        ),
        (
            "!ttg.memdesc<2x64xbf16, #shared, #smem, mutable, 4x64>",
            dict(kind="memdesc", shape=(2, 64), space="smem", mutable=True),
        ),
        ("!ttg.memdesc<128x64xf32, #tmem, #ttng.tensor_memory>", dict(kind="memdesc", space="tmem", mutable=False)),
        ("!tt.tensordesc<64x64xui16, #shared>", dict(kind="descriptor", shape=(64, 64), dtype=np.int16, unsigned=True)),
        ("<bf16>", dict(kind="pointer", pointee=ml_dtypes.bfloat16)),
        ("<64xf32>", dict(kind="descriptor", shape=(64,), dtype=np.float32)),
        ("!ttg.async.token", dict(kind="token", dtype=None)),
        ("!tlx.something", dict(kind="none", encoding="!tlx.something")),
    ],
)
def test_types(text, expected):
    aliases = {
        "#shared": "#ttg.nvmma_shared<{}>",
        "#mma": "#ttg.nvidia_mma<{versionMajor = 3}>",
        "#smem": "#ttg.shared_memory",
    }
    found = ir.parse_type(text, aliases)
    assert {name: getattr(found, name) for name in expected} == expected
    assert ir.parse_type(text, aliases) is found  # kept


@pytest.mark.parametrize("text", ["tensor<4xf7>", "!ttg.memdesc<4xf32, #shared, #ttg.elsewhere>", "tensor<4xi128>"])
def test_a_type_that_is_not_known_is_refused(text):
    with pytest.raises(ValueError, match="not known"):
        ir.parse_type(text, {})


def test_lists_are_split_outside_of_brackets_and_strings():
    assert split_list('a<b, c>, (d, "e, (") -> f, [g, {h, i}]') == ["a<b, c>", '(d, "e, (") -> f', "[g, {h, i}]"]
    assert split_list("") == []


class TestLocations:
    @pytest.fixture
    def locations(self):
        locations = Locations()
        locations.define("#loc", '"/home/me/kernel.py":7:1')
        locations.define("#loc1", '"/env/site-packages/triton/language/standard.py":290:12')
        locations.define("#loc2", 'callsite(#loc1 at "total"(#loc))')
        return locations

    def test_calls_lead_from_the_innermost_line_outwards(self, locations):
        found = locations.resolve("#loc2")
        assert found.frames == (("/env/site-packages/triton/language/standard.py", 290), ("/home/me/kernel.py", 7))
        assert found.user == ("/home/me/kernel.py", 7)
        assert str(found) == "kernel.py:7"

    def test_names_belong_to_values(self, locations):
        assert locations.resolve('"x"(#loc)').name == "x"
        assert locations.resolve('callsite("x"(#loc) at #loc1)').name == "x"

    def test_fused_and_unknown(self, locations):
        assert locations.resolve("fused[unknown, #loc]").user == ("/home/me/kernel.py", 7)
        assert locations.resolve("unknown").user == ("", 0)
        assert str(locations.resolve("#loc9")) == "an unknown line"
        assert locations.resolve("unknown").source == ""

    @pytest.mark.parametrize(
        ("file", "library"),
        [
            ("/env/site-packages/triton/language/core.py", True),
            ("/src/triton/python/triton/language/standard.py", True),
            ("/env/site-packages/utlx_plugin/mem_ops.py", True),
            ("/env/site-packages/tlx/barrier.py", True),
            ("/env/site-packages/tlx/tutorials/hopper_gemm_ws.py", False),
            ("/home/me/tlx/kernel.py", False),
            ("/home/me/kernel.py", False),
        ],
    )
    def test_library_files_are_not_the_users(self, file, library):
        location = ir.Location(((file, 3), ("/home/me/main.py", 9)))
        assert location.user == (("/home/me/main.py", 9) if library else (file, 3))

    def test_the_source_is_the_lines_text(self):
        assert ir.Location(((__file__, 1),)).source.startswith('"""The parser')


class TestOperations:
    def test_text_attributes_and_signature(self):
        op = first(
            "    %x:2 = tt.example %a#1, 3, [%b.c, %d-e] {num = 1 : i32, flag, \"q.r\" = array<i32: 1, 2>} mask %m"
            " : tensor<4xf32, #mma>, i32 -> (f32, tensor<4xi1>) loc(#loc2)"
        )  # fmt: skip
        assert op.name == "tt.example"
        assert op.results == ("%x#0", "%x#1")
        assert op.text == "%a#1, 3, [%b.c, %d-e] mask %m"
        assert op.attributes == {"num": "1 : i32", "flag": "", "q.r": "array<i32: 1, 2>"}
        assert op.operands == ("%a#1", "%b.c", "%d-e", "%m")
        assert [kind.kind for kind in op.types] == ["tensor", "scalar"]
        assert [kind.dtype for kind in op.result_types] == [np.float32, np.bool_]
        assert (str(op.loc), op.loc.name) == ("kernel.py:12", "x")

    def test_without_an_arrow_the_results_have_the_types(self):
        op = first("    %c = arith.addf %a, %b : tensor<4xf32> loc(#loc)")
        assert op.result_types == op.types
        assert op.signature == "tensor<4xf32>"

    @pytest.mark.parametrize(
        ("line", "types", "results"),
        [
            ("%b = arith.extf %a : tensor<4xf16> to tensor<4xf32>", 1, 1),
            ("%c = tt.dot %a, %b, %d, inputPrecision = tf32 : tensor<4xf16> * tensor<4xf16> -> tensor<4xf32>", 2, 1),
            ("%t = arith.constant true", 1, 1),
            ("%p = ub.poison : f32", 1, 1),
            ("%q = ttg.local_alloc : () -> !ttg.memdesc<4xf32, #shared, #smem, mutable>", 0, 1),
            ("ttng.async_tma_store_wait {pendings = 0 : i32}", 0, 0),
            ('tt.print " x: " {hex = false} : %a : i32', 1, 1),
            ("%a, %b = tt.split %c : tensor<4x2xf32> -> tensor<4xf32>", 1, 1),
        ],
    )
    def test_signatures(self, line, types, results):
        op = first(f"    {line} loc(#loc)")
        assert (len(op.types), len(op.result_types)) == (types, results)

    def test_strings_hold_anything(self):
        op = first(
            '    %y = tt.elementwise_inline_asm "{ mov : loc(#x) } \\"%z" {constraints = "=r,r"} %x : f32 -> f32 loc(#loc)'
        )
        assert op.text.endswith('\\"%z" %x')
        assert op.attributes == {"constraints": '"=r,r"'}

    def test_generic_form_with_regions(self):
        op = first(
            '    %s = "tt.reduce"(%x) <{axis = 1 : i32}> ({',
            '    ^bb0(%a: f32 loc("a"(#loc)), %b: f32 loc(unknown)):',
            "      %c = arith.addf %a, %b : f32 loc(#loc)",
            "      tt.reduce.return %c : f32 loc(#loc)",
            "    }, {",
            "    }) {allocation.offset = 0 : i32} : (tensor<4x8xf32>) -> tensor<4xf32> loc(#loc1)",
        )
        assert (op.name, op.text, op.attributes) == (
            "tt.reduce",
            "(%x)",
            {"axis": "1 : i32", "allocation.offset": "0 : i32"},
        )
        assert op.result_types[0].shape == (4,)
        (block,), _ = op.regions
        assert (block.args, [o.name for o in block.ops]) == (("%a", "%b"), ["arith.addf", "tt.reduce.return"])
        assert op.loc.user[1] == 12

    def test_loops_and_branches(self):
        loop, branch, while_ = module(
            "    %r:2 = scf.for %i = %lo to %hi step %st iter_args(%a = %x, %b = %y) -> (f32, i32)  : i32 {",
            "      scf.yield %a, %b : f32, i32 loc(#loc)",
            "    } {tt.num_stages = 3 : i32, tt.flatten} loc(#loc1)",
            "    %z = scf.if %c -> (i32) {",
            "      scf.yield %lo : i32 loc(#loc)",
            "    } else {",
            "      scf.yield %hi : i32 loc(#loc)",
            "    } loc(#loc)",
            "    %w = scf.while (%v = %lo) : (i32) -> i32 {",
            "      scf.condition(%c) %v : i32 loc(#loc)",
            "    } do {",
            "    ^bb0(%u: i32 loc(unknown)):",
            "      scf.yield %u : i32 loc(#loc)",
            "    } loc(#loc)",
        ).entry.region[0].ops[:3]  # fmt: skip
        assert loop.text == "%i = %lo to %hi step %st iter_args(%a = %x, %b = %y)"
        assert loop.attributes == {"tt.num_stages": "3 : i32", "tt.flatten": ""}
        assert [kind.dtype for kind in loop.result_types] == [np.float32, np.int32]
        assert (branch.text, len(branch.regions), len(branch.result_types)) == ("%c", 2, 1)
        assert (while_.text, len(while_.regions)) == ("(%v = %lo)", 2)
        assert while_.regions[1][0].args == ("%u",)

    def test_blocks(self):
        entry, second = module(
            "    cf.cond_br %c, ^bb1(%a : i32), ^bb2 loc(#loc)",
            '  ^bb1(%x: i32 loc("x"(#loc))):  // 2 preds: ^bb0, ^bb1',
            "    cf.br ^bb1(%x : i32) loc(#loc)",
        ).entry.region  # fmt: skip
        assert (entry.label, second.label, second.args) == ("bb0", "bb1", ("%x",))
        assert entry.ops[0].text == "%c, ^bb1(%a : i32), ^bb2"

    def test_partitions(self):
        op = first(
            "    ttg.warp_specialize(%a, %b) attributes {requestedRegisters = array<i32: 24, 160>}",
            "    default {",
            "      ttg.warp_yield loc(#loc)",
            "    }",
            "    partition0(%arg0: i32 loc(unknown), %arg1: f32 loc(unknown)) num_warps(1) {",
            "      ttg.warp_return loc(#loc)",
            "    }",
            "    partition1(%arg0: i32 loc(unknown), %arg1: f32 loc(unknown)) num_warps(4) {",
            "      ttg.warp_return loc(#loc)",
            "    } : (i32, f32) -> () loc(#loc1)",
        )
        assert op.operands == ("%a", "%b")
        assert op.attributes == {"requestedRegisters": "array<i32: 24, 160>"}
        assert [partition.num_warps for partition in op.partitions] == [1, 4]
        assert op.partitions[1].args == ("%arg0", "%arg1")
        assert [o.name for o in op.regions[0][0].ops] == ["ttg.warp_yield"]
        assert op.loc.user[1] == 12


def test_functions_and_module_attributes():
    found = ir.parse(f"""{HEAD}module attributes {{ttg.maxnreg = 168 : i32, ttg.target = "cuda:90"}} {{
  tt.func private @helper__i32(%x: i32 loc("x"(#loc))) -> i32 attributes {{noinline = true}} {{
    tt.return %x : i32 loc(#loc)
  }} loc(#loc)
  tt.func public @kernel(%p: !tt.ptr<f32> {{tt.divisibility = 16 : i32}} loc("p"(#loc)), %n: i32 loc(unknown)) {{
    %y = tt.call @helper__i32(%n) : (i32) -> i32 loc(#loc)
    tt.return loc(#loc)
  }} loc(#loc)
}} loc(#loc)""")
    assert found.attributes == {"ttg.maxnreg": "168 : i32", "ttg.target": '"cuda:90"'}
    assert found.entry.args == ("%p", "%n")
    assert [kind.kind for kind in found.entry.arg_types] == ["pointer", "scalar"]
    assert found.functions["helper__i32"].public is False
    assert found.entry.region[0].ops[0].text == "@helper__i32(%n)"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["    this is no operation"], "not an operation"),
        (["    %c = arith.addf %a, %b : tensor<4xf7> loc(#loc)"], "f7 is not known"),
        (["    %c = tt.example %a, (%b : f32 loc(#loc)"], "brackets do not match"),
        (["    scf.if %c {", "    } otherwise {", "    } loc(#loc)"], "from region to region"),
        (["    scf.if %c {", "    } trailing loc(#loc)"], "not an end of control flow"),
        (["    ttg.warp_specialize(%a)", "    else {"], "not the default region"),
        (["  ^bb1 %x: i32:"], "not the label of a block"),
        (["    scf.for %i = %a to %b step %c : i32 {"] * 2, "the text ends too early"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(lines, why):
    with pytest.raises(ir.ParseError, match=why):
        module(*lines)


def test_only_modules_are_parsed():
    with pytest.raises(ir.ParseError, match="not the head of a module"):
        ir.parse("func @x() {\n}")


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_the_corpus_parses_with_all_types_and_lines_known(path):
    found = ir.parse(path.read_text())
    assert found.entry.region

    def check(region):
        for block in region:
            for op in block.ops:
                assert all(kind.kind != "none" for kind in (*op.types, *op.result_types)), op.signature
                for inner in [*op.regions, *(partition.region for partition in op.partitions)]:
                    check(inner)

    check(found.entry.region)


def test_parsing_is_fast():
    text = (pathlib.Path(__file__).parent / "corpus" / "blackwell.specialised.sm_100.ttir.mlir").read_text()
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        ir.parse(text)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 0.015
