"""What a provider must give before it is timed: the oracle's o, dq, dk and dv (a layer's o and dx) on a sample of tiles.

Each tile is a sequence of its own to the fp64 oracle. The yardstick is the error of the oracle's loop in the working dtype,
which rounds all that a kernel may round. A provider may err twice as much overall (it may round in other places, o before
delta say) and four times as much in one tile, and must not be biased: roundings average out over a sample, so a result that
is 1 % too large shows as a factor of 1.01 however coarse the dtype is. Bias is looked for in the whole sample, in its short
tiles, in the last rows of tiles, in each head and in each 16 channels. All rows, sampled or not, must be finite.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from blockattn.rotary import RotaryTable
from blockattn.testing import Case, Inputs, oracle

from .batch import Batch

RESULTS = ("o", "dq", "dk", "dv")
RMS_FACTOR, TILE_FACTOR, MAX_BIAS = 2.0, 4.0, 2e-3
NOISE = 8  # times what the loop's roundings would come to by chance, where a part of the sample is small
CANCELLED = 1e-5  # what fp32 sums of inputs of size 1 leave where they should cancel, in tiles of one row


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Some tiles of a batch, as a batch by itself: its rows in the whole, and what the oracle makes of it."""

    rows: Tensor
    lengths: tuple[int, ...]
    truth: dict[str, Tensor]
    loop: dict[str, Tensor]
    block_size: int


def sample(batch: Batch, tiles: Tensor) -> Sample:
    """The oracle's results in fp64 and in the working dtype on these tiles (numbers on the host)."""
    lengths = tuple(batch.lengths[tiles].tolist())
    rows = torch.cat([torch.arange(n) + int(start) for start, n in zip(batch.starts[tiles], lengths)]).to(batch.device)
    results = _layer if batch.operation == "layer" else _attention
    truth, loop = (results(batch, rows, lengths, dtype) for dtype in (torch.float64, batch.q.dtype))
    return Sample(rows, lengths, truth, loop, batch.workload.block_size)


def _attention(batch: Batch, rows: Tensor, lengths: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    """o, dq, dk and dv in a dtype."""
    return _oracle(batch, rows, lengths, dtype, *(x[rows] for x in (batch.q, batch.k, batch.v, batch.do)))


def _layer(batch: Batch, rows: Tensor, lengths: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    """o and dx in a dtype, in heads: the oracle between the projections, and its gradients back through the first."""
    heads, kv_heads, head_dim = batch.workload.q_heads, batch.workload.kv_heads, batch.workload.head_dim
    qkv_weight, out_weight = (weight.to(dtype) for weight in batch.weights)
    x, do = (tensor[rows].flatten(1).to(dtype) for tensor in (batch.q, batch.do))

    def in_heads(tensor: Tensor) -> Tensor:
        return tensor.unflatten(1, (-1, head_dim))

    q, k, v = in_heads(x @ qkv_weight.mT).split([heads, kv_heads, kv_heads], 1)
    found = _oracle(batch, rows, lengths, dtype, q, k, v, in_heads(do @ out_weight))
    dqkv = torch.cat([found[name] for name in RESULTS[1:]], 1)
    return {"o": in_heads(found["o"].flatten(1) @ out_weight.mT), "dx": in_heads(dqkv.flatten(1) @ qkv_weight)}


def _oracle(batch: Batch, rows: Tensor, lengths: tuple[int, ...], dtype: torch.dtype, *tensors: Tensor) -> dict[str, Tensor]:
    """The oracle's results in a dtype for q, k, v and do of these rows of the batch, each tile a sequence."""
    shape = batch.workload
    case = Case(
        lengths, q_heads=shape.q_heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, block_size=shape.block_size,
        dtype=batch.q.dtype, rotate_v=batch.rotary is not None,
    )  # fmt: skip
    rotary = batch.rotary
    if rotary is not None:
        rotary = RotaryTable(rotary.cos[rows], rotary.sin[rows], per_token=True)
    no_lse = torch.zeros(len(rows), shape.q_heads, device=batch.device)
    offsets = torch.tensor([*itertools.accumulate(lengths, initial=0)], device=batch.device)
    found = oracle(case, Inputs(*tensors, no_lse, offsets, None, rotary), dtype, with_lse=False)
    return {name: found[name] for name in RESULTS}


def spread(candidates: Tensor, count: int) -> Tensor:
    """`count` of the candidates, evenly spread, the first and the last among them."""
    places = torch.linspace(0, len(candidates) - 1, min(count, len(candidates))).round().long()
    return candidates[places]


def faults(sampled: Sample, results: dict[str, Tensor]) -> list[str]:
    """What is wrong with the results of the sampled rows, a line each; empty when they may be timed."""
    found = not_finite(results)
    for name in sampled.truth if not found else ():
        got, want, loop = (x[name].double() for x in (results, sampled.truth, sampled.loop))
        error, allowed = got - want, _rms(loop - want) + CANCELLED
        ratio = float(_rms(error) / allowed)
        of_tiles = zip(error.split(sampled.lengths), (loop - want).split(sampled.lengths), strict=True)
        worst = max(float(_rms(mine) / torch.maximum(_rms(its), allowed)) for mine, its in of_tiles)
        if ratio > RMS_FACTOR:
            found.append(f"{name}: RMS error {ratio:.2f} times that of the plain loop in the same dtype")
        elif worst > TILE_FACTOR:
            found.append(f"{name}: RMS error in one tile {worst:.2f} times that of the plain loop in the same dtype")
        found += _biases(name, sampled, got, want, loop)
    return found


def not_finite(results: dict[str, Tensor]) -> list[str]:
    """The results with NaN or infinite values, a line each."""
    counts = {name: int((~x.isfinite()).sum()) for name, x in results.items()}
    return [f"{name}: {count} of {results[name].numel()} values are not finite" for name, count in counts.items() if count]


def _biases(name: str, sampled: Sample, got: Tensor, want: Tensor, loop: Tensor) -> list[str]:
    """The first part of the sample whose values are too large or too small on average; most often there is none."""
    for part, (mine, true, its) in _parts(sampled, got, want, loop):
        size = true.square().sum()
        if not size:
            continue
        bias = float((mine * true).sum() / size) - 1
        noise = float(((its - true) * true).square().sum().sqrt() / size)
        if abs(bias) > max(MAX_BIAS, NOISE * noise):
            return [f"{name}: {abs(bias):.2%} too {'large' if bias > 0 else 'small'} on average{part}"]
    return []


def _parts(sampled: Sample, *values: Tensor) -> Iterator[tuple[str, list[Tensor]]]:
    """Parts of `[R, heads, D]` values that a fault may be confined to, with their names; the whole first."""
    yield "", list(values)
    tile = torch.arange(len(sampled.lengths)).repeat_interleave(torch.tensor(sampled.lengths)).to(values[0].device)
    lengths = torch.tensor(sampled.lengths, device=tile.device)
    yield " in short tiles", [x[lengths[tile] < sampled.block_size] for x in values]
    yield " in the last rows of tiles", [x[lengths.cumsum(0) - 1] for x in values]
    for head in range(values[0].shape[1]):
        yield f" in head {head}", [x[:, head] for x in values]
    for first in range(0, values[0].shape[2], 16):
        yield f" in channels from {first} on", [x[..., first : first + 16] for x in values]


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()
