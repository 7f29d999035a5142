"""Benchmark shapes as data: how many sequences, how long, how many heads of what size, cut how.

A spec is written like `B1152,H4,Hk4,D128,L2048,fill0.7,block64`: B sequences whose lengths are uniform up to L with a mean
of fill · L, H query and Hk kv heads of D channels, blocks of 64 rows. `long65536` adds one sequence of that many rows, and
`graph` replays the calls from a CUDA graph, where launches would hide a tiny batch.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import zlib

import torch
from torch import Tensor

from blockattn.api import check_head_dim
from blockattn.tiles import BLOCK_SIZES

_FIELDS = {
    "B": "batch", "H": "q_heads", "Hk": "kv_heads", "D": "head_dim", "L": "longest", "fill": "fill", "block": "block_size",
    "long": "long", "graph": "graph",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Workload:
    """A jagged batch, bf16: `batch` random lengths with a mean of fill · longest, or the lengths `given`."""

    name: str
    batch: int = 1
    longest: int = 64
    fill: float = 1.0
    q_heads: int = 4
    kv_heads: int = 4
    head_dim: int = 64
    block_size: int = 64
    long: int = 0
    graph: bool = False
    given: tuple[int, ...] | None = None

    @property
    def embed_dim(self) -> int:
        """Channels of a layer with these heads."""
        return self.q_heads * self.head_dim

    @property
    def spec(self) -> str:
        """The shape in words that `parse` reads; lengths from a file are counted, summed and hashed."""
        if self.given is None:
            lengths = f"B{self.batch}", f"L{self.longest}", f"fill{self.fill:g}"
        else:
            content = zlib.crc32(",".join(map(str, self.given)).encode())
            lengths = (f"B{len(self.given)} given", f"{sum(self.given)} rows", f"{content:08x}")
        heads = f"H{self.q_heads}", f"Hk{self.kv_heads}", f"D{self.head_dim}", f"block{self.block_size}"
        return ",".join([*lengths, *heads, *[f"long{self.long}"] * bool(self.long), *["graph"] * self.graph])

    def lengths(self, seed: int = 0) -> Tensor:
        """`[B]` int64 on the CPU, the same for a seed on every machine; the long sequence comes last."""
        if self.given is not None:
            return torch.tensor(self.given, dtype=torch.int64)
        generator = torch.Generator().manual_seed(seed)
        shortest = max(0, int((2 * self.fill - 1) * self.longest))
        most = self.longest if self.fill >= 0.5 else int(2 * self.fill * self.longest)
        drawn = torch.randint(shortest, most + 1, (self.batch,), generator=generator)
        return torch.cat([drawn, drawn.new_tensor([self.long] * bool(self.long))])

    def scaled(self, most_rows: int) -> Workload:
        """The same with fewer sequences, and none longer than most_rows, so that it has about most_rows rows at most."""
        rows = int(self.lengths().sum())
        if rows <= most_rows:
            return self
        share = most_rows / rows
        if self.given is not None:
            kept = self.given[: max(1, int(len(self.given) * share))]
            return dataclasses.replace(self, given=tuple(min(length, most_rows) for length in kept))
        fewer = dict(batch=max(1, int(self.batch * share)), longest=min(self.longest, most_rows))
        return dataclasses.replace(self, **fewer, long=int(self.long * share))


MOST_SEQUENCES, MOST_ROWS = 10**7, 10**11

# Lengths with fill 0.7 are uniform in [0.4, 1] of the longest.
W128 = Workload("W128", 1152, 2048, 0.7, head_dim=128)
WORKLOADS = (
    W128,
    Workload("W64", 1152, 4096, 0.7),
    Workload("short-64", 32768, 64),
    Workload("short-64-D128", 8192, 64, head_dim=128),
    Workload("short-34", 32768, 34),
    Workload("short-1-64", 32768, 64, 0.508),
    Workload("one-long", 8192, 64, 0.508, long=262144),
    Workload("tiny-D64", 4, 1024, graph=True),
    Workload("tiny-D128", 4, 1024, head_dim=128, graph=True),
    dataclasses.replace(W128, name="GQA-8-2", q_heads=8, kv_heads=2),
    *[Workload(f"block{n}-D{d}", 1024, 1024, head_dim=d, block_size=n) for d in (64, 128) for n in (16, 32, 128)],
    Workload("D256", 512, 2048, 0.7, head_dim=256),
    *[dataclasses.replace(W128, name=f"W128/{n}", batch=W128.batch // n) for n in (4, 16, 64)],
)


def parse(text: str) -> Workload:
    """A workload by its name or spec, or a new one from a spec; a ValueError says what is wrong with it."""
    for workload in WORKLOADS:
        if workload.name == text:
            return workload
    values = {}
    for part in text.split(","):
        found = re.fullmatch(r"([A-Za-z]+)([0-9.]*)", part.strip())
        field = _FIELDS.get(found[1]) if found else None
        if field is None or field in values or (found[2] == "") != (field == "graph"):
            names = ", ".join(workload.name for workload in WORKLOADS)
            raise ValueError(
                f"workload must be one of {names}, or a spec like B1152,H4,Hk4,D128,L2048,fill0.7,block64; "
                f"got {text!r}, whose {part!r} is not understood or comes twice"
            )
        values[field] = _value(field, found[2], part)
    values.setdefault("kv_heads", values.get("q_heads", 4))
    made = _checked(Workload(text, **values))
    return next((known for known in WORKLOADS if known.spec == made.spec), made)


def from_file(path: pathlib.Path, shape: Workload) -> Workload:
    """A workload whose lengths are the lines of a file, one integer a line; heads, head dim and block as in `shape`."""
    try:
        lines = path.read_text().split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text, a whole number a line ({error})") from None
    lengths = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            if not re.fullmatch("[0-9]+", line.strip()):
                raise ValueError(f"{path}, line {number} must be a whole number of rows, got {line.strip()!r}")
            lengths.append(int(line))
    if not lengths:
        raise ValueError(f"{path} must hold a whole number a line, got none")
    return _checked(dataclasses.replace(shape, name=path.name, given=tuple(lengths)))


def _value(field: str, text: str, part: str) -> int | float | bool:
    if field == "graph":
        return True
    try:
        return float(text) if field == "fill" else int(text)
    except ValueError:
        raise ValueError(f"{part!r} must hold a {'number' if field == 'fill' else 'whole number'}") from None


def _checked(workload: Workload) -> Workload:
    if not 0 < workload.fill <= 1:
        raise ValueError(f"fill must be above 0 and at most 1, got {workload.fill:g}")
    if min(workload.batch, workload.longest, workload.q_heads, workload.kv_heads) < 1:
        raise ValueError(f"B, L, H and Hk must be at least 1, got {workload.spec}")
    if max(workload.batch, len(workload.given or ())) > MOST_SEQUENCES:
        raise ValueError(f"B must be at most {MOST_SEQUENCES:,}, got {workload.spec}")
    if not 0 < sum(workload.given or workload.lengths().tolist()) <= MOST_ROWS:
        raise ValueError(f"a workload must have 1 to {MOST_ROWS:,} rows, got {workload.spec}")
    if workload.q_heads % workload.kv_heads:
        raise ValueError(f"H must be a multiple of Hk, got {workload.q_heads} and {workload.kv_heads}")
    check_head_dim("D", workload.head_dim)
    if workload.block_size not in BLOCK_SIZES:
        raise ValueError(f"block must be one of {BLOCK_SIZES}, got {workload.block_size}")
    return workload
