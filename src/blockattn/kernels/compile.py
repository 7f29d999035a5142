"""Compile the portable kernels for GPUs that are not there, and report what they take of them.

    python -m blockattn.kernels.compile --arch sm_80 --arch sm_90 --json report.json

Triton's compiler needs no GPU, and ptxas, which its wheel carries, prints registers, stack and spills. Triton does not check
a chip's shared memory at compilation, so the report does. Run it without TRITON_INTERPRET.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import plans, triton_backward, triton_forward, triton_rotary_backward, triton_rotary_forward

KERNELS = {
    ("forward", False): triton_forward.forward_kernel,
    ("backward", False): triton_backward.backward_kernel,
    ("forward", True): triton_rotary_forward.rotary_forward_kernel,
    ("backward", True): triton_rotary_backward.rotary_backward_kernel,
}

# The most shared memory that a program may take on each GPU, in bytes.
SHARED_MEMORY = {
    "sm_80": 163 << 10, "sm_86": 99 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "sm_120": 99 << 10, "gfx942": 64 << 10,
}  # fmt: skip
TRITON_TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


# Spilled bytes that are taken on purpose, by architecture, direction, whether rotary, block, head dim and whether heads are
# grouped: ptxas is held to a number of registers that lets one program more share an SM, which was measured to be faster,
# and keeps a few addresses in local memory for that (at most so many bytes a thread, by the flags).
EXPLAINED = {
    ("sm_90", "backward", False, 64, 64, False): 24,
    ("sm_90", "backward", True, 64, 64, False): 8,
    ("sm_90", "backward", True, 64, 128, False): 80,  # with tables in fp32 only, which are no slower without
    # A thread has no more registers. Twice the warps do not spill and take a quarter longer (plans.py).
    ("sm_90", "backward", True, 64, 128, True): 736,  # 468 with 16-bit tables
    ("sm_100", "backward", True, 64, 128, True): 8,
    ("sm_90", "forward", True, 64, 64, False): 8,
    ("sm_90", "forward", True, 64, 64, True): 8,
}


@dataclasses.dataclass(frozen=True)
class Variant:
    """One compiled form of a kernel; dim: R of a rotary kernel, 0 for the plain one."""

    direction: str
    dtype: torch.dtype
    block_size: int
    head_dim: int
    group: int = 1
    causal: bool = False
    has_lse: bool = False
    wide: bool = False
    dim: int = 0
    halves: bool = False
    rotate_v: bool = False
    per_token: bool = False
    has_starts: bool = False
    full_table: bool = False

    def __str__(self) -> str:
        names = ("causal", "has_lse", "wide", "halves", "rotate_v", "per_token", "has_starts", "full_table")
        flags = [f"rotary{self.dim}"] * bool(self.dim) + [name for name in names if getattr(self, name)]
        return "-".join(
            [
                self.direction,
                TRITON_TYPES[self.dtype],
                f"block{self.block_size}",
                f"D{self.head_dim}",
                f"group{self.group}",
                *flags,
            ]
        )


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a compiled variant takes: registers a thread, stack and spilled bytes a thread, shared bytes a program, warps."""

    variant: str
    arch: str
    warps: int
    shared: int
    registers: int | None = None
    stack: int | None = None
    spills: int | None = None
    explained: int = 0

    def faults(self) -> list[str]:
        """Why the variant must not be shipped for this GPU; empty when it fits."""
        found = []
        if self.shared > SHARED_MEMORY[self.arch]:
            found.append(f"{self.shared} bytes of shared memory, {SHARED_MEMORY[self.arch]} are there")
        if (self.spills or 0) > self.explained:
            found.append(f"{self.spills} bytes spilled")
        return found


def _spread() -> list[Variant]:
    """At most 40 variants that take every value of every flag, and each block with each padded head dim."""
    b16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    found = []
    for direction in ("forward", "backward"):
        found += [
            Variant(direction, b16, 64, 64),
            Variant(direction, b16, 64, 128),
            Variant(direction, f16, 64, 128, causal=True, has_lse=True),
            Variant(direction, b16, 64, 128, group=4, causal=True, has_lse=True),
            Variant(direction, b16, 64, 256),
            Variant(direction, f16, 64, 200, group=2),
            Variant(direction, b16, 64, 24, wide=True),
            Variant(direction, f32, 64, 64),
            Variant(direction, f32, 64, 128, group=2),
            Variant(direction, f32, 64, 256, causal=True, has_lse=True),
            Variant(direction, b16, 16, 64, group=4),
            Variant(direction, b16, 16, 128),
            Variant(direction, f32, 16, 256, causal=True),
            Variant(direction, b16, 32, 128),
            Variant(direction, f16, 32, 256, group=2),
            Variant(direction, b16, 128, 64, causal=True),
            Variant(direction, b16, 128, 128, group=2),
            Variant(direction, f16, 128, 256),
            Variant(direction, f32, 128, 128),
            Variant(direction, f32, 128, 256, group=2, has_lse=True),
        ]
    return found


def _rotary_spread() -> list[Variant]:
    """The same for the rotary kernels."""
    b16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    found = []
    for direction in ("forward", "backward"):
        found += [
            Variant(direction, b16, 64, 64, dim=64, per_token=True, rotate_v=True),
            Variant(direction, b16, 64, 128, dim=128, per_token=True, rotate_v=True),
            Variant(direction, b16, 64, 128, dim=128, halves=True, has_lse=True, causal=True, full_table=True),
            Variant(direction, f16, 64, 64, dim=48, halves=True, has_starts=True, group=2),
            Variant(direction, b16, 64, 128, dim=128, per_token=True, group=2),
            Variant(direction, f16, 64, 128, dim=128, halves=True, has_lse=True, full_table=True, group=4),
            Variant(direction, b16, 64, 256, dim=256, full_table=True, group=4),
            Variant(direction, f32, 64, 128, dim=128, halves=True, rotate_v=True),
            Variant(direction, b16, 16, 256, dim=128, group=2),
            Variant(direction, b16, 32, 128, dim=128, per_token=True),
            Variant(direction, b16, 128, 128, dim=128, rotate_v=True, wide=True),
            Variant(direction, f32, 128, 128, dim=32, group=2),
        ]
    return found


VARIANTS = _spread()
ROTARY_VARIANTS = _rotary_spread()


def plan_for(variant: Variant, arch: str) -> plans.Plan:
    """The plan that the library gives the variant on this GPU."""
    capability = (0, 0) if arch.startswith("gfx") else (int(arch[3:-1]), int(arch[-1]))
    shape = (variant.block_size, variant.head_dim, variant.dtype)
    if variant.direction == "forward":
        return (plans.rotary_forward if variant.dim else plans.forward)(*shape, capability)
    return (plans.rotary_backward if variant.dim else plans.backward)(*shape, variant.group, capability)


def compile_variant(variant: Variant, arch: str, plan: plans.Plan | None = None) -> Resources:
    """Compile for an architecture ("sm_90", "gfx942") with its plan, or another, and read its resources."""
    plan = plan or plan_for(variant, arch)
    target = GPUTarget("hip", arch, 64) if arch.startswith("gfx") else GPUTarget("cuda", int(arch[3:]), 32)
    forward = variant.direction == "forward"
    kernel = KERNELS[variant.direction, bool(variant.dim)]
    heads = 4 * variant.group
    constants = dict(
        HEADS=heads, GROUP=variant.group, D=variant.head_dim, BLOCK=variant.block_size, ROWS=plan.rows, CHUNK=plan.chunk,
        HELD=plan.held, STAGES=plan.stages, WIDE=variant.wide, CAUSAL=variant.causal, HAS_LSE=variant.has_lse,
        HAS_DLSE=variant.has_lse, R=variant.dim, PER_TOKEN=variant.per_token, HAS_STARTS=variant.has_starts,
        INTERLEAVED=not variant.halves, ROTATE_V=variant.rotate_v, do_row=heads * variant.head_dim,
        q_row=heads * variant.head_dim, k_row=4 * variant.head_dim, v_row=4 * variant.head_dim,
        dq_row=heads * variant.head_dim, dkv_row=4 * variant.head_dim, cos_row=variant.dim, sin_row=variant.dim,
    )  # fmt: skip
    constants = {param.name: constants[param.name] for param in kernel.params if param.is_constexpr}
    if not variant.has_lse:
        constants["lse_ptr" if forward else "dlse_ptr"] = None
    if variant.dim and not variant.has_starts:
        constants["starts_ptr"] = None
    signature, attributes = {}, {}
    for place, name in enumerate(kernel.arg_names):
        signature[name] = "constexpr" if name in constants else _argument_type(name, variant.dtype, variant.full_table)
        if signature[name] not in ("constexpr", "fp32"):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=target, options=plan.options())
    assembled = {} if arch.startswith("gfx") else _assemble(compiled.asm["ptx"])
    place = (arch, variant.direction, bool(variant.dim), variant.block_size, variant.head_dim, variant.group > 1)
    explained = EXPLAINED.get(place, 0)
    return Resources(str(variant), arch, plan.warps, compiled.metadata.shared, explained=explained, **assembled)


def _argument_type(name: str, dtype: torch.dtype, full_table: bool) -> str:
    if name in ("lse_ptr", "dlse_ptr"):
        return "*fp32"
    if name in ("tiles_ptr", "starts_ptr"):
        return "*i64"
    if name in ("cos_ptr", "sin_ptr"):
        return "*fp32" if full_table else "*bf16"
    if name == "scale":
        return "fp32"
    return f"*{TRITON_TYPES[dtype]}" if name.endswith("_ptr") else "i32"


def _assemble(ptx: str) -> dict[str, int]:
    """Registers, stack and spills of one kernel, as ptxas reports them."""
    arch = re.search(r"\.target (sm_\w+)", ptx)[1]
    folder = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    blackwell = folder / "ptxas-blackwell"
    ptxas = blackwell if blackwell.exists() and int(re.search(r"\d+", arch)[0]) >= 100 else folder / "ptxas"
    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place) / "kernel.ptx"
        path.write_text(ptx)
        done = subprocess.run(
            [ptxas, "-v", f"--gpu-name={arch}", path, "-o", pathlib.Path(place) / "kernel.cubin"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    stack, spills = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", done.stderr).groups()
    registers = re.search(r"Used (\d+) registers", done.stderr)[1]
    return dict(registers=int(registers), stack=int(stack), spills=int(spills))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", action="append", choices=SHARED_MEMORY, help="may be repeated (default: all)")
    parser.add_argument("--json", type=pathlib.Path, help="file to write")
    arguments = parser.parse_args()
    report, faults = [], 0
    for arch in arguments.arch or SHARED_MEMORY:
        for variant in (*VARIANTS, *ROTARY_VARIANTS):
            resources = compile_variant(variant, arch)
            report.append({**dataclasses.asdict(resources), "faults": resources.faults()})
            faults += bool(resources.faults())
            print(
                f"{arch:7} {variant!s:60} {resources.registers or '-':>4} registers {resources.shared:7} bytes shared",
                *resources.faults(),
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
