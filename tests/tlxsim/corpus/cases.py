"""The corpus: how each kernel is launched, for which architecture, and where its IR texts lie.

    python tests/tlxsim/corpus/cases.py      # writes the texts anew, after a change that is meant

They are what one Triton printed, paths made relative; a newer Triton that prints another syntax fails against them.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from tlxsim import frontend
from tlxsim.ir import Module, Op
from tlxsim.ir.module import Region

FOLDER = pathlib.Path(__file__).parent
sys.path.insert(0, str(FOLDER))
import blackwell  # noqa: E402
import hopper  # noqa: E402
import plain  # noqa: E402

LIBRARIES = pathlib.Path(triton.__file__).parent.parent


@dataclasses.dataclass(frozen=True)
class Case:
    """A launch of a JITFunction with tensors on the CPU; `levels` are those at which it compiles."""

    kernel: Any
    arch: str
    arguments: tuple
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    levels: tuple[str, ...] = frontend.LEVELS

    @property
    def name(self) -> str:
        return f"{self.kernel.__module__}.{self.kernel.__name__}.{self.arch}"

    def compile(self, level: str) -> frontend.Compiled:
        bound, options = frontend.bind(self.kernel, self.arguments, self.options)
        return frontend.compile_ir(self.kernel, bound, options, self.arch, level)

    def path(self, level: str) -> pathlib.Path:
        """Where its text lies."""
        return FOLDER / f"{self.name}.{level}.mlir"

    def write(self, level: str) -> None:
        text = self.compile(level).text
        self.path(level).write_text(text.replace(str(FOLDER), "corpus").replace(str(LIBRARIES), "site-packages"))


def forms(module: Module) -> set[str]:
    """How a module's operations are written: name, text without names and numbers, attributes, kinds of types."""
    return {_form(op) for function in module.functions.values() for op in operations(function.region)}


def operations(region: Region) -> Iterator[Op]:
    """All operations, those in regions included."""
    for block in region:
        for op in block.ops:
            yield op
            for inner in [*op.regions, *(partition.region for partition in op.partitions)]:
                yield from operations(inner)


def _form(op: Op) -> str:
    text = (
        "" if op.name == "arith.constant" else re.sub(r"-?\b\d+(\.\d+)?\b", "#", re.sub(r"%[\w.$-]+(#\d+)?", "%", op.text))
    )
    before, after = (" ".join(kind.kind for kind in kinds) for kinds in (op.types, op.result_types))
    return f"{op.name} {text} {{{' '.join(sorted(op.attributes))}}} {before} -> {after}"


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def descriptor(rows: int, columns: int, block: list[int], dtype: torch.dtype = torch.float16) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(zeros(rows, columns, dtype=dtype), block)


bf16, i32 = torch.bfloat16, torch.int32
line, numbers, square = zeros(128), zeros(128, dtype=i32), zeros(64, 64)
half = zeros(64, 64, dtype=torch.float16)
wide, tall = zeros(128, 256, dtype=bf16), zeros(256, 128, dtype=bf16)
rows16 = descriptor(64, 64, [16, 64], i32)
only_ttir = ("ttir",)

PLAIN = {
    plain.floats: Case(plain.floats, "sm_90", (line, line, line, 0.5, 64)),
    plain.integers: Case(plain.integers, "sm_90", (numbers, numbers, numbers, 7, 64)),
    plain.shapes: Case(plain.shapes, "sm_90", (square, square, 16, 32)),
    plain.catted: Case(plain.catted, "sm_90", (line, line, 64), levels=only_ttir),
    plain.reductions: Case(plain.reductions, "sm_90", (square, numbers, square, 16, 32)),
    plain.memory: Case(plain.memory, "sm_90", (line, numbers, numbers, line, 99, 64)),
    plain.pointers: Case(
        plain.pointers, "sm_90", (zeros(4, dtype=torch.int64), half, zeros(64, dtype=torch.bool), line, 2, 64)
    ),
    plain.control: Case(plain.control, "sm_90", (line, line, 9, 2, 64, True), dict(debug=True)),
    plain.assembly: Case(plain.assembly, "sm_90", (line, line, 64)),
    plain.dots: Case(plain.dots, "sm_90", (half, half, square, 64)),
    plain.scaled: Case(plain.scaled, "sm_90", (half, numbers.to(torch.uint8), square, 64)),
    plain.pipelined: Case(plain.pipelined, "sm_90", (wide, tall, wide, 256, 128, 128, 64), dict(num_warps=8)),
    plain.batched: Case(plain.batched, "sm_90", (square, square, square, 4, 32)),
    plain.device_descriptors: Case(plain.device_descriptors, "sm_90", (square, square, 64, 64, 16, 64)),
    plain.host_descriptors: Case(plain.host_descriptors, "sm_90", (rows16, rows16, 16, 64)),
    plain.tuples: Case(plain.tuples, "sm_90", ((line, 1), None, line, 64)),
}
OTHER_ARCHITECTURES = [
    dataclasses.replace(PLAIN[plain.host_descriptors], arch="sm_80"),
    dataclasses.replace(PLAIN[plain.pipelined], arch="sm_80"),
    dataclasses.replace(PLAIN[plain.pipelined], arch="sm_100"),
    dataclasses.replace(PLAIN[plain.device_descriptors], arch="sm_100"),
]
tile, column_tile = descriptor(128, 512, [64, 64], bf16), descriptor(512, 64, [64, 64], bf16)
small = descriptor(64, 64, [32, 32], i32)
rows, big = descriptor(64, 128, [1, 64]), descriptor(256, 256, [128, 64])
HOPPER = [
    Case(hopper.specialised, "sm_90", (tile, column_tile, tile, 8, 64, 2, 64)),
    Case(hopper.wgmma, "sm_90", (half, half, square, 2, 64)),
    Case(hopper.local_memory, "sm_90", (square, square, 32)),
    Case(hopper.layouts, "sm_90", (square, square, 64)),
    Case(hopper.synchronised, "sm_90", (line, line, 3, 128)),
    Case(hopper.tma, "sm_90", (small, small, small, 3, 32, 32)),
    Case(hopper.device_tma, "sm_90", (half, half, 64, 64, 64)),
    Case(hopper.aliased, "sm_90", (square, square, 32)),
    Case(hopper.overlapping, "sm_90", (square, square, 32), levels=only_ttir),
    Case(hopper.per_thread, "sm_90", (line, line, 128)),
    Case(hopper.portable, "sm_90", (line, line, 128)),
    Case(hopper.reinterpreted, "sm_90", (square, square, 64)),
]
BLACKWELL = [
    Case(plain.indexed_descriptors, "sm_100", (rows, rows, numbers, 64)),
    Case(blackwell.specialised, "sm_100", (big, descriptor(256, 128, [64, 128]), big, 2, 128, 64, 3, 2)),
    Case(blackwell.products, "sm_100", (half, square, 2, 64)),
    Case(blackwell.aliased, "sm_100", (square, square, 64)),
    Case(blackwell.copied, "sm_100", (wide.float(), wide.float(), 128)),
    Case(blackwell.reinterpreted, "sm_100", (wide.float(), wide.float(), 128)),
    Case(blackwell.reduced, "sm_100", (line, line, 128)),
]
CASES = [*PLAIN.values(), *OTHER_ARCHITECTURES, *HOPPER, *BLACKWELL]

if __name__ == "__main__":
    for old in FOLDER.glob("*.mlir"):
        old.unlink()
    for case in CASES:
        for level in case.levels:
            case.write(level)
