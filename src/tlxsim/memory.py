"""Shared memory and tensor memory: bytes, views of them, and who accessed what, in which order.

A storage is one allocation; aliases share it, so that a race through an alias is seen like any other. Fresh memory is
poisoned with 0xFF bytes, NaN in every float type. Accesses are kept as bit masks of 4-byte granules. Two accesses race when
they overlap, one writes, and neither is ordered before the other by the clocks.

Tensor memory is 128 lanes of 32-bit columns: a row of a view is a lane, its elements lie packed in columns.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from .clocks import Clock

GRANULE = 4  # bytes; neighbours inside one are taken for one place
LANES = 128


@dataclasses.dataclass(slots=True, eq=False)
class Record:
    """An access that later ones are checked against."""

    mask: int
    write: bool
    agent: int
    epoch: int
    proxy: str  # "generic" or "async"
    actor: str
    owner: int  # the agent of the task that issued it
    location: Any
    what: str


class Storage:
    """One allocation."""

    def __init__(self, name: str, space: str, nbytes: int, pitch: int = 0):
        self.name, self.space, self.nbytes, self.pitch = name, space, nbytes, pitch
        self.data = np.full(nbytes, 0xFF, np.uint8)
        self.written = 0
        self.records: list[Record] = []
        self.barriers: dict[int, Any] = {}
        self.masks: dict[tuple, int] = {}


class View:
    """A shaped window of a storage, as a memdesc names it.

    `outside` is set of a view that an index has taken out of its ring: (what is wrong, its line). To compute such an address
    is no fault, and compilers do; to use it is one.
    """

    __slots__ = ("_array", "_mask", "dtype", "name", "offset", "outside", "shape", "storage", "strides")

    def __init__(self, storage: Storage, offset: int, shape: tuple, strides: tuple, dtype: np.dtype, name: str):
        self.storage, self.offset, self.shape, self.strides = storage, offset, tuple(shape), tuple(strides)
        self.dtype, self.name = dtype, name
        self._array: np.ndarray | None = None
        self._mask: int | None = None
        self.outside: tuple[str, Any] | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def array(self) -> np.ndarray:
        """The bytes as an array; writing to it writes the memory."""
        if self._array is None:
            self._array = np.ndarray(self.shape, self.dtype, self.storage.data.data, self.offset, self.strides)
        return self._array

    @property
    def mask(self) -> int:
        """Its granules as bits."""
        if self._mask is None:
            key = (self.offset, self.shape, self.strides, self.dtype.itemsize)
            known = self.storage.masks.get(key)
            if known is None:
                known = self.storage.masks[key] = self._granules()
            self._mask = known
        return self._mask

    def fits(self) -> bool:
        """Whether all of it lies inside the storage."""
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides)) + self.dtype.itemsize
        return self.offset >= 0 and (0 in self.shape or self.offset + last <= self.storage.nbytes)

    def index(self, place: int) -> View:
        """The place-th of a ring's buffers."""
        return self._derived(
            self.offset + place * self.strides[0], self.shape[1:], self.strides[1:], f"{self.name}[{place}]"
        )

    def slice(self, starts: tuple, shape: tuple) -> View:
        """The box of a shape from `starts` on."""
        offset = self.offset + sum(start * stride for start, stride in zip(starts, self.strides))
        box = ",".join(f"{a}:{a + n}" for a, n in zip(starts, shape))
        return self._derived(offset, shape, self.strides, f"{self.name}[{box}]")

    def permuted(self, order: tuple) -> View:
        shape, strides = (tuple(x[i] for i in order) for x in (self.shape, self.strides))
        return self._derived(self.offset, shape, strides, f"{self.name}.T")

    def padded(self, rank: int) -> View:
        """With leading dimensions of 1 up to a rank."""
        extra = rank - len(self.shape)
        return self._derived(self.offset, (1,) * extra + self.shape, (0,) * extra + self.strides, self.name)

    def _derived(self, offset: int, shape: tuple, strides: tuple, name: str, dtype: np.dtype | None = None) -> View:
        view = View(self.storage, offset, shape, strides, dtype or self.dtype, name)
        view.outside = self.outside
        return view

    def poison(self) -> None:
        """Fill with NaN, or with ones in every bit of an integer."""
        self.array.view()[...] = np.full(self.dtype.itemsize, 0xFF, np.uint8).view(self.dtype)[0]

    def _granules(self) -> int:
        first = np.full((), self.offset, np.int64)
        for n, stride in zip(self.shape, self.strides):
            first = first[..., None] + np.arange(n, dtype=np.int64) * stride
        first = first.ravel()
        bits = np.zeros(-(-self.storage.nbytes // GRANULE), np.uint8)
        for byte in range(0, self.dtype.itemsize, GRANULE):
            bits[(first + byte) // GRANULE] = 1
        bits[(first + self.dtype.itemsize - 1) // GRANULE] = 1
        return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def allocate(name: str, space: str, shape: tuple, dtype: np.dtype) -> View:
    """A new storage and the view of all of it."""
    if space == "tmem":
        nbytes, strides, pitch = tensor_memory(shape, dtype)
        return View(Storage(name, space, nbytes, pitch), 0, shape, strides, dtype, name)
    nbytes = max(math.prod(shape) * dtype.itemsize, GRANULE)
    return View(Storage(name, space, nbytes), 0, shape, row_major(shape, dtype.itemsize), dtype, name)


def over(view: View, shape: tuple, dtype: np.dtype, name: str) -> View:
    """The same place seen with another shape and type."""
    tensor = view.storage.space == "tmem"
    strides = tensor_memory(shape, dtype, view.storage.pitch)[1] if tensor else row_major(shape, dtype.itemsize)
    return view._derived(view.offset, shape, strides, name, dtype)


def row_major(shape: tuple, itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def tensor_memory(shape: tuple, dtype: np.dtype, pitch: int = 0) -> tuple[int, tuple[int, ...], int]:
    """Bytes, strides and bytes a lane of a view `[buffers, rows, columns]` or `[rows, columns]` of tensor memory."""
    buffers, _, columns = (1,) * (3 - len(shape)) + tuple(shape)
    of_columns = columns * dtype.itemsize
    pitch = pitch or -(-buffers * of_columns // 4) * 4
    return LANES * pitch, (of_columns, pitch, dtype.itemsize)[3 - len(shape) :], pitch


@dataclasses.dataclass(slots=True, eq=False)
class Access:
    """Who accesses memory now, with the clock that the access happens at."""

    agent: int
    epoch: int
    clock: Clock
    fenced: Clock
    proxy: str
    actor: str
    owner: int
    location: Any


@dataclasses.dataclass(slots=True, eq=False)
class Conflict:
    """What an access found: `kind` is "race", "fence" or "unwritten"."""

    kind: str
    earlier: Record | None


def record(
    view: View, write: bool, access: Access, what: str, *, strict_fences: bool, reads_old: bool = True
) -> list[Conflict]:
    """Note an access and return its conflicts with earlier ones.

    A generic write is visible to the async proxy only after a proxy fence. Between accesses of one task the compiler adds
    the fence, so that only `strict_fences` (the IR after it has) checks those.
    """
    storage, mask, clock = view.storage, view.mask, access.clock
    found, kept = [], []
    if not write and reads_old and storage.written & mask != mask:
        found.append(Conflict("unwritten", None))
    for old in storage.records:
        ordered = clock.get(old.agent, 0) >= old.epoch
        if old.mask & mask and (write or old.write):
            if not ordered:
                found.append(Conflict("race", old))
            elif (
                old.write and old.proxy == "generic" and access.proxy == "async" and storage.space == "smem"
                and access.fenced.get(old.agent, 0) < old.epoch and (strict_fences or old.owner != access.owner)
            ):  # fmt: skip
                found.append(Conflict("fence", old))
        if ordered and not (old.mask & ~mask) and (write or not old.write):
            continue  # whoever is ordered after this access is ordered after the older one too
        kept.append(old)
    kept.append(
        Record(mask, write, access.agent, access.epoch, access.proxy, access.actor, access.owner, access.location, what)
    )
    storage.records = kept
    if write:
        storage.written |= mask
    return found
