"""The demo from the file of interactions to the tables and pictures."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from . import cost, data, evaluate, pictures, report
from .batches import collate, longest_query, query
from .data import DataError, Histories, Split
from .model import ClozeModel, ModelSettings
from .train import TrainSettings, cloze_batches, count_steps, train

QUICK_USERS = 64
QUICK_EPOCHS = 2
COST_STEPS = 8
HELD_OUT = {"test": "the last item", "validation": "the second-to-last item (the last one unused)"}


def run(options: argparse.Namespace, console: Console) -> None:
    """Train, evaluate, print and draw.

    Raises:
        DataError: the interactions cannot be used.
        OSError: the output folder cannot be written.
    """
    begin = time.perf_counter()
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    histories, split = _read(options)
    console.print(_describe(histories, split))
    longest = longest_query(split.histories, options.block_size)
    model_settings = ModelSettings(len(histories.items), longest, options.block_size)
    train_settings = TrainSettings(epochs=QUICK_EPOCHS if options.quick else options.epochs)
    with _torch_state(options, device):
        generator = torch.Generator().manual_seed(options.seed)
        model = ClozeModel(model_settings).to(device)
        losses = _train(model, split, train_settings, generator, console)
        _evaluate(model, split, options.holdout, console)
        batches = cloze_batches(split.histories, model_settings, train_settings, generator, device)
        report.print_cost(console, cost.measure(model, list(itertools.islice(batches, COST_STEPS)), train_settings))
        _draw(model, split, losses, out, console)
    console.print(f"done in {time.perf_counter() - begin:.0f} s on {device}")


def _read(options: argparse.Namespace) -> tuple[Histories, Split]:
    path = Path(options.interactions) if options.interactions else data.find_movielens()
    histories = data.read_histories(path)
    split = data.split(histories.sequences[:QUICK_USERS] if options.quick else histories.sequences, options.holdout)
    if not split.queries:
        raise DataError(f"{path}: no user has an item to predict and another one before it")
    return histories, split


def _describe(histories: Histories, split: Split) -> str:
    interactions = sum(map(len, histories.sequences))
    text = f"{len(histories.users)} users, {len(histories.items)} items, {interactions} interactions"
    if split.skipped:
        text += f"; {split.skipped} users without history, or whose held-out item is in it, are not ranked"
    return text


def _train(
    model: ClozeModel, split: Split, settings: TrainSettings, generator: torch.Generator, console: Console
) -> list[float]:
    columns = (
        TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=count_steps(split.histories, settings), loss=float("nan"))
        return train(model, split.histories, settings, generator, lambda loss: progress.update(task, advance=1, loss=loss))


def _evaluate(model: ClozeModel, split: Split, holdout: str, console: Console) -> None:
    ours = evaluate.model_ranks(model, split)
    popularity = evaluate.popularity_ranks(split, model.settings.items)
    lengths = torch.tensor([len(split.histories[index]) for index, _ in split.queries])
    report.print_quality(console, ours, popularity, HELD_OUT[holdout])
    report.print_lengths(console, lengths, ours, popularity, model.settings.block_size)


def _draw(model: ClozeModel, split: Split, losses: list[float], out: Path, console: Console) -> None:
    """The attention of the first user with four blocks or more of history (or the longest), and the loss."""
    settings = model.settings
    histories = [split.histories[index] for index, _ in split.queries]
    enough = min(4 * settings.block_size, max(map(len, histories)))
    history = next(history for history in histories if len(history) >= enough)
    sequence = query(history, settings.mask_token, settings.block_size)
    batch = collate([sequence], settings.block_size, set(settings.shifts), model.item_bias.device)
    pictures.draw_attention(model, batch, out / "attention.png")
    pictures.draw_loss(losses, settings.items, out / "loss.png")
    console.print(f"wrote {out / 'attention.png'} and {out / 'loss.png'}", soft_wrap=True)


@contextlib.contextmanager
def _torch_state(options: argparse.Namespace, device: torch.device) -> Iterator[None]:
    """The seed, the CPU threads and, for the Triton kernels, TF32 inside; all as they were afterwards."""
    matmul = torch.backends.cuda.matmul
    threads, precision = torch.get_num_threads(), matmul.fp32_precision
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(options.seed)
        torch.set_num_threads(options.threads)
        matmul.fp32_precision = "tf32"
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            matmul.fp32_precision = precision
