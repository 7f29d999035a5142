"""What the demo prints: the quality beside popularity's, by length of history, and the cost of the attention."""

from __future__ import annotations

import itertools

from rich.console import Console
from rich.table import Table
from torch import Tensor

from .cost import AttentionCost, Cost
from .evaluate import TOP, hit_rate, ndcg


def print_quality(console: Console, ours: Tensor, popularity: Tensor, held_out: str) -> None:
    """HR@10 and NDCG@10 of both rankings."""
    table = Table(title=f"{held_out} of {len(ours)} users, ranked among all items they have not seen")
    table.add_column("ranking")
    for name in ("HR", "NDCG"):
        table.add_column(f"{name}@{TOP}", justify="right")
    for name, ranks in (("blockattn", ours), ("popularity", popularity)):
        table.add_row(name, f"{hit_rate(ranks):.3f}", f"{ndcg(ranks):.3f}")
    console.print(table)


def length_bins(block_size: int) -> list[tuple[int, int | None]]:
    """Bounds (first, past the last) of the lengths of a history, at half, one, two and four blocks."""
    edges = [1, block_size // 2, block_size, 2 * block_size, 4 * block_size, None]
    return list(itertools.pairwise(edges))


def print_lengths(console: Console, lengths: Tensor, ours: Tensor, popularity: Tensor, block_size: int) -> None:
    """HR@10 of both rankings by the length of the user's history `lengths [N]`."""
    table = Table(title=f"by length of the history (blocks of {block_size} rows)")
    table.add_column("items", justify="right")
    for name in ("users", f"HR@{TOP}", "popularity"):
        table.add_column(name, justify="right")
    for first, end in length_bins(block_size):
        inside = (lengths >= first) & (lengths < (end or int(lengths.max()) + 1))
        if inside.any():
            label = f"{first} or more" if end is None else f"{first} to {end - 1}"
            users = str(int(inside.sum()))
            table.add_row(label, users, f"{hit_rate(ours[inside]):.3f}", f"{hit_rate(popularity[inside]):.3f}")
    console.print(table)


def print_cost(console: Console, cost: AttentionCost) -> None:
    """Time and memory of the attention of one step, and of the dense attention that gives the same."""
    table = Table(
        title=f"attention of one training step ({cost.sequences} users, {cost.rows} rows, the longest {cost.longest})"
    )
    table.add_column("attention")
    for name in ("forward + backward", "kept for backward"):
        table.add_column(name, justify="right")
    for name, one in (("blockattn, jagged", cost.block), ("dense mask, padded", cost.dense)):
        table.add_row(name, *_cost_cells(one))
    console.print(table)
    share = cost.block.seconds / cost.step_seconds
    console.print(f"a training step takes {cost.step_seconds * 1e3:.1f} ms, of which attention is {share:.0%}")


def _cost_cells(cost: Cost) -> tuple[str, str]:
    return f"{cost.seconds * 1e3:.1f} ms", f"{cost.kept_bytes / 1e6:.1f} MB"
