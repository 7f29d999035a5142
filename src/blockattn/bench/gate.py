"""What a provider must give before it is timed: the oracle's o, dq, dk and dv on a sample of tiles.

Each tile is a sequence of its own to the fp64 oracle. The yardstick is the error of the oracle's loop in the working dtype,
which rounds all that a kernel may round. A provider may err twice as much overall (it may round in other places, o before
delta say) and four times as much in one tile, and must not be biased: roundings average out over a sample, so a result that
is 1 % too large shows as a factor of 1.01 however coarse the dtype is.
"""

from __future__ import annotations

import dataclasses
import itertools

import torch
from torch import Tensor

from blockattn.testing import Case, Inputs, oracle

from .batch import Batch

RESULTS = ("o", "dq", "dk", "dv")
RMS_FACTOR, TILE_FACTOR, MAX_BIAS = 2.0, 4.0, 2e-3
CANCELLED = 1e-5  # what fp32 sums of inputs of size 1 leave where they should cancel, in tiles of one row


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Some tiles of a batch, as a batch by itself: its rows in the whole, and what the oracle makes of it."""

    rows: Tensor
    lengths: tuple[int, ...]
    truth: dict[str, Tensor]
    loop: dict[str, Tensor]


def sample(batch: Batch, tiles: Tensor) -> Sample:
    """The oracle's results in fp64 and in the working dtype on these tiles (numbers on the host)."""
    lengths = tuple(batch.lengths[tiles].tolist())
    rows = torch.cat([torch.arange(n) + int(start) for start, n in zip(batch.starts[tiles], lengths)]).to(batch.device)
    shape = batch.workload
    case = Case(
        lengths, q_heads=shape.q_heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, block_size=shape.block_size,
        dtype=batch.q.dtype,
    )  # fmt: skip
    no_lse = torch.zeros(len(rows), shape.q_heads, device=batch.device)
    offsets = torch.tensor([*itertools.accumulate(lengths, initial=0)], device=batch.device)
    inputs = Inputs(*(x[rows] for x in (batch.q, batch.k, batch.v, batch.do)), no_lse, offsets, None)
    truth, loop = (oracle(case, inputs, dtype, with_lse=False) for dtype in (torch.float64, batch.q.dtype))
    return Sample(rows, lengths, truth, loop)


def spread(candidates: Tensor, count: int) -> Tensor:
    """`count` of the candidates, evenly spread, the first and the last among them."""
    places = torch.linspace(0, len(candidates) - 1, min(count, len(candidates))).round().long()
    return candidates[places]


def faults(sampled: Sample, results: dict[str, Tensor]) -> list[str]:
    """What is wrong with o, dq, dk and dv of the sampled rows, a line each; empty when they may be timed."""
    found = []
    for name in RESULTS:
        got, want, loop = (x[name].double() for x in (results, sampled.truth, sampled.loop))
        if not got.isfinite().all():
            found.append(f"{name}: {int((~got.isfinite()).sum())} of {got.numel()} values are not finite")
            continue
        error, allowed = got - want, _rms(loop - want) + CANCELLED
        ratio = float(_rms(error) / allowed)
        of_tiles = zip(error.split(sampled.lengths), (loop - want).split(sampled.lengths), strict=True)
        worst = max(float(_rms(mine) / torch.maximum(_rms(its), allowed)) for mine, its in of_tiles)
        bias = float((got * want).sum() / want.square().sum()) - 1 if want.any() else 0.0
        if ratio > RMS_FACTOR:
            found.append(f"{name}: RMS error {ratio:.2f} times that of the plain loop in the same dtype")
        elif worst > TILE_FACTOR:
            found.append(f"{name}: RMS error in one tile {worst:.2f} times that of the plain loop in the same dtype")
        if abs(bias) > MAX_BIAS:
            found.append(f"{name}: {abs(bias):.2%} too {'large' if bias > 0 else 'small'} on average")
    return found


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()
