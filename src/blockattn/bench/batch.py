"""The tensors of a workload, the tiles that its sequences are cut into, and what an attention over them must move and do."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from blockattn.rotary import RotaryTable

from .workloads import Workload

OPERATIONS = ("attention", "rotary", "layer")  # rotary turns q, k and v first, a layer computes them from its input too


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """q, do `[T, Hq, D]`, k, v `[T, Hk, D]` and offsets `[B + 1]` int64 on one device, and the tiles `[N]` on the host.

    rotary: a table per token, by which q, k and v are to be turned in interleaved pairs; None for "attention". weights: of a
    "layer" of E = Hq · D channels, which is given q as its input `[T, E]`, and no k and v: `[(Hq + 2 Hk) · D, E]` of the
    projection to q, k and v, and `[E, E]` of that of its output.
    """

    workload: Workload
    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    offsets: Tensor
    starts: Tensor
    lengths: Tensor
    rotary: RotaryTable | None = None
    weights: tuple[Tensor, Tensor] | None = None

    @property
    def operation(self) -> str:
        return "layer" if self.weights else "rotary" if self.rotary else "attention"

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def total_rows(self) -> int:
        return self.q.shape[0]

    @functools.cached_property
    def full_tiles(self) -> Tensor:
        """`[F]` int64 on the host: the tiles of a whole block."""
        return (self.lengths == self.workload.block_size).nonzero().squeeze(1)

    @functools.cached_property
    def full_rows(self) -> Tensor:
        """`[F · block]` int64 on the device: the rows of full tiles, in order."""
        rows = self.starts[self.full_tiles][:, None] + torch.arange(self.workload.block_size)
        return rows.flatten().to(self.device)


def make_batch(
    workload: Workload, device: torch.device | str, dtype: torch.dtype = torch.bfloat16, seed: int = 0,
    operation: str = "attention",
) -> Batch:  # fmt: skip
    """Normal random inputs, and what the operation needs: a table of random angles in the same dtype, weights that keep
    the size of what they multiply. A seed's lengths are the same on every machine."""
    lengths = workload.lengths(seed)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    starts, sizes = cut(lengths, workload.block_size)
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype, generator=generator)

    heads = (workload.q_heads, workload.kv_heads, workload.kv_heads, workload.q_heads)
    q, k, v, do = (normal(int(offsets[-1]), h, workload.head_dim) for h in heads)
    table, weights = None, None
    if operation != "attention":
        angles = torch.rand(len(q), workload.head_dim // 2, device=device, generator=generator) * 6.3
        table = RotaryTable.from_sin_cos(torch.cat([angles.sin(), angles.cos()], 1).to(dtype))
    if operation == "layer":
        channels = workload.embed_dim
        weights = tuple(normal(width, channels) * channels**-0.5 for width in (sum(heads[:3]) * workload.head_dim, channels))
    return Batch(workload, q, k, v, do, offsets.to(device), starts, sizes, table, weights)


def cut(lengths: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Starts and lengths `[N]` of the tiles of sequences that lie one after the other."""
    tiles = (lengths + block_size - 1) // block_size
    sequence = torch.arange(len(lengths)).repeat_interleave(tiles)
    place = torch.arange(len(sequence)) - (tiles.cumsum(0) - tiles)[sequence]
    first = lengths.cumsum(0) - lengths
    return first[sequence] + place * block_size, (lengths[sequence] - place * block_size).clamp(max=block_size)


def nbytes(workload: Workload, rows: int, direction: str, itemsize: int = 2, rotary: bool = False) -> int:
    """Each tensor once: a forward reads q, k, v and writes o; a backward reads q, k, v, do and writes dq, dk, dv.

    With rotary each reads a table per token of D channels too.
    """
    reads_and_writes = {"forward": (2, 2), "backward": (3, 4)}
    if direction == "both":
        return sum(nbytes(workload, rows, each, itemsize, rotary) for each in reads_and_writes)
    of_q, of_kv = reads_and_writes[direction]
    return rows * (of_q * workload.q_heads + of_kv * workload.kv_heads + rotary) * workload.head_dim * itemsize


def flops(workload: Workload, tile_lengths: Tensor, direction: str, operation: str = "attention") -> int:
    """Products of the tiles' true sizes: two of n × n × D a head in a forward, five in a backward.

    A layer's projections are two products of all rows too, and twice as many in a backward.
    """
    products, passes = {"forward": (2, 1), "backward": (5, 2), "both": (7, 3)}[direction]
    of_tiles = 2 * products * int(tile_lengths.square().sum()) * workload.embed_dim
    if operation != "layer":
        return of_tiles
    weight_values = 2 * (workload.q_heads + workload.kv_heads) * workload.head_dim * workload.embed_dim
    return of_tiles + 2 * passes * int(tile_lengths.sum()) * weight_values
