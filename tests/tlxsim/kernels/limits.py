"""What a launch takes from the GPU: registers of its tasks, shared memory, tensor memory, threads."""

from __future__ import annotations

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from .hazard import BLACKWELL, HOPPER, Hazard, copy_by_pointers, pointers


@triton.jit
def registers(x_ptr, out_ptr, NC: tl.constexpr, REGISTERS: tl.constexpr):
    """NC tasks of 4 warps ask for REGISTERS a thread, beside the default task's 4 warps."""
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tl.store(pointers(out_ptr, 0), tl.load(pointers(x_ptr, 0)))
        with tlx.async_task(num_warps=4, registers=REGISTERS, replicate=NC):
            i = 1 + tlx.async_task_replica_id()
            tl.store(pointers(out_ptr, i), tl.load(pointers(x_ptr, i)))


@triton.jit
def shared_memory(x_ptr, out_ptr, NB: tl.constexpr):
    """NB buffers of 16 KiB."""
    ring = tlx.local_alloc((64, 64), tl.float32, NB)
    for i in range(NB):
        tlx.local_store(ring[i], tl.load(pointers(x_ptr, i)))
    for i in range(NB):
        tl.store(pointers(out_ptr, i), tlx.local_load(ring[i]))


@triton.jit
def tensor_memory(x_ptr, out_ptr, NB: tl.constexpr, COLUMNS: tl.constexpr):
    """NB accumulators of COLUMNS columns."""
    acc = tlx.local_alloc((128, COLUMNS), tl.float32, NB, tlx.storage_kind.tmem)
    for i in tl.static_range(NB):
        tlx.local_store(acc[i], tl.load(pointers(x_ptr, i, 128, COLUMNS)))
    for i in tl.static_range(NB):
        tl.store(pointers(out_ptr, i, 128, COLUMNS), tlx.local_load(acc[i]))


@triton.jit
def threads(x_ptr, out_ptr, NC: tl.constexpr):
    """NC tasks of 4 warps beside the default task's."""
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tl.store(pointers(out_ptr, 0), tl.load(pointers(x_ptr, 0)))
        with tlx.async_task(num_warps=4, replicate=NC):
            i = 1 + tlx.async_task_replica_id()
            tl.store(pointers(out_ptr, i), tl.load(pointers(x_ptr, i)))


def _tiles(count):
    """As many tiles as the switches say."""
    return lambda device, switches: copy_by_pointers(count(**switches))(device, switches)


HAZARDS = (
    Hazard(registers, _tiles(lambda NC, REGISTERS: 1 + NC), dict(NC=(1, 2, 3), REGISTERS=(24, 88, 160, 208, 240)),
           archs=(HOPPER,), runs_on_gpu=False),
    Hazard(shared_memory, _tiles(lambda NB: NB), dict(NB=(1, 14, 15, 20)), archs=(HOPPER,), runs_on_gpu=False),
    Hazard(tensor_memory, _tiles(lambda NB, COLUMNS: NB * COLUMNS // 32), dict(NB=(1, 2, 4, 5), COLUMNS=(64, 128)),
           archs=(BLACKWELL,), runs_on_gpu=False),
    Hazard(threads, _tiles(lambda NC: 1 + NC), dict(NC=(1, 3, 7, 8)), archs=(HOPPER,), runs_on_gpu=False),
)  # fmt: skip
