"""Cloze training: hide random rows and the last row of every sequence, and predict their items.

Everything random comes from the seed, so a run can be repeated.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from .batches import JaggedBatch, aligned, collate
from .model import ClozeModel, ModelSettings


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """How long and how to train; `mask` is the share of rows hidden.

    Chosen on each user's second-to-last item (`--holdout validation`), never on the last.
    """

    epochs: int = 30
    users_per_batch: int = 16
    learning_rate: float = 6e-3
    weight_decay: float = 0.01
    mask: float = 0.3
    warmup: float = 0.05


@dataclasses.dataclass(frozen=True)
class ClozeBatch:
    """A batch with rows `hidden [N]` replaced by the mask token, and their items `answers [N]`."""

    batch: JaggedBatch
    hidden: Tensor
    answers: Tensor


def cloze(batch: JaggedBatch, mask_token: int, share: float, generator: torch.Generator) -> ClozeBatch:
    """Hide each row with probability `share`, and the last row of every sequence always, as at test time."""
    hide = (torch.rand(batch.tokens.shape, generator=generator) < share).to(batch.tokens.device)
    hide[batch.last_rows] = True
    masked = dataclasses.replace(batch, tokens=batch.tokens.masked_fill(hide, mask_token))
    hidden = hide.nonzero().squeeze(1)
    return ClozeBatch(masked, hidden, batch.tokens[hidden])


def cloze_batches(
    histories: list[list[int]],
    model: ModelSettings,
    settings: TrainSettings,
    generator: torch.Generator,
    device: torch.device,
) -> Iterator[ClozeBatch]:
    """One epoch: every user with 2 items or more once, aligned, in random order."""
    usable = _usable(histories)
    order = torch.randperm(len(usable), generator=generator)
    for chosen in order.split(settings.users_per_batch):
        sequences = [aligned(usable[user], model.block_size) for user in chosen]
        batch = collate(sequences, model.block_size, set(model.shifts), device)
        yield cloze(batch, model.mask_token, settings.mask, generator)


def count_steps(histories: list[list[int]], settings: TrainSettings) -> int:
    """Steps of the whole training."""
    return settings.epochs * math.ceil(len(_usable(histories)) / settings.users_per_batch)


def _usable(histories: list[list[int]]) -> list[list[int]]:
    """Histories whose last item has company."""
    return [history for history in histories if len(history) > 1]


def train_step(model: ClozeModel, optimizer: torch.optim.Optimizer, batch: ClozeBatch) -> Tensor:
    """One step; the mean cross entropy of the hidden rows."""
    loss = nn.functional.cross_entropy(model(batch.batch, batch.hidden), batch.answers)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def learning_rate_factor(done: float, warmup: float) -> float:
    """Linear warm-up, then a cosine to 0, at the share `done` of the training."""
    return min(1.0, done / warmup) * (1 + math.cos(math.pi * done)) / 2


def make_optimizer(model: ClozeModel, settings: TrainSettings) -> torch.optim.Optimizer:
    """AdamW over all parameters."""
    return torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, betas=(0.9, 0.98)
    )


def train(
    model: ClozeModel,
    histories: list[list[int]],
    settings: TrainSettings,
    generator: torch.Generator,
    on_step: Callable[[float], None] = lambda loss: None,
) -> list[float]:
    """Train the model in place; the loss of every step, which `on_step` is told too."""
    steps = count_steps(histories, settings)
    optimizer = make_optimizer(model, settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor((step + 1) / (steps + 1), settings.warmup)
    )
    device = model.item_bias.device
    losses = []
    model.train()
    for _ in range(settings.epochs):
        for batch in cloze_batches(histories, model.settings, settings, generator, device):
            losses.append(float(train_step(model, optimizer, batch)))
            schedule.step()
            on_step(losses[-1])
    return losses
