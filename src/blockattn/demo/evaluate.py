"""Ranking of the whole catalogue for each user's held-out item: HR@10 and NDCG@10, ours and popularity's."""

from __future__ import annotations

import torch
from torch import Tensor

from .batches import collate, query
from .data import Split
from .model import ClozeModel

TOP = 10
USERS_PER_BATCH = 128


def ranks(scores: Tensor, targets: Tensor, seen: list[list[int]]) -> Tensor:
    """`[N]` how many items stand before the target, of those that the user has not seen.

    scores `[N, items]`, targets `[N]`, seen: N lists of items, none of which holds its target. A tie counts against the
    target, and so does NaN.
    """
    scores = scores.clone()
    for row, items in zip(scores, seen, strict=True):
        row[items] = -torch.inf
    behind = scores < scores.gather(1, targets[:, None])
    return (~behind).sum(1) - 1


def hit_rate(ranks: Tensor) -> float:
    """HR@10: the share of targets among the first ten."""
    return (ranks < TOP).double().mean().item()


def ndcg(ranks: Tensor) -> float:
    """NDCG@10 with one relevant item: the mean of 1 / log2(2 + rank) where the rank is below ten, else 0."""
    return torch.where(ranks < TOP, 1 / torch.log2(ranks.double() + 2), 0).mean().item()


def popularity_ranks(split: Split, items: int) -> Tensor:
    """Ranks when every user is offered the items with the most interactions in all histories."""
    counts = torch.bincount(torch.tensor([i for history in split.histories for i in history]), minlength=items)
    targets = torch.tensor([item for _, item in split.queries])
    seen = [split.histories[index] for index, _ in split.queries]
    return ranks(counts.float().repeat(len(targets), 1), targets, seen)


@torch.no_grad()
def model_ranks(model: ClozeModel, split: Split) -> Tensor:
    """Ranks by the model's scores at a mask token that follows the user's history."""
    model.eval()
    settings = model.settings
    device = model.item_bias.device
    found = []
    for first in range(0, len(split.queries), USERS_PER_BATCH):
        queries = split.queries[first : first + USERS_PER_BATCH]
        histories = [split.histories[index] for index, _ in queries]
        sequences = [query(history, settings.mask_token, settings.block_size) for history in histories]
        batch = collate(sequences, settings.block_size, set(settings.shifts), device)
        targets = torch.tensor([item for _, item in queries], device=device)
        found.append(ranks(model(batch, batch.last_rows), targets, histories).cpu())
    return torch.cat(found)
