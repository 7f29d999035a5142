"""TMA descriptors: a tensor in global memory, of which a copy moves one block at given coordinates.

A block may lie partly or wholly outside of the tensor, before it too: a read fills what is outside, a write leaves it. What
TMA asks of addresses and strides is checked when a descriptor is made.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .findings import Code, Finding, Unsupported
from .global_memory import GlobalMemory, numpy_dtype
from .updates import combine

ALIGNMENT = 16  # bytes, of base address, strides and a block's rows
MOST_DIMENSIONS = 5


@dataclasses.dataclass(slots=True, eq=False)
class Descriptor:
    """A tensor as TMA sees it.

    Args:
        base: byte address of its first element.
        shape, strides: in elements.
        block: the shape that a copy moves.
        nan_fill: whether a read gets NaN outside of the tensor, and not 0.
        steps: strides in bytes; fill: that value.
    """

    name: str
    memory: GlobalMemory
    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    dtype: np.dtype
    unsigned: bool = False
    nan_fill: bool = False
    steps: tuple[int, ...] = dataclasses.field(init=False)
    fill: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.steps = tuple(stride * self.dtype.itemsize for stride in self.strides)
        self.fill = self.dtype.type(math.nan if self.nan_fill else 0)

    @classmethod
    def from_host(cls, name: str, value: Any, launch: Any) -> Descriptor:
        """Of a `triton.tools.tensor_descriptor.TensorDescriptor`, the kernel's argument `name`."""
        if getattr(value, "round_f32_to_tf32", False):
            raise Unsupported(f"{name}: a descriptor that rounds fp32 to tf32 is not modelled")
        dtype, unsigned = numpy_dtype(value.base)
        sizes = (tuple(int(n) for n in x) for x in (value.shape, value.strides, value.block_shape))
        padding = getattr(value, "padding", "zero")
        found = cls(name, launch.memory, value.base.data_ptr(), *sizes, dtype, unsigned, padding == "nan")
        for message in found.faults():
            launch.add(Finding(Code.ALIGNMENT, message, (), launch.kernel, (0, 0, 0), launch.schedule))
        return found

    def faults(self) -> list[str]:
        """What TMA would refuse."""
        found, size = [], self.dtype.itemsize
        if not 1 <= len(self.shape) <= MOST_DIMENSIONS:
            found.append(f"the descriptor of {self.name} has {len(self.shape)} dimensions, TMA has 1 to {MOST_DIMENSIONS}")
        if self.base % ALIGNMENT:
            found.append(f"the base address of {self.name} is no multiple of {ALIGNMENT} bytes")
        for dimension, (n, step) in enumerate(zip(self.shape, self.steps)):
            last = dimension == len(self.shape) - 1
            if n < 1:
                found.append(f"dimension {dimension} of the descriptor of {self.name} has size {n}")
            if last and step != size:
                found.append(f"the last stride of {self.name} is {step // size}, TMA needs 1")
            elif not last and step % ALIGNMENT:
                found.append(f"stride {dimension} of {self.name} is {step} bytes, no multiple of {ALIGNMENT}")
        row = self.block[-1] * size
        if row % ALIGNMENT:
            found.append(f"a row of the block of {self.name} has {row} bytes, no multiple of {ALIGNMENT}")
        return found

    def read(self, at: Sequence[int], op: Any, task: Any) -> np.ndarray:
        """A copy of the block that begins at the coordinates `at`."""
        self._check_place(at, op, task, writes=False)
        here, there = self._clipped(at)
        if here is None:
            return np.full(self.block, self.fill, self.dtype)
        region = self._region()
        if region is not None:
            found = region.box(self.base, self.shape, self.steps, self.dtype)[here]
        else:
            found = self.memory.load(self._addresses(here), self.dtype, None, None, op, task)
        if found.shape == self.block:
            return found.copy()
        tile = np.full(self.block, self.fill, self.dtype)
        tile[there] = found
        return tile

    def write(self, at: Sequence[int], tile: np.ndarray, op: Any, task: Any, kind: str | None = None) -> None:
        """Put a block to the coordinates `at`, or update what is there by a reduction, which is atomic."""
        update = combine(kind, self.dtype, self.unsigned) if kind is not None else None
        if kind is not None and update is None:
            raise Unsupported(f"{op.name} at {op.loc}: the reduction {kind} of {self.dtype} is not modelled")
        self._check_place(at, op, task, writes=True)
        here, there = self._clipped(at)
        if here is None:
            return
        values = np.asarray(tile).reshape(self.block)[there]
        region = self._region()
        writers = None
        if region is not None:
            writers = region.box_writers(self.base, self.shape, self.steps, self.dtype.itemsize)
        if writers is None:
            self._write_each(self._addresses(here), values, update, op, task)
            return
        array = region.box(self.base, self.shape, self.steps, self.dtype)
        array[here] = values if update is None else update(array[here], values)
        address_of = lambda position: int(self._addresses(here)[position])  # noqa: E731
        writers[here] = self.memory.log.written(writers[here], address_of, op, task, kind is not None)

    def gather(self, rows: np.ndarray, column: int, op: Any, task: Any) -> np.ndarray:
        """The parts of rows from a column on, `[rows, block's columns]`."""
        addresses, inside = self._rows(rows, column)
        return self.memory.load(addresses, self.dtype, inside, self.fill, op, task)

    def scatter(self, rows: np.ndarray, column: int, tile: np.ndarray, op: Any, task: Any) -> None:
        """The opposite of `gather`."""
        addresses, inside = self._rows(rows, column)
        self.memory.store(addresses, tile, self.dtype, inside, op, task)

    def _check_place(self, at: Sequence[int], op: Any, task: Any, *, writes: bool) -> None:
        """Report coordinates at which the copy is an illegal instruction, which docs/tlxsim/model.md tells more of."""
        first = at[-1] * self.dtype.itemsize
        if first % ALIGNMENT:
            message = f"the last coordinate of {self.name} is {at[-1]}, {first} bytes, no multiple of {ALIGNMENT}"
            task.program.report(Code.ALIGNMENT, message, op.loc)
        if writes and min(at) < 0:
            message = f"a store to {self.name} begins at {list(at)}: a negative coordinate is an illegal instruction"
            task.program.report(Code.OUT_OF_BOUNDS, message, op.loc)

    def _clipped(self, at: Sequence[int]) -> tuple[tuple[slice, ...] | None, tuple[slice, ...]]:
        """The part of the tensor that the block covers, None if it is empty, and the place of that part in the block."""
        here, there = [], []
        for start, length, size in zip(at, self.block, self.shape):
            low, high = max(start, 0), min(start + length, size)
            if low >= high:
                return None, ()
            here.append(slice(low, high))
            there.append(slice(low - start, high - start))
        return tuple(here), tuple(there)

    def _region(self) -> Any:
        """The memory of all its elements; None if some lie outside of the tensor arguments."""
        last = sum((n - 1) * step for n, step in zip(self.shape, self.steps))
        if min(self.steps, default=0) < 0 or self.base % self.dtype.itemsize:
            return None
        return self.memory.within(self.base, self.base + last + self.dtype.itemsize)

    def _addresses(self, here: tuple[slice, ...]) -> np.ndarray:
        found = np.full((), self.base, np.int64)
        for part, step in zip(here, self.steps):
            found = found[..., None] + np.arange(part.start, part.stop, dtype=np.int64) * step
        return found

    def _rows(self, rows: np.ndarray, column: int) -> tuple[np.ndarray, np.ndarray]:
        columns = column + np.arange(self.block[-1], dtype=np.int64)
        rows = rows.astype(np.int64)[:, None]
        inside = (rows >= 0) & (rows < self.shape[0]) & (columns >= 0) & (columns < self.shape[1])
        return self.base + rows * self.steps[0] + columns * self.steps[1], inside

    def _write_each(self, addresses: np.ndarray, values: np.ndarray, update: Callable | None, op: Any, task: Any) -> None:
        if update is None:
            self.memory.store(addresses, values, self.dtype, None, op, task)
        else:
            self.memory.atomic(addresses, update, (values,), self.dtype, None, op, task)
