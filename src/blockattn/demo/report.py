"""What the demo prints: the quality beside popularity's, by length of history, and the cost of the attention."""

from __future__ import annotations

import itertools

from rich.console import Console
from rich.table import Table
from torch import Tensor

from .cost import AttentionCost
from .evaluate import TOP, hit_rate, ndcg


def print_quality(console: Console, ours: Tensor, popularity: Tensor, held_out: str) -> None:
    """HR@10 and NDCG@10 of both rankings."""
    _title(console, f"{held_out} of {len(ours)} users, ranked among all items that the user has not seen")
    table = _table("ranking", f"HR@{TOP}", f"NDCG@{TOP}")
    for name, ranks in (("blockattn", ours), ("popularity", popularity)):
        table.add_row(name, f"{hit_rate(ranks):.3f}", f"{ndcg(ranks):.3f}")
    console.print(table)
    console.print("default settings were chosen on the second-to-last items alone (--holdout validation)")


def length_bins(block_size: int) -> list[tuple[int, int | None]]:
    """Bounds (first, past the last) of the lengths of a history, at half, one, two and four blocks."""
    edges = [1, block_size // 2, block_size, 2 * block_size, 4 * block_size, None]
    return list(itertools.pairwise(edges))


def print_lengths(console: Console, lengths: Tensor, ours: Tensor, popularity: Tensor, block_size: int) -> None:
    """HR@10 of both rankings by the length of the user's history `lengths [N]`."""
    _title(console, f"by the length of the user's history (a block has {block_size} rows)")
    table = _table("items", "users", f"HR@{TOP}", "popularity")
    for first, end in length_bins(block_size):
        inside = (lengths >= first) & (lengths < (end or int(lengths.max()) + 1))
        if inside.any():
            label = f"{first} or more" if end is None else f"{first} to {end - 1}"
            users = str(int(inside.sum()))
            table.add_row(label, users, f"{hit_rate(ours[inside]):.3f}", f"{hit_rate(popularity[inside]):.3f}")
    console.print(table)


def print_cost(console: Console, cost: AttentionCost) -> None:
    """Time and memory of the attention of a step, and of the dense attention that gives the same."""
    rows = cost.rows / cost.steps
    _title(console, f"attention of a training step ({rows:.0f} rows on average, longest sequence {cost.longest})")
    table = _table("attention", "forward + backward", "kept for backward, at most")
    for name, one in (("blockattn, jagged", cost.block), ("dense mask, padded", cost.dense)):
        table.add_row(name, f"{one.seconds * 1e3:.1f} ms", f"{one.kept_bytes / 1e6:.1f} MB")
    console.print(table)
    share = cost.block.seconds / cost.step_seconds
    console.print(f"a training step takes {cost.step_seconds * 1e3:.1f} ms, of which attention is {share:.0%}")


def _title(console: Console, text: str) -> None:
    console.print(f"\n{text}")


def _table(first: str, *others: str) -> Table:
    """A table whose columns after the first hold numbers."""
    table = Table(first)
    for name in others:
        table.add_column(name, justify="right")
    return table
