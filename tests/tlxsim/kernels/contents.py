"""What memory holds and where it ends: bounds, masks, memory that was never written, aliases, writes of several programs."""

# ruff: noqa: SIM108  a switch is an if that the compiler decides
from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from .hazard import (
    BLACKWELL,
    HOPPER,
    TILE,
    Hazard,
    Launch,
    by_tiles,
    copy_by_pointers,
    copy_to_pointers,
    pointers,
    random,
    unwritten,
)  # fmt: skip

LENGTH = 100
BLOCK = 128


@triton.jit
def masks(x_ptr, out_ptr, LENGTH: tl.constexpr, LOAD_MASK: tl.constexpr, STORE_MASK: tl.constexpr, START: tl.constexpr):
    """A block of 128 elements of tensors that have 100, from START on."""
    i = START + tl.arange(0, 128)
    inside = (i >= 0) & (i < LENGTH)
    if LOAD_MASK:
        x = tl.load(x_ptr + i, mask=inside, other=0.0)
    else:
        x = tl.load(x_ptr + i)
    if STORE_MASK:
        tl.store(out_ptr + i, x, mask=inside)
    else:
        tl.store(out_ptr + i, x)


@triton.jit
def ring_index(x_ptr, out_ptr, NB: tl.constexpr, INDEX: tl.constexpr, OF_BARRIER: tl.constexpr):
    """A buffer, or a barrier, of a ring by an index that may lie outside."""
    ring = tlx.local_alloc((64, 64), tl.float32, NB)
    bars = tlx.alloc_barriers(NB, arrive_count=1)
    one = tl.program_id(0) + 1
    place = one * INDEX
    if OF_BARRIER:
        tlx.barrier_arrive(bars[place])
        tlx.barrier_wait(bars[place], 0)
        tlx.local_store(ring[0], tl.load(pointers(x_ptr, 0)))
        tl.store(pointers(out_ptr, 0), tlx.local_load(ring[0]))
    else:
        tlx.local_store(ring[place], tl.load(pointers(x_ptr, 0)))
        tl.store(pointers(out_ptr, 0), tlx.local_load(ring[place]))


@triton.jit
def ring_predicate(x_desc, out_ptr, NB: tl.constexpr, TURNS: tl.constexpr, GUARDED: tl.constexpr):
    """A loop of TURNS over NB buffers without a ring: an index past the end is no fault where a predicate switches its use
    off."""
    buffers = tlx.local_alloc((64, 64), tl.bfloat16, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    for i in range(TURNS):
        there = (i < NB) | (not GUARDED)
        tlx.barrier_expect_bytes(full[i], 64 * 64 * 2, there)
        tlx.async_descriptor_load(x_desc, buffers[i], [i * 64, 0], full[i], there)
        tlx.barrier_wait(full[i], 0, there)
        if there:
            tl.store(pointers(out_ptr, i), tlx.local_load(buffers[i]))


@triton.jit
def tma_edges(x_desc, out_desc, ROW: tl.constexpr, COLUMN: tl.constexpr, BACK: tl.constexpr):
    """Tiles that reach past the tensor are filled with zeros and cut off; a store, back to the same place or to the start of
    the tensor, may not begin before it."""
    buffer = tlx.local_alloc((64, 64), tl.bfloat16, 1)
    full = tlx.alloc_barriers(1, arrive_count=1)
    tlx.barrier_expect_bytes(full[0], 64 * 64 * 2)
    tlx.async_descriptor_load(x_desc, buffer[0], [ROW, COLUMN], full[0])
    tlx.barrier_wait(full[0], 0)
    tlx.async_descriptor_store(out_desc, buffer[0], [ROW if BACK else 0, COLUMN if BACK else 0])
    tlx.async_descriptor_store_wait(0)


@triton.jit
def written_first(x_ptr, out_ptr, LEFT: tl.constexpr, RIGHT: tl.constexpr, READ: tl.constexpr):
    """The halves of a buffer that are written, and how much of it is read: the left half (0), the right (1), all (2)."""
    buffer = tlx.local_alloc((64, 64), tl.float32, 1)
    half = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 32)[None, :]
    left = tlx.local_slice(buffer[0], [0, 0], [64, 32])
    right = tlx.local_slice(buffer[0], [0, 32], [64, 32])
    if LEFT:
        tlx.local_store(left, tl.load(x_ptr + half))
    if RIGHT:
        tlx.local_store(right, tl.load(x_ptr + half + 32))
    if READ == 0:
        tl.store(out_ptr + half, tlx.local_load(left))
    elif READ == 1:
        tl.store(out_ptr + half + 32, tlx.local_load(right))
    else:
        tl.store(pointers(out_ptr, 0), tlx.local_load(buffer[0]))


@triton.jit
def tmem_columns(x_ptr, out_ptr, OFFSET: tl.constexpr, WRITES: tl.constexpr):
    """32 columns of a tensor memory tile of 64, some of which are written before."""
    acc = tlx.local_alloc((128, 64), tl.float32, 1, tlx.storage_kind.tmem)
    x = tl.load(pointers(x_ptr, 0, 128, 32))
    if WRITES:
        tlx.local_store(tlx.subslice(acc[0], 0, 32), x)
    y = tlx.local_load(tlx.subslice(acc[0], OFFSET, 32))
    tl.store(pointers(out_ptr, 0, 128, 32), y)


@triton.jit
def aliases(x_ptr, out_ptr, SHARED: tl.constexpr, ORDERED: tl.constexpr, RETURNS: tl.constexpr):
    """Two tasks, two buffers, in the same storage or not; ORDERED: the second writes after the first has read."""
    first = tlx.local_alloc((64, 64), tl.float32, 1)
    if SHARED:
        second = tlx.local_alloc((64, 64), tl.float32, 1, reuse=first)
    else:
        second = tlx.local_alloc((64, 64), tl.float32, 1)
    read = tlx.alloc_barriers(1, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tlx.local_store(first[0], tl.load(pointers(x_ptr, 0)))
            tl.store(pointers(out_ptr, 0), tlx.local_load(first[0]))
            if RETURNS:
                tlx.barrier_arrive(read[0])
        with tlx.async_task(num_warps=4):
            if ORDERED:
                tlx.barrier_wait(read[0], 0)
            tlx.local_store(second[0], tl.load(pointers(x_ptr, 1)))
            tl.store(pointers(out_ptr, 1), tlx.local_load(second[0]))


@triton.jit
def conflicts(x_ptr, out_ptr, STRIDE: tl.constexpr, ATOMIC: tl.constexpr):
    """Two programs write 64 elements each, STRIDE apart."""
    i = tl.program_id(0) * STRIDE + tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    if ATOMIC:
        tl.atomic_max(out_ptr + i, x)
    else:
        tl.store(out_ptr + i, x)


@triton.jit
def tma_conflicts(x_desc, out_desc, STRIDE: tl.constexpr):
    """The same with tiles that TMA stores."""
    buffer = tlx.local_alloc((64, 64), tl.bfloat16, 1)
    full = tlx.alloc_barriers(1, arrive_count=1)
    row = tl.program_id(0) * STRIDE
    tlx.barrier_expect_bytes(full[0], 64 * 64 * 2)
    tlx.async_descriptor_load(x_desc, buffer[0], [row, 0], full[0])
    tlx.barrier_wait(full[0], 0)
    tlx.async_descriptor_store(out_desc, buffer[0], [row, 0])
    tlx.async_descriptor_store_wait(0)


@triton.jit
def alignment(x_ptr, out_ptr, OFFSET: tl.constexpr, STRIDE: tl.constexpr):
    """A descriptor made on the device, OFFSET elements into the tensor, with rows STRIDE apart."""
    desc = tl.make_tensor_descriptor(x_ptr + OFFSET, [64, 64], [STRIDE, 1], [64, 64])
    buffer = tlx.local_alloc((64, 64), tl.bfloat16, 1)
    full = tlx.alloc_barriers(1, arrive_count=1)
    tlx.barrier_expect_bytes(full[0], 64 * 64 * 2)
    tlx.async_descriptor_load(desc, buffer[0], [0, 0], full[0])
    tlx.barrier_wait(full[0], 0)
    tl.store(pointers(out_ptr, 0), tlx.local_load(buffer[0]))


def _vectors(device: str, switches: dict) -> Launch:
    x = random(LENGTH, device=device, dtype=torch.float32)
    out = unwritten(LENGTH, device=device, dtype=torch.float32)
    expected = out.clone()
    low = max(0, switches["START"])
    expected[low : max(low, switches["START"] + BLOCK)] = x[low : max(low, switches["START"] + BLOCK)]
    return Launch((x, out), out.nan_to_num_(-7), expected.nan_to_num(-7))


def _edges(device: str, switches: dict) -> Launch:
    x = random(96, 96, device=device)
    out = torch.zeros_like(x)
    expected = out.clone()
    low = [max(0, switches["ROW"]), max(0, switches["COLUMN"])]
    high = [max(low[0], switches["ROW"] + TILE), max(low[1], switches["COLUMN"] + TILE)]
    box = slice(low[0], high[0]), slice(low[1], high[1])
    there = [0, 0] if switches["BACK"] else [switches["ROW"], switches["COLUMN"]]
    part = x[box]
    row, column = low[0] - there[0], low[1] - there[1]
    expected[row : row + part.shape[0], column : column + part.shape[1]] = part
    return Launch((by_tiles(x), by_tiles(out)), out, expected)


def _halves(device: str, switches: dict) -> Launch:
    x = random(TILE, TILE, device=device, dtype=torch.float32)
    out = torch.zeros_like(x)
    expected = out.clone()
    columns = (slice(0, 32), slice(32, 64), slice(0, 64))[switches["READ"]]
    expected[:, columns] = x[:, columns]
    return Launch((x, out), out, expected)


def _columns(device: str, switches: dict) -> Launch:
    x = random(128, 32, device=device, dtype=torch.float32)
    out = unwritten(128, 32, device=device, dtype=torch.float32)
    return Launch((x, out), out, x)


def _overlapping(device: str, switches: dict) -> Launch:
    x = random(64 + switches["STRIDE"], device=device, dtype=torch.float32)
    out = torch.full_like(x, -100.0)
    return Launch((x, out), out, x)


def _overlapping_tiles(device: str, switches: dict) -> Launch:
    x = random(64 + switches["STRIDE"], TILE, device=device)
    out = unwritten(*x.shape, device=device)
    return Launch((by_tiles(x), by_tiles(out)), out, x)


def _strided(device: str, switches: dict) -> Launch:
    x = random(64 * switches["STRIDE"] + switches["OFFSET"], device=device)
    out = unwritten(TILE, TILE, device=device)
    return Launch((x, out), out, x.as_strided((TILE, TILE), (switches["STRIDE"], 1), switches["OFFSET"]))


_both = (False, True)
HAZARDS = (
    Hazard(masks, _vectors, dict(LOAD_MASK=_both, STORE_MASK=_both, START=(-28, -1, 0)), constants=dict(LENGTH=LENGTH),
           archs=(HOPPER,)),
    Hazard(ring_index, copy_by_pointers(1), dict(INDEX=(-1, 0, 1, 2), OF_BARRIER=_both), constants=dict(NB=2),
           archs=(HOPPER,)),
    Hazard(ring_predicate, copy_to_pointers(2), dict(TURNS=(2, 3), GUARDED=_both), constants=dict(NB=2), archs=(HOPPER,)),
    Hazard(tma_edges, _edges, dict(ROW=(-8, 0, 32, 64, 200), COLUMN=(-8, 0, 64), BACK=_both), archs=(HOPPER,)),
    Hazard(written_first, _halves, dict(LEFT=_both, RIGHT=_both, READ=(0, 1, 2)), archs=(HOPPER,)),
    Hazard(tmem_columns, _columns, dict(OFFSET=(0, 32), WRITES=_both), archs=(BLACKWELL,)),
    Hazard(aliases, copy_by_pointers(2), dict(SHARED=_both, ORDERED=_both, RETURNS=_both)),
    Hazard(conflicts, _overlapping, dict(STRIDE=(0, 32, 64), ATOMIC=_both), grid=(2,), archs=(HOPPER,)),
    Hazard(tma_conflicts, _overlapping_tiles, dict(STRIDE=(0, 32, 64)), grid=(2,), archs=(HOPPER,)),
    Hazard(alignment, _strided, dict(OFFSET=(0, 4, 8), STRIDE=(64, 68, 72)), archs=(HOPPER,), runs_on_gpu=False),
)  # fmt: skip
