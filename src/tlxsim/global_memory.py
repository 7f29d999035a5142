"""Global memory as the programs of one launch see it: the launch's tensors, their bounds, and who wrote each element.

Addresses are those of the tensors themselves, so that a kernel works on the caller's memory and no copy is made. A program
may touch the bytes that some tensor argument's elements span, and nothing else: what lies outside is reported, loads poison
and is not stored. Who wrote each element is kept for `write_log`.
"""

from __future__ import annotations

import bisect
import ctypes
import dataclasses
import gc
from typing import Any

import ml_dtypes
import numpy as np

from .findings import Code
from .write_log import WriteLog

MOST_ADOPTED = 1024  # addresses of one operation that are looked up among the live tensors
ALIGNED = 16  # bytes: a region's arrays begin at a multiple of the widest access
_DTYPES = {
    "bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu, "float16": np.float16, "float32": np.float32, "float64": np.float64,
    "bool": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "uint8": np.int8,
    "uint16": np.int16, "uint32": np.int32, "uint64": np.int64,
}  # fmt: skip


def numpy_dtype(tensor: Any) -> tuple[np.dtype, bool]:
    """How the IR holds a tensor's elements, and whether they are unsigned; ValueError if it cannot."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"tensors of {tensor.dtype} are not modelled")
    return np.dtype(_DTYPES[name]), name.startswith("uint")


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """The bytes [low, high) that a tensor argument spans."""

    name: str
    low: int
    high: int
    itemsize: int


class Region:
    """Bytes [low, high) of one argument, or of several that overlap, and the writer of each granule of them."""

    def __init__(self, low: int, high: int, granule: int):
        self.low, self.high, self.granule = low, high, granule
        self.base = low - low % ALIGNED
        self._bytes = (ctypes.c_ubyte * (high - self.base)).from_address(self.base)
        self._elements: dict[np.dtype, np.ndarray] = {}
        self._writers: np.ndarray | None = None

    def elements(self, dtype: np.dtype) -> np.ndarray:
        """All of it as a flat array, from `base` on; what lies before `low` belongs to somebody else."""
        found = self._elements.get(dtype)
        if found is None:
            count = (self.high - self.base) // dtype.itemsize
            found = self._elements[dtype] = np.ndarray((count,), dtype, self._bytes)
        return found

    def writers(self, itemsize: int) -> np.ndarray:
        """Numbers of writers, 0 for none, in granules no larger than an element."""
        if self._writers is None:
            self.granule = min(self.granule, itemsize)
            self._writers = np.zeros(-(-(self.high - self.base) // self.granule), np.int32)
        elif itemsize < self.granule:
            self._writers = self._writers.repeat(self.granule // itemsize)
            self.granule = itemsize
        return self._writers

    def take_over(self, other: Region) -> None:
        """The writers of a region that this one holds."""
        if other._writers is not None:
            mine, theirs = self.writers(self.granule), other.writers(self.granule)
            first = (other.base - self.base) // self.granule
            mine[first : first + theirs.size] = np.maximum(theirs, mine[first : first + theirs.size])

    def box(self, base: int, shape: tuple, strides: tuple, dtype: np.dtype) -> np.ndarray:
        """A strided array over it."""
        return np.ndarray(shape, dtype, self._bytes, base - self.base, strides)

    def box_writers(self, base: int, shape: tuple, strides: tuple, itemsize: int) -> np.ndarray | None:
        """The writers of such an array's elements; None if an element is of several granules."""
        writers = self.writers(itemsize)
        if self.granule != itemsize or any(step % itemsize for step in strides):
            return None
        each = writers.itemsize
        steps = tuple(step // itemsize * each for step in strides)
        return np.ndarray(shape, writers.dtype, writers, (base - self.base) // itemsize * each, steps)


class GlobalMemory:
    """The tensors of one launch under one schedule, shared by its programs."""

    def __init__(self) -> None:
        self.arguments: list[Argument] = []
        self.tensor_maps: dict[int, dict[str, Any]] = {}  # what a kernel has put together, by its address
        self._regions: list[Region] = []
        self._lows: list[int] = []
        self._kept: list[Any] = []
        self.log = WriteLog(self.nearest)

    def add(self, name: str, tensor: Any) -> None:
        """Let programs access a tensor's elements under its argument's name."""
        if tensor.device.type != "cpu":
            raise ValueError(f"{name} must be on the CPU to be simulated, it is on {tensor.device}")
        self._kept.append(tensor)
        self._insert(Argument(name, *_span(tensor), tensor.element_size()))

    def scratch(self, nbytes: int, name: str) -> int:
        """The address of fresh memory of the launch's own."""
        array = np.full(nbytes + 128, 0xFF, np.uint8)
        low = -(-array.ctypes.data // 128) * 128
        self._kept.append(array)
        self._insert(Argument(name, low, low + nbytes, 1))
        return low

    def adopt(self, addresses: Any) -> None:
        """Let programs access the tensors at addresses that a kernel has made from integers, as tables of pointers hold.

        They are found among all live tensors; an address that is in none stays out of bounds.
        """
        wanted = np.unique(addresses)
        unknown = [int(address) for address in wanted[:MOST_ADOPTED] if self._region(int(address)) is None]
        tensors = _live_tensors() if unknown else []
        for address in unknown:
            found = [x for x in tensors if _span(x)[0] <= address < _span(x)[1]]
            if found and self._region(address) is None:
                tensor = min(found, key=lambda x: (x.data_ptr() != address, -x.numel()))
                self.add(f"a tensor of shape {tuple(tensor.shape)} that a pointer in memory leads to", tensor)

    def _insert(self, argument: Argument) -> None:
        self.arguments.append(argument)
        low, high, granule = argument.low, argument.high, argument.itemsize
        if low == high:
            return
        merged = [region for region in self._regions if region.low < high and low < region.high]
        low = min([low, *(region.low for region in merged)])
        high = max([high, *(region.high for region in merged)])
        made = Region(low, high, min([granule, *(region.granule for region in merged)]))
        for region in merged:
            made.take_over(region)
        apart = [region for region in self._regions if region not in merged]
        self._regions = sorted([*apart, made], key=lambda region: region.low)
        self._lows = [region.low for region in self._regions]

    # -- accesses ----------------------------------------------------------------------------------------------------

    def load(self, addresses: Any, dtype: np.dtype, mask: Any, other: Any, op: Any, task: Any) -> Any:
        """Elements at byte addresses.

        Args:
            addresses: an int64 array, or one address.
            mask: lanes to load, or None for all; `other` is what the rest gets, 0 if it is None, as the compiler does it.

        Returns:
            an array like addresses, or a scalar.
        """
        if not isinstance(addresses, np.ndarray):
            mask = None if mask is None else np.full((1,), mask)
            found = self.load(np.full((1,), addresses, np.int64), dtype, mask, other, op, task)[0]
            return found.item() if dtype.kind in "ib" else found
        if mask is None or mask.all():
            return self._read(addresses, dtype, op, task)
        if other is None:
            values = np.zeros(addresses.shape, dtype)
        else:
            values = np.empty(addresses.shape, dtype)
            values[...] = other
        if mask.any():
            values[mask] = self._read(addresses[mask], dtype, op, task)
        return values

    def store(self, addresses: Any, values: Any, dtype: np.dtype, mask: Any, op: Any, task: Any) -> None:
        """Put elements to byte addresses; arguments as those of `load`."""
        if not isinstance(addresses, np.ndarray):
            if mask is not None and not mask:
                return
            addresses, mask = np.full((1,), addresses, np.int64), None
        if mask is not None and not mask.all():
            values = np.broadcast_to(np.asarray(values, dtype), addresses.shape)[mask]
            addresses = addresses[mask]
            if not addresses.size:
                return
        for region, lanes, index in self._places(addresses, dtype, op, task):
            region.elements(dtype)[index] = values if lanes is None else np.broadcast_to(values, addresses.shape)[lanes]
            self._claim(region, index, dtype, op, task, atomic=False)

    def atomic(self, addresses: Any, update: Any, values: Any, dtype: np.dtype, mask: Any, op: Any, task: Any) -> Any:
        """Read, change and write, lane after lane where lanes share an address.

        Args:
            update: function (old elements, values of their lanes) -> new elements; values: a tuple of arrays or scalars.

        Returns:
            what was there before, like addresses; poison where it is masked off or out of bounds.
        """
        if not isinstance(addresses, np.ndarray):
            mask = None if mask is None else np.full((1,), mask)
            values = tuple(np.full((1,), value, dtype) for value in values)
            found = self.atomic(np.full((1,), addresses, np.int64), update, values, dtype, mask, op, task)[0]
            return found.item() if dtype.kind in "ib" else found
        old = np.full(addresses.shape, poison(dtype), dtype)
        chosen = np.ones(addresses.shape, bool) if mask is None else np.broadcast_to(mask, addresses.shape)
        active = addresses[chosen]
        if not active.size:
            return old
        values = [np.broadcast_to(np.asarray(value, dtype), addresses.shape)[chosen] for value in values]
        found = np.full(active.shape, poison(dtype), dtype)
        for region, lanes, index in self._places(active, dtype, op, task):
            elements = region.elements(dtype)
            mine = values if lanes is None else [value[lanes] for value in values]
            before = np.empty(index.shape, dtype)
            for turn in _turns(index):
                before[turn] = elements[index[turn]]
                elements[index[turn]] = update(before[turn], *[value[turn] for value in mine])
            found[... if lanes is None else lanes] = before
            self._claim(region, index, dtype, op, task, atomic=True)
        old[chosen] = found
        return old

    def _claim(self, region: Region, index: np.ndarray, dtype: np.dtype, op: Any, task: Any, *, atomic: bool) -> None:
        """Note that the program has written elements."""
        writers = region.writers(dtype.itemsize)
        granule = region.granule
        many = dtype.itemsize // granule
        if many > 1:
            index = index[..., None] * many + np.arange(many)
        address_of = lambda position: region.base + int(index[position]) * granule  # noqa: E731
        writers[index] = self.log.written(writers.take(index, mode="clip"), address_of, op, task, atomic)

    def within(self, low: int, high: int) -> Region | None:
        """The region that holds the bytes [low, high)."""
        region = self._region(low)
        return region if region is not None and high <= region.high else None

    def _region(self, address: int) -> Region | None:
        place = bisect.bisect_right(self._lows, address) - 1
        return self._regions[place] if place >= 0 and address < self._regions[place].high else None

    def _read(self, addresses: np.ndarray, dtype: np.dtype, op: Any, task: Any) -> np.ndarray:
        places = self._places(addresses, dtype, op, task)
        if len(places) == 1 and places[0][1] is None:
            region, _, index = places[0]
            return region.elements(dtype).take(index, mode="clip")
        values = np.full(addresses.shape, poison(dtype), dtype)
        for region, lanes, index in places:
            values[lanes] = region.elements(dtype)[index]
        return values

    def _places(self, addresses: np.ndarray, dtype: np.dtype, op: Any, task: Any) -> list[tuple]:
        """Where elements lie: (region, lanes or None for all, their indices into its elements); the rest is reported."""
        size = dtype.itemsize
        low, high = int(addresses.min()), int(addresses.max())
        region = self._region(low)
        if region is not None and high + size <= region.high:
            offset = addresses - region.base
            if size == 1 or not int(np.bitwise_or.reduce(offset, axis=None)) & (size - 1):
                return [(region, None, offset // size)]
        owners = np.searchsorted(self._lows, addresses, side="right") - 1
        highs = np.array([region.high for region in self._regions] + [0])  # of owner -1 the last
        inside, even = addresses + size <= highs[owners], addresses % size == 0
        if not inside.all():
            self._report_outside(addresses[~inside], addresses.size, size, op, task)
        if not even.all():
            name, offset, _ = self.nearest(int(addresses[~even][0]))
            message = f"{op.name} of {size} bytes at an address in {name} that is no multiple of {size}"
            task.program.report(Code.ALIGNMENT, message, op.loc, details=(f"the first is byte {offset} of {name}",))
        places = []
        for number in np.unique(owners[inside & even]):
            region, lanes = self._regions[number], inside & even & (owners == number)
            places.append((region, lanes, (addresses[lanes] - region.base) // size))
        return places

    def nearest(self, address: int) -> tuple[str, int, int]:
        """The argument nearest to an address, the address's offset in it, and its size; both in bytes."""
        if not self.arguments:
            return "no argument", address, 0
        near = min(self.arguments, key=lambda a: max(a.low - address, address - (a.high - 1), 0))
        return near.name, address - near.low, near.high - near.low

    def _report_outside(self, outside: np.ndarray, lanes: int, size: int, op: Any, task: Any) -> None:
        name, offset, nbytes = self.nearest(int(outside[0]))
        where = "before the start" if offset < 0 else "past the end"
        message = f"{op.name} of {size}-byte elements {where} of {name}"
        details = (
            f"the first is at byte {offset:,} of {name}, which has {nbytes:,} bytes; {outside.size} of {lanes} lanes, "
            f"in program {task.program.pid}",
        )
        task.program.report(Code.OUT_OF_BOUNDS, message, op.loc, details=details)


def poison(dtype: np.dtype) -> Any:
    """What a load gets that may not be: ones in every bit, NaN in every float type."""
    return np.full(dtype.itemsize, 1 if dtype.kind == "b" else 0xFF, np.uint8).view(dtype)[0]


def _span(tensor: Any) -> tuple[int, int]:
    """The addresses from a tensor's first element to behind its last."""
    low = tensor.data_ptr()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    return low, low + (last + 1) * tensor.element_size() if tensor.numel() else low


def _live_tensors() -> list[Any]:
    """What torch holds on the CPU."""
    import torch

    found = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]
    found = [x for x in found if x.layout is torch.strided and x.device.type == "cpu" and x.numel()]
    return [x for x in found if type(x) in (torch.Tensor, torch.nn.Parameter) and x.data_ptr()]


def _turns(index: np.ndarray) -> list[Any]:
    """Lanes in groups without a repeated address; the n-th lane of an address is in the n-th group."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    if begins.size == index.size:
        return [slice(None)]
    counts = np.diff(np.concatenate([begins, [index.size]]))
    rank = np.arange(index.size) - begins.repeat(counts)
    by_rank = order[np.argsort(rank, kind="stable")]
    return np.split(by_rank, np.cumsum(np.bincount(rank))[:-1])
