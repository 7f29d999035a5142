"""Ranks, HR@10, NDCG@10 and popularity against cases worked out by hand."""

import math

import pytest
import torch

from blockattn.demo.data import Split, split
from blockattn.demo.evaluate import hit_rate, model_ranks, ndcg, popularity_ranks, ranks
from blockattn.demo.model import ClozeModel, ModelSettings


def test_metrics_by_hand():
    found = torch.tensor([0, 2, 9, 10, 500])
    assert hit_rate(found) == pytest.approx(3 / 5)
    assert ndcg(found) == pytest.approx((1 + 1 / 2 + 1 / math.log2(11)) / 5)


def test_ranking_excludes_what_the_user_has_seen():
    scores = torch.tensor([[9.0, 8.0, 7.0, 6.0], [9.0, 8.0, 7.0, 6.0]])
    assert ranks(scores, torch.tensor([2, 2]), [[0, 1], [3]]).tolist() == [0, 2]
    assert scores[0, 0] == 9, "the caller's scores are left alone"


def test_ties_and_nan_count_against_the_target():
    scores = torch.tensor([[1.0, 1.0, 0.0], [math.nan, math.nan, math.nan]])
    assert ranks(scores, torch.tensor([0, 0]), [[], []]).tolist() == [1, 2]


def test_popularity_counts_no_held_out_item():
    # Item 3 is held out for two users and in one history: its count is 1, below item 0's 2.
    result = split([[0, 1, 3], [0, 2, 3], [3, 4]])
    assert popularity_ranks(result, 6).tolist() == [1, 1, 4]


def test_model_ranks_see_the_history_and_not_the_held_out_item(monkeypatch):
    settings = ModelSettings(items=12, longest=8, block_size=16)
    model = ClozeModel(settings)
    batches = []

    def scores(batch, rows):
        batches.append((batch.tokens.tolist(), rows.tolist()))
        return torch.arange(12.0).repeat(len(rows), 1)

    monkeypatch.setattr(model, "forward", scores)
    found = model_ranks(model, Split([[11, 2], [5], [3]], [(0, 10), (2, 9)], 1))
    assert found.tolist() == [0, 2]
    assert batches == [([11, 2, settings.mask_token, 3, settings.mask_token], [2, 4])]
