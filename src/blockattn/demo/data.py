"""Interactions as ordered histories of item indices, and the split that holds the last item of every user out.

MovieLens-100K is found as data inside an installed `recbole` wheel, which is never imported. Any CSV or TSV with user,
item and timestamp columns serves too. The user's order is by timestamp, then by line in the file.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import importlib.util
import math
import re
from collections.abc import Iterator
from pathlib import Path

MOVIELENS = Path("dataset_example", "ml-100k", "ml-100k.inter")
COLUMNS = {
    "user": {"user", "userid", "uid"},
    "item": {"item", "itemid", "iid", "movie", "movieid", "product", "productid"},
    "timestamp": {"timestamp", "time", "ts", "unixtime", "unixtimestamp"},
}
HOLDOUTS = ("test", "validation")


class DataError(Exception):
    """The interactions cannot be found or read; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Histories:
    """The items of every user, oldest first, as indices into `items`; `users[i]` owns `sequences[i]`."""

    users: list[str]
    items: list[str]
    sequences: list[list[int]]


@dataclasses.dataclass(frozen=True)
class Split:
    """What may be seen and what is to be predicted.

    `histories` hold everything that training, popularity and the test's context may use. `queries` are
    `(index into histories, held-out item)`; a user with no history left, or whose held-out item is in it already, has
    none and is counted in `skipped`.
    """

    histories: list[list[int]]
    queries: list[tuple[int, int]]
    skipped: int


def find_movielens() -> Path:
    """The MovieLens-100K interactions that the `recbole` wheel carries.

    Raises:
        DataError: recbole is not installed, or its wheel lacks the file.
    """
    spec = importlib.util.find_spec("recbole")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / MOVIELENS).is_file():
            return Path(folder) / MOVIELENS
    raise DataError(
        "MovieLens-100K was not found: get it with `pip install --no-deps recbole` (its wheel carries the file), "
        "or give your own interactions with --interactions FILE"
    )


def read_histories(path: Path) -> Histories:
    """Read a CSV or TSV whose header names a user, an item and a timestamp column, in any order and among others.

    Raises:
        DataError: no such file, a missing column, a short line, a timestamp that is no number, or no interaction.
    """
    rows = sorted(_interactions(path), key=lambda row: row[2])  # Stable: lines of one time keep the file's order.
    if not rows:
        raise DataError(f"{path} holds no interactions")
    items: dict[str, int] = {}
    sequences: dict[str, list[int]] = {}
    for user, item, _ in rows:
        sequences.setdefault(user, []).append(items.setdefault(item, len(items)))
    return Histories(list(sequences), list(items), list(sequences.values()))


def split(sequences: list[list[int]], holdout: str = "test") -> Split:
    """Hold out the last item of every user ("test"), or drop it and hold out the one before ("validation")."""
    drop = HOLDOUTS.index(holdout)
    kept = [sequence[: len(sequence) - drop] for sequence in sequences]
    histories = [sequence[:-1] for sequence in kept]
    queries = [
        (index, sequence[-1])
        for index, (sequence, history) in enumerate(zip(kept, histories, strict=True))
        if history and sequence[-1] not in history
    ]
    return Split(histories, queries, len(sequences) - len(queries))


def _interactions(path: Path) -> Iterator[tuple[str, str, float]]:
    """(user, item, timestamp) of every line, in the file's order."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            delimiter = "\t" if "\t" in header else ","
            places = _column_places(path, next(csv.reader([header], delimiter=delimiter), []))
            for number, fields in enumerate(csv.reader(file, delimiter=delimiter), start=2):
                if fields:
                    yield _interaction(f"{path}, line {number}", fields, places)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _column_places(path: Path, names: list[str]) -> tuple[int, int, int]:
    """Where the user, item and timestamp columns stand; `userId`, `user_id` and `user_id:token` are all a user."""
    plain = [re.sub(r"[^a-z]", "", name.split(":")[0].lower()) for name in names]
    places = []
    for column, spellings in COLUMNS.items():
        found = [place for place, name in enumerate(plain) if name in spellings]
        if not found:
            raise DataError(f"{path} has no {column} column; its columns are: {', '.join(names) or 'none'}")
        places.append(found[0])
    return tuple(places)


def _interaction(where: str, fields: list[str], places: tuple[int, int, int]) -> tuple[str, str, float]:
    if len(fields) <= max(places):
        raise DataError(f"{where}: {len(fields)} fields, but the header's columns need {max(places) + 1}")
    user, item, timestamp = (fields[place].strip() for place in places)
    with contextlib.suppress(ValueError):
        if not math.isnan(time := float(timestamp)):
            return user, item, time
    raise DataError(f"{where}: the timestamp {timestamp!r} is not a number")
