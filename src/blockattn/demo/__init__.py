"""`blockattn demo`: train a small cloze recommender on MovieLens-100K with block attention, on a CPU or a GPU.

It prints HR@10 and NDCG@10 beside popularity's and what the attention costs, and draws one user's attention. It needs the
extra `demo`, which is imported by `run` alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys

from blockattn.tiles import BLOCK_SIZES

EXTRA = ("rich", "matplotlib")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demo's options to a parser of the command line."""
    add = parser.add_argument
    add("--interactions", metavar="FILE", help="CSV or TSV with user, item and timestamp columns (MovieLens-100K)")
    add("--out", metavar="DIR", default="blockattn-demo", help="folder for the pictures (%(default)s)")
    add("--epochs", type=_positive, default=30, help="passes over all users (%(default)s)")
    add("--block-size", type=int, choices=BLOCK_SIZES, default=64, help="rows of a block (%(default)s)")
    add("--seed", type=int, default=0, help="the same seed on a CPU gives the same result (%(default)s)")
    add(
        "--threads", type=_positive, default=1,
        help="CPU threads (%(default)s: more gain little in a model of this size, and lose much on a busy machine)",
    )  # fmt: skip
    add("--device", choices=("cpu", "cuda"), help="cuda where there is a GPU, else cpu")
    add(
        "--holdout", choices=("test", "validation"), default="test",
        help="predict each user's last item, or for tuning the one before it (%(default)s)",
    )  # fmt: skip
    add("--quick", action="store_true", help="a few seconds on a few users; the figures mean nothing")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; the exit status, 2 with a message on stderr when something it needs is missing."""
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        return _refuse(f"{' and '.join(missing)} not installed: pip install 'blockattn[demo]'")
    import torch
    from rich.console import Console

    from . import experiment
    from .data import DataError

    if arguments.device == "cuda" and not torch.cuda.is_available():
        return _refuse("--device cuda, but torch finds no GPU")
    try:
        experiment.run(arguments, Console())
    except (DataError, OSError) as error:
        return _refuse(str(error))
    return 0


def _refuse(message: str) -> int:
    print(f"blockattn demo: {message}", file=sys.stderr)
    return 2


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value
