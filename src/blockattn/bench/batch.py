"""The tensors of a workload, the tiles that its sequences are cut into, and what an attention over them must move and do."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from blockattn.rotary import RotaryTable

from .workloads import Workload


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """q, do `[T, Hq, D]`, k, v `[T, Hk, D]` and offsets `[B + 1]` int64 on one device, and the tiles `[N]` on the host.

    With rotary, q, k and v are to be turned by this table per token, in interleaved pairs.
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
    rotary: bool = False,
) -> Batch:  # fmt: skip
    """Normal random inputs, and with rotary a table of random angles in the same dtype; a seed's lengths are the same
    on every machine."""
    lengths = workload.lengths(seed)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    starts, sizes = cut(lengths, workload.block_size)
    generator = torch.Generator(device).manual_seed(seed)

    def normal(heads: int) -> Tensor:
        shape = (int(offsets[-1]), heads, workload.head_dim)
        return torch.randn(shape, device=device, dtype=dtype, generator=generator)

    q, k, v, do = (normal(h) for h in (workload.q_heads, workload.kv_heads, workload.kv_heads, workload.q_heads))
    table = None
    if rotary:
        angles = torch.rand(len(q), workload.head_dim // 2, device=device, generator=generator) * 6.3
        table = RotaryTable.from_sin_cos(torch.cat([angles.sin(), angles.cos()], 1).to(dtype))
    return Batch(workload, q, k, v, do, offsets.to(device), starts, sizes, table)


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


def flops(workload: Workload, tile_lengths: Tensor, direction: str) -> int:
    """Products of the tiles' true sizes: two of n × n × D a head in a forward, five in a backward."""
    products = {"forward": 2, "backward": 5, "both": 7}[direction]
    return 2 * products * int(tile_lengths.square().sum()) * workload.q_heads * workload.head_dim
