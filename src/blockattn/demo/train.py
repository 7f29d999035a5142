"""Cloze training: hide random rows and the last row of every sequence, and predict their items.

Everything random comes from the seed, so a run can be repeated.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from .batches import JaggedBatch, aligned_rows, collate
from .model import ClozeModel


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """How long and how to train; `mask` is the share of rows hidden."""

    epochs: int = 30
    users_per_batch: int = 32
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    mask: float = 0.3
    warmup: float = 0.05
    ends: float = 0.0


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


def training_window(history: list[int], block_size: int, ends: float, generator: torch.Generator) -> list[int]:
    n = len(history)
    end = n - int(torch.randint(0, 1 + int((n - 2) * ends), (1,), generator=generator)) if n > 2 else n
    return history[end - aligned_rows(end, block_size) : end]


def cloze_batches(
    histories: list[list[int]], model: ClozeModel, settings: TrainSettings, generator: torch.Generator
) -> Iterator[ClozeBatch]:
    """One epoch: every user with 2 items or more once, in random order."""
    device = model.item_bias.device
    block_size = model.settings.block_size
    usable = [history for history in histories if len(history) > 1]
    order = torch.randperm(len(usable), generator=generator)
    for chosen in order.split(settings.users_per_batch):
        windows = [training_window(usable[i], block_size, settings.ends, generator) for i in chosen]
        batch = collate(windows, block_size, set(model.settings.shifts), device)
        yield cloze(batch, model.settings.mask_token, settings.mask, generator)


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


def make_optimizer(model, settings):
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
    steps = settings.epochs * math.ceil(sum(len(history) > 1 for history in histories) / settings.users_per_batch)
    optimizer = make_optimizer(model, settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor((step + 1) / (steps + 1), settings.warmup)
    )
    losses = []
    model.train()
    for _ in range(settings.epochs):
        for batch in cloze_batches(histories, model, settings, generator):
            losses.append(train_step(model, optimizer, batch).item())
            schedule.step()
            on_step(losses[-1])
    return losses
