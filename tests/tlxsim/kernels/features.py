"""The rest of TLX that a kernel may use, each with a switch that makes it wrong: predicates, aliases by specification,
reinterpreted buffers, reductions by TMA, loops without a known end, values that tasks capture, operands in registers and in
tensor memory, two specialisations in one kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from .handoff import phase_of
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


@triton.jit
def predicates(x_desc, out_ptr, N: tl.constexpr, NB: tl.constexpr, LAST_WAIT: tl.constexpr, LAST_LOAD: tl.constexpr):
    """A loop runs one turn longer than there are tiles; predicates switch the surplus turn off, or do not."""
    ring = tlx.local_alloc((64, 64), tl.bfloat16, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N + 1):
                there = i < N
                tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1, there)
                tlx.barrier_expect_bytes(full[i % NB], 64 * 64 * 2, there)
                tlx.async_descriptor_load(x_desc, ring[i % NB], [i * 64, 0], full[i % NB], there | LAST_LOAD)
        with tlx.async_task(num_warps=4):
            for i in range(N + 1):
                there = i < N
                tlx.barrier_wait(full[i % NB], phase_of(i, NB), there | LAST_WAIT)
                if there:
                    tl.store(pointers(out_ptr, i), tlx.local_load(ring[i % NB]))
                    tlx.barrier_arrive(empty[i % NB])


@triton.jit
def alias_specs(x_ptr, out_ptr, ORDERED: tl.constexpr):
    """Two tasks write one buffer each, which a specification puts in the same place."""
    spec = tlx.storage_alias_spec(storage=tlx.storage_kind.smem)
    first = tlx.local_alloc((64, 64), tl.float32, 1, reuse=spec)
    second = tlx.local_alloc((64, 64), tl.int32, 1, reuse=spec)
    spec.set_buffer_overlap(tlx.reuse_group(first, second, group_type=tlx.reuse_group_type.shared))
    read = tlx.alloc_barriers(1, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tlx.local_store(first[0], tl.load(pointers(x_ptr, 0)))
            tl.store(pointers(out_ptr, 0), tlx.local_load(first[0]))
            tlx.barrier_arrive(read[0])
        with tlx.async_task(num_warps=4):
            if ORDERED:
                tlx.barrier_wait(read[0], 0)
            tlx.local_store(second[0], tl.load(pointers(x_ptr, 1)).to(tl.int32, bitcast=True))
            tl.store(pointers(out_ptr, 1), tlx.local_load(second[0]).to(tl.float32, bitcast=True))


@triton.jit
def reinterprets(x_ptr, out_ptr, ORDERED: tl.constexpr):
    """A task writes floats, another reads the same bytes as integers."""
    buffer = tlx.local_alloc((64, 64), tl.float32, 1)
    bits = tlx.local_reinterpret(buffer[0], tl.int32)
    full = tlx.alloc_barriers(1, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tlx.local_store(buffer[0], tl.load(pointers(x_ptr, 0)))
            tlx.barrier_arrive(full[0])
        with tlx.async_task(num_warps=4):
            if ORDERED:
                tlx.barrier_wait(full[0], 0)
            tl.store(pointers(out_ptr, 0), tlx.local_load(bits).to(tl.float32, bitcast=True))


@triton.jit
def reductions(x_desc, out_desc, ADDS: tl.constexpr):
    """Two programs store into the same tile: a conflict, unless TMA adds."""
    buffer = tlx.local_alloc((64, 64), tl.bfloat16, 1)
    full = tlx.alloc_barriers(1, arrive_count=1)
    tlx.barrier_expect_bytes(full[0], 64 * 64 * 2)
    tlx.async_descriptor_load(x_desc, buffer[0], [tl.program_id(0) * 64, 0], full[0])
    tlx.barrier_wait(full[0], 0)
    if ADDS:
        tlx.async_descriptor_store(out_desc, buffer[0], [0, 0], store_reduce="add")
    else:
        tlx.async_descriptor_store(out_desc, buffer[0], [0, 0])
    tlx.async_descriptor_store_wait(0)


@triton.jit
def while_rings(x_ptr, out_ptr, N, NB: tl.constexpr, LATE: tl.constexpr):
    """Both sides loop until the tiles run out, with slot and phase as variables; LATE flips the phase a turn too late."""
    ring = tlx.local_alloc((64, 64), tl.float32, NB)
    full = tlx.alloc_barriers(NB, arrive_count=1)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            i = 0
            slot = 0
            phase = 1
            while i < N:
                tlx.barrier_wait(empty[slot], phase)
                tlx.local_store(ring[slot], tl.load(pointers(x_ptr, i)))
                tlx.barrier_arrive(full[slot])
                slot += 1
                if slot == NB:
                    slot = 0
                    phase ^= 1
                i += 1
        with tlx.async_task(num_warps=4):
            i = 0
            slot = 0
            phase = 0
            while i < N:
                tlx.barrier_wait(full[slot], phase)
                tl.store(pointers(out_ptr, i), tlx.local_load(ring[slot]))
                tlx.barrier_arrive(empty[slot])
                slot = (slot + 1) % NB
                if slot == (1 if LATE else 0):
                    phase ^= 1
                i += 1


@triton.jit
def captures(x_ptr, out_ptr, N: tl.constexpr, FULL_WAIT: tl.constexpr):
    """Tasks use values from before them, and a second specialisation reads what the first has written."""
    half = N // 2 + tl.program_id(0)
    buffers = tlx.local_alloc((64, 64), tl.float32, N)
    full = tlx.alloc_barriers(1, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(half):
                tlx.local_store(buffers[i], tl.load(pointers(x_ptr, i)))
            tlx.barrier_arrive(full[0])
        with tlx.async_task(num_warps=4):
            for i in range(half, N):
                tlx.local_store(buffers[i], tl.load(pointers(x_ptr, i)))
            if FULL_WAIT:
                tlx.barrier_wait(full[0], 0)
            tl.store(pointers(out_ptr, 0), tlx.local_load(buffers[0]))
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(1, half):
                tl.store(pointers(out_ptr, i), tlx.local_load(buffers[i]))
        with tlx.async_task(num_warps=4):
            for i in range(half, N):
                tl.store(pointers(out_ptr, i), tlx.local_load(buffers[i]))


@triton.jit
def wgmma_registers(a_ptr, b_desc, out_ptr, N: tl.constexpr, WAITS: tl.constexpr, REFILLS: tl.constexpr):
    """The left operand in registers, the right one transposed; REFILLS loads the next right operand into the same buffer."""
    b_smem = tlx.local_alloc((64, 64), tl.bfloat16, 1 if REFILLS else N)
    full = tlx.alloc_barriers(N, arrive_count=1)
    acc = tl.zeros((64, 64), tl.float32)
    for i in tl.static_range(N):
        tlx.barrier_expect_bytes(full[i], 64 * 64 * 2)
        tlx.async_descriptor_load(b_desc, b_smem[0 if REFILLS else i], [i * 64, 0], full[i])
        tlx.barrier_wait(full[i], 0)
        acc = tlx.async_dot(tl.load(pointers(a_ptr, i)), tlx.local_trans(b_smem[0 if REFILLS else i]), acc)
        if WAITS:
            acc = tlx.async_dot_wait(0, acc)
    acc = tlx.async_dot_wait(0, acc)
    tl.store(pointers(out_ptr, 0), acc)


@triton.jit
def tmem_operand(a_ptr, b_desc, out_ptr, N: tl.constexpr, A_ARRIVES_AFTER: tl.constexpr, MMA_FREES: tl.constexpr):
    """The left operand in tensor memory, stored by one task for the MMA of another, one buffer."""
    a_tmem = tlx.local_alloc((128, 64), tl.bfloat16, 1, tlx.storage_kind.tmem)
    b_smem = tlx.local_alloc((64, 64), tl.bfloat16, N)
    acc = tlx.local_alloc((128, 64), tl.float32, 1, tlx.storage_kind.tmem)
    b_full = tlx.alloc_barriers(1, arrive_count=1)
    a_full = tlx.alloc_barriers(1, arrive_count=1)
    a_empty = tlx.alloc_barriers(1, arrive_count=1)
    done = tlx.alloc_barriers(1, arrive_count=1)
    spare = tlx.alloc_barriers(1, arrive_count=1)  # an MMA with no barrier at all is a synchronous one
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.barrier_wait(a_empty[0], (i & 1) ^ 1)
                if not A_ARRIVES_AFTER:
                    tlx.barrier_arrive(a_full[0])
                tlx.local_store(a_tmem[0], tl.load(pointers(a_ptr, i, 128)))
                if A_ARRIVES_AFTER:
                    tlx.barrier_arrive(a_full[0])
            tlx.barrier_wait(done[0], 0)
            tl.store(pointers(out_ptr, 0, 128), tlx.local_load(acc[0]))
        with tlx.async_task(num_warps=1):
            tlx.barrier_expect_bytes(b_full[0], N * 64 * 64 * 2)
            for i in tl.static_range(N):
                tlx.async_descriptor_load(b_desc, b_smem[i], [i * 64, 0], b_full[0])
            tlx.barrier_wait(b_full[0], 0)
            for i in range(N):
                tlx.barrier_wait(a_full[0], i & 1)
                if MMA_FREES:
                    tlx.async_dot(a_tmem[0], b_smem[i], acc[0], use_acc=i > 0, mBarriers=[a_empty[0]])
                else:
                    tlx.async_dot(a_tmem[0], b_smem[i], acc[0], use_acc=i > 0, mBarriers=[spare[0]])
                    tlx.barrier_arrive(a_empty[0])
            tlx.tcgen05_commit(done[0])


def _sums(device: str, switches: dict) -> Launch:
    x = random(2 * TILE, TILE, device=device)
    out = torch.zeros(TILE, TILE, dtype=x.dtype, device=device)
    expected = (x[:TILE].float() + x[TILE:].float()).to(x.dtype)
    return Launch((by_tiles(x), by_tiles(out)), out, expected)


def _counted(device: str, switches: dict) -> Launch:
    launch = copy_by_pointers(8)(device, switches)
    return Launch((*launch.args, 8), launch.out, launch.expected)


def _products(rows: int, tiles: int, transposed: bool):
    def launch(device: str, switches: dict) -> Launch:
        a = random(tiles * rows, TILE, device=device)
        b = random(tiles * TILE, TILE, device=device, seed=1)
        right = b.float().view(tiles, TILE, TILE)
        out = unwritten(rows, TILE, device=device, dtype=torch.float32)
        expected = (a.float().view(tiles, rows, TILE) @ (right.mT if transposed else right)).sum(0)
        return Launch((a, by_tiles(b), out), out, expected)

    return launch


_both = (False, True)
HAZARDS = (
    Hazard(predicates, copy_to_pointers(5), dict(LAST_WAIT=_both, LAST_LOAD=_both), constants=dict(N=5, NB=2)),
    Hazard(alias_specs, copy_by_pointers(2), dict(ORDERED=_both), archs=(HOPPER,)),
    Hazard(reinterprets, copy_by_pointers(1), dict(ORDERED=_both), archs=(HOPPER,)),
    Hazard(reductions, _sums, dict(ADDS=_both), grid=(2,), archs=(HOPPER,)),
    Hazard(while_rings, _counted, dict(NB=(2, 3), LATE=_both), archs=(HOPPER,)),
    Hazard(captures, copy_by_pointers(4), dict(FULL_WAIT=_both), constants=dict(N=4), archs=(HOPPER,)),
    Hazard(wgmma_registers, _products(TILE, 3, transposed=True), dict(WAITS=_both, REFILLS=_both), constants=dict(N=3),
           archs=(HOPPER,)),
    Hazard(tmem_operand, _products(128, 3, transposed=False), dict(A_ARRIVES_AFTER=_both, MMA_FREES=_both),
           constants=dict(N=3), archs=(BLACKWELL,)),
)  # fmt: skip
