"""What a run of the benchmark found: a row for each workload, provider and direction, and the machine; as JSON.

A later run is compared with an earlier one by shares of the limit, which hold across cards of a kind better than times do.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from typing import NamedTuple

SHORT_DIRECTIONS = {"forward": "fwd", "backward": "bwd", "both": "fwd+bwd"}
DIRECTIONS = tuple(SHORT_DIRECTIONS)
BASELINE, BASELINE_TITLE = "flash2", "FlashAttention 2"
# Speed-ups are over these providers.
BASELINES = {"attention": BASELINE, "rotary": "flash2-compiled", "layer": "flash2-compiled-layer"}
OURS = "blockattn-"


class Place(NamedTuple):
    """What rows of different providers share."""

    workload: str
    spec: str
    operation: str

    @property
    def title(self) -> str:
        return self.workload if self.operation == "attention" else f"{self.workload}, {self.operation}"


@dataclasses.dataclass(frozen=True)
class Row:
    """One provider on one workload in one direction.

    status: "timed"; "absent" (not on this machine or not for this workload), "wrong" (failed the gate) or "failed" (raised),
    with the reason. rows: of the batch that it computed. setup_ms: what it builds once a batch, apart from ms. tbs: of each
    tensor once, and share: of the limit; a layer, which multiplies by weights, has neither. speedup: rows a second over the
    baseline's. peak_bytes: most that a call allocates beyond what was there, a backward's inputs among it; kept_bytes: kept
    for the backward, inputs included.
    """

    workload: str
    spec: str
    operation: str
    provider: str
    direction: str
    status: str
    reason: str = ""
    rows: int | None = None
    ms: float | None = None
    ms_p20: float | None = None
    ms_p80: float | None = None
    samples: int | None = None
    tbs: float | None = None
    share: float | None = None
    speedup: float | None = None
    tflops: float | None = None
    peak_bytes: int | None = None
    kept_bytes: int | None = None
    setup_ms: float | None = None

    @property
    def ours(self) -> bool:
        return self.provider.startswith(OURS)

    @property
    def place(self) -> Place:
        return Place(self.workload, self.spec, self.operation)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run: the machine ("device" and versions), what each provider calls, and the rows.

    limit: TB/s of a "forward" and a "backward", whether they are "trusted", and "datasheet_tbs"; None without a GPU.
    """

    machine: dict[str, str]
    limit: dict | None
    providers: dict[str, str]
    rows: tuple[Row, ...]

    @property
    def where(self) -> str:
        """The device in words."""
        return self.machine["device"] if self.limit is None else f"one {self.machine['device']}"

    def by_place(self) -> list[tuple[Place, list[Row]]]:
        """The rows of each workload and operation, in the order of the run."""
        places: dict[Place, list[Row]] = {}
        for row in self.rows:
            places.setdefault(row.place, []).append(row)
        return list(places.items())

    def write(self, path: pathlib.Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: pathlib.Path) -> Run:
        """A run that `write` wrote; a ValueError when the file holds something else."""
        try:
            values = json.loads(path.read_text())
            run = cls(values["machine"], values["limit"], values["providers"], tuple(Row(**row) for row in values["rows"]))
            run._check()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} must be a JSON file that `blockattn bench --json` wrote ({error!r})") from error
        return run

    def _check(self) -> None:
        """Raise a ValueError or KeyError where the values are not what a run holds."""
        for texts in (self.machine, self.providers):
            if not all(isinstance(text, str) for text in texts.values()):
                raise ValueError("machine and providers must hold texts")
        _ = self.machine["device"]
        if self.limit is not None:
            numbers = [self.limit["forward"], self.limit["backward"]]
            if not all(_is_number(x) for x in numbers) or not isinstance(self.limit["trusted"], bool):
                raise ValueError("limit must hold two numbers and whether they are trusted")
        for row in self.rows:
            numbers = [getattr(row, field.name) for field in dataclasses.fields(row) if "float" in field.type]
            if row.direction not in DIRECTIONS or not all(x is None or _is_number(x) for x in numbers):
                raise ValueError(f"a row holds a wrong value: {row}")
            if row.status == "timed":
                lacks_tbs = row.tbs is None and row.operation != "layer"
                if not row.ms or not row.rows or lacks_tbs or row.tflops is None:
                    raise ValueError(f"a timed row lacks a value: {row}")


def with_speedups(rows: list[Row]) -> list[Row]:
    """The rows with their rows a second over the baseline's in the same workload and direction."""
    paces = {
        (row.place, row.direction): row.rows / row.ms for row in rows if row.provider == BASELINES[row.operation] and row.ms
    }

    def with_speedup(row: Row) -> Row:
        pace = paces.get((row.place, row.direction))
        return dataclasses.replace(row, speedup=row.rows / row.ms / pace) if pace and row.ms else row

    return [with_speedup(row) for row in rows]


def check_base(device: str, base: Run) -> None:
    """Raise a ValueError when no run on this device can be compared with the base."""
    if device != base.machine["device"]:
        raise ValueError(f"--base must be of the same device {device}, got {base.machine['device']}")
    _check_trusted("--base", base)
    if not _shares_of_ours(base):
        raise ValueError("--base must hold a share of ours, got none: there is nothing to compare with")


def _check_trusted(name: str, run: Run) -> None:
    if run.limit is not None and not run.limit["trusted"]:
        raise ValueError(f"shares cannot be compared: the streaming limit of {name} is not trusted")


def _shares_of_ours(run: Run) -> list[Row]:
    return [row for row in run.rows if row.ours and row.share]


def compared(run: Run, base: Run) -> list[tuple[Row, Row]]:
    """Rows of ours with a share in the base, and the same of this run; a ValueError when the runs cannot be compared."""
    check_base(run.machine["device"], base)
    _check_trusted("this run", run)
    now = {(row.place, row.direction, row.provider): row for row in run.rows}
    pairs = [(now.get((old.place, old.direction, old.provider)), old) for old in _shares_of_ours(base)]
    found = [(new, old) for new, old in pairs if new is not None]  # what was not asked for this time is left out
    if not found:
        raise ValueError("--base must hold a share of ours for a workload of this run, got none: nothing was compared")
    return found


def fallen(pairs: list[tuple[Row, Row]], tolerance: float) -> list[str]:
    """Rows of ours whose share of the limit fell by more than the tolerance, or that are not timed any more, a line each."""
    found = []
    for new, old in pairs:
        name = f"{old.workload} {old.provider} {old.direction}"
        if new.share is None:
            found.append(f"{name}: {new.status} ({new.reason}), was {old.share:.3f} of the limit")
        elif new.share < old.share - tolerance:
            found.append(f"{name}: {new.share:.3f} of the limit, was {old.share:.3f}")
    return found


def _is_number(x: object) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)
