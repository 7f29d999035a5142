"""What a small kernel with switches is, and the tensors that most of them take: n tiles of 64 x 64 and an output like them.

A `Hazard` runs in the simulator (tensors on the CPU) and on a GPU alike: the caller asks for a launch on a device, starts
it, and compares `out` with `expected`, which only a correct combination of switches reaches.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx
from triton.tools.tensor_descriptor import TensorDescriptor

TILE = 64
ARCHS = ("sm_90", "sm_100")
HOPPER, BLACKWELL = ARCHS


@dataclasses.dataclass
class Launch:
    """Arguments of a kernel, the tensor that it fills and what should be in it."""

    args: tuple
    out: torch.Tensor
    expected: torch.Tensor

    def error(self) -> float:
        """The largest difference, NaN when the output holds one."""
        return (self.out.float() - self.expected.float()).abs().max().item()

    def right(self, tolerance: float = 0.02) -> bool:
        return self.error() <= tolerance * max(1.0, self.expected.float().abs().max().item())


@dataclasses.dataclass(frozen=True, eq=False)
class Hazard:
    """A kernel with constexpr switches.

    Args:
        kernel: the jit function.
        launch: (device, switches) to a `Launch`.
        switches: each switch with all its values.
        archs: what it compiles for.
        constants: other constexpr arguments and launch options.
        keep: which combinations make sense.
        runs_on_gpu: False where the fault cannot be judged by a run (a launch that no GPU takes).
    """

    kernel: Any
    launch: Callable[[str, dict], Launch]
    switches: dict[str, tuple]
    archs: tuple[str, ...] = ARCHS
    constants: dict[str, Any] = dataclasses.field(default_factory=dict)
    grid: tuple = (1,)
    keep: Callable[..., bool] = lambda **_: True
    runs_on_gpu: bool = True

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__

    def combinations(self) -> Iterator[dict[str, Any]]:
        for values in itertools.product(*self.switches.values()):
            chosen = dict(zip(self.switches, values))
            if self.keep(**chosen):
                yield chosen

    def start(self, launch: Launch, switches: dict[str, Any]) -> None:
        self.kernel[self.grid](*launch.args, **({"num_warps": 4} | self.constants | switches))


def label(switches: dict[str, Any]) -> str:
    """A combination in one word, for test names and table rows."""
    return "-".join(f"{name}={int(value) if isinstance(value, bool) else value}" for name, value in switches.items())


def random(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """The same numbers on every machine."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def unwritten(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def by_tiles(tensor: torch.Tensor, rows: int = TILE, columns: int = TILE) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(tensor, [rows, columns])


def copy_by_pointers(tiles: int) -> Callable[[str, dict], Launch]:
    """(x_ptr, out_ptr): fp32 tiles that the kernel should copy."""

    def launch(device: str, switches: dict) -> Launch:
        x = random(tiles * TILE, TILE, device=device, dtype=torch.float32)
        out = unwritten(*x.shape, device=device, dtype=x.dtype)
        return Launch((x, out), out, x)

    return launch


def copy_by_descriptors(tiles: int) -> Callable[[str, dict], Launch]:
    """(x_desc, out_desc): bf16 tiles that the kernel should copy."""

    def launch(device: str, switches: dict) -> Launch:
        x = random(tiles * TILE, TILE, device=device)
        out = unwritten(*x.shape, device=device)
        return Launch((by_tiles(x), by_tiles(out)), out, x)

    return launch


def copy_to_pointers(tiles: int) -> Callable[[str, dict], Launch]:
    """(x_desc, out_ptr): bf16 tiles that come by TMA and leave by ordinary stores."""

    def launch(device: str, switches: dict) -> Launch:
        x = random(tiles * TILE, TILE, device=device)
        out = unwritten(*x.shape, device=device)
        return Launch((by_tiles(x), out), out, x)

    return launch


def copy_from_pointers(tiles: int) -> Callable[[str, dict], Launch]:
    """(x_ptr, out_desc): bf16 tiles that come by ordinary loads and leave by TMA."""

    def launch(device: str, switches: dict) -> Launch:
        x = random(tiles * TILE, TILE, device=device)
        out = unwritten(*x.shape, device=device)
        return Launch((x, by_tiles(out)), out, x)

    return launch


def product_of_tiles(tiles: int, rows: int = TILE) -> Callable[[str, dict], Launch]:
    """(a_desc, b_desc, out_ptr): the sum of products of tiles, [rows, 64 tiles] by [64 tiles, 64], in fp32."""

    def launch(device: str, switches: dict) -> Launch:
        a = random(rows, tiles * TILE, device=device)
        b = random(tiles * TILE, TILE, device=device, seed=1)
        out = unwritten(rows, TILE, device=device, dtype=torch.float32)
        return Launch((by_tiles(a, rows), by_tiles(b), out), out, a.float() @ b.float())

    return launch


@triton.jit
def pointers(ptr, i, ROWS: tl.constexpr = 64, COLUMNS: tl.constexpr = 64):
    """Of the i-th tile of a matrix as wide as a tile."""
    return ptr + i * ROWS * COLUMNS + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def _fill(NB: tl.constexpr):
    buffers = tlx.local_alloc((64, 64), tl.float32, NB)
    for i in range(NB):
        tlx.local_store(buffers[i], tl.full((64, 64), float("nan"), tl.float32))


def fill_shared_memory(device: str) -> None:
    """NaN in 208 KiB of every SM of a GPU, so that a read of memory which a kernel never wrote shows in its output."""
    _fill[(torch.cuda.get_device_properties(device).multi_processor_count,)](NB=13, num_warps=4)
