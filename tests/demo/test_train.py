"""Cloze batches and the training loop."""

import math

import pytest
import torch

from blockattn.demo.batches import collate
from blockattn.demo.data import split
from blockattn.demo.model import ClozeModel, ModelSettings
from blockattn.demo.train import TrainSettings, cloze, cloze_batches, count_steps, learning_rate_factor, train

CPU = torch.device("cpu")
MODEL = ModelSettings(items=50, longest=40, block_size=16, width=32)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_cloze_hides_the_last_row_and_the_asked_share_of_the_others():
    sequences = [list(range(50)) * 40, [3, 4]]
    original = collate(sequences, 16, {0}, CPU)
    batch = cloze(original, MODEL.mask_token, 0.3, generator())
    tokens = batch.batch.tokens
    assert {1999, 2001} <= set(batch.hidden.tolist())
    assert torch.equal(batch.answers, original.tokens[batch.hidden])
    assert (tokens[batch.hidden] == MODEL.mask_token).all()
    shown = tokens != MODEL.mask_token
    assert int(shown.sum()) == len(tokens) - len(batch.hidden)
    assert torch.equal(tokens[shown], original.tokens[shown])
    assert len(batch.hidden) / 2002 == pytest.approx(0.3, abs=0.04)


def test_the_held_out_item_never_enters_training():
    # Item 40 + u is user u's last and nobody else's: it may be neither a token nor an answer.
    sequences = [[*range(u, u + 5 + 7 * u), 40 + u] for u in range(5)]
    batches = cloze_batches(split(sequences).histories, MODEL, TrainSettings(mask=0.5, users_per_batch=2), generator(), CPU)
    seen = torch.cat([torch.cat([batch.batch.tokens, batch.answers]) for batch in batches])
    assert not set(seen.tolist()) & set(range(45, 50)) - {MODEL.mask_token}
    assert len(seen) > 60


def test_an_epoch_takes_every_user_with_company_once():
    histories = [[], [1], [2, 3], [4, 5, 6], [7, 8]]
    settings = TrainSettings(epochs=3, users_per_batch=2)
    batches = list(cloze_batches(histories, MODEL, settings, generator(), CPU))
    assert count_steps(histories, settings) == 3 * len(batches) == 6
    assert sorted(length for batch in batches for length in batch.batch.offsets.diff().tolist()) == [2, 2, 3]


def test_learning_rate_rises_then_falls_to_zero():
    factors = [learning_rate_factor(step / 100, 0.05) for step in range(1, 101)]
    assert factors[0] < factors[1] < factors[4]
    assert max(factors) == factors[4]
    assert factors[-1] == pytest.approx(0)


def trained(seed):
    """A model of cyclic sequences, where the item after x is x + 1; its losses too."""
    histories = [[(first + step) % 50 for step in range(8 + first)] for first in range(32)]
    torch.manual_seed(seed)
    model = ClozeModel(MODEL)
    reported = []
    losses = train(model, histories, TrainSettings(epochs=30, users_per_batch=8), generator(seed), reported.append)
    assert reported == losses
    assert len(losses) == 120
    return model.eval(), losses


def test_training_learns_a_rule_and_is_the_same_for_a_seed():
    model, losses = trained(seed=0)
    assert sum(losses[-10:]) / 10 < 0.65 * math.log(MODEL.items)
    batch = collate([[*range(20, 31), MODEL.mask_token]], 16, set(MODEL.shifts), CPU)
    assert 31 in model(batch, batch.last_rows).topk(5).indices
    assert trained(seed=0)[1] == losses
    assert trained(seed=1)[1] != losses


def test_a_row_learns_from_the_neighbouring_block_and_from_no_other_sequence():
    """With shifts 8 and 0, the last of 24 rows sees the 24 before it through two layers, and not the other sequence."""
    torch.manual_seed(0)
    model = ClozeModel(MODEL).eval()
    sequences = [list(range(32)), list(range(40))]
    batch = collate(sequences, 16, set(MODEL.shifts), CPU)
    embedded = model.embed(batch).detach().requires_grad_()
    model.embed = lambda _: embedded
    model(batch, batch.last_rows[1:]).square().sum().backward()
    touched = embedded.grad.abs().sum(1).nonzero().squeeze(1).tolist()
    # Row 39 of the second: block 32..39 at shift 0, whose rows saw 24..39 at shift 8.
    assert touched == list(range(32 + 24, 32 + 40))
