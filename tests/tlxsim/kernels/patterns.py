"""Ways of working together that complete kernels use: a meeting of equals, several producers, a relay through three tasks,
tiles of rank 3, 8-bit products.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx
from triton.tools.tensor_descriptor import TensorDescriptor

from .handoff import phase_of
from .hazard import HOPPER, TILE, Hazard, Launch, by_tiles, copy_by_pointers, pointers, random, unwritten


@triton.jit
def meeting(x_ptr, out_ptr, N: tl.constexpr, COUNT: tl.constexpr, SECOND: tl.constexpr):
    """Two tasks write a buffer each, meet, read the other's, and meet again (SECOND) before they write anew."""
    buffers = tlx.local_alloc((64, 64), tl.float32, 2)
    met = tlx.alloc_barriers(2, arrive_count=COUNT)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.local_store(buffers[0], tl.load(pointers(x_ptr, 2 * i)))
                tlx.barrier_arrive(met[0])
                tlx.barrier_wait(met[0], i & 1)
                tl.store(pointers(out_ptr, 2 * i + 1), tlx.local_load(buffers[1]))
                if SECOND:
                    tlx.barrier_arrive(met[1])
                    tlx.barrier_wait(met[1], i & 1)
        with tlx.async_task(num_warps=4):
            for i in range(N):
                tlx.local_store(buffers[1], tl.load(pointers(x_ptr, 2 * i + 1)))
                tlx.barrier_arrive(met[0])
                tlx.barrier_wait(met[0], i & 1)
                tl.store(pointers(out_ptr, 2 * i), tlx.local_load(buffers[0]))
                if SECOND:
                    tlx.barrier_arrive(met[1])
                    tlx.barrier_wait(met[1], i & 1)


@triton.jit
def producers(x_ptr, out_ptr, N: tl.constexpr, NB: tl.constexpr, BOTH_WAIT: tl.constexpr, COUNT: tl.constexpr):
    """Two producers fill half a buffer each for one consumer."""
    ring = tlx.local_alloc((32, 64), tl.float32, 2 * NB)
    full = tlx.alloc_barriers(NB, arrive_count=COUNT)
    empty = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.barrier_wait(full[i % NB], phase_of(i, NB))
                for part in tl.static_range(2):
                    y = tlx.local_load(ring[i % NB * 2 + part])
                    tl.store(pointers(out_ptr, 2 * i + part, 32, 64), y)
                tlx.barrier_arrive(empty[i % NB])
        with tlx.async_task(num_warps=4, replicate=2):
            part = tlx.async_task_replica_id()
            for i in range(N):
                if BOTH_WAIT or part == 0:
                    tlx.barrier_wait(empty[i % NB], phase_of(i, NB) ^ 1)
                tlx.local_store(ring[i % NB * 2 + part], tl.load(pointers(x_ptr, 2 * i + part, 32, 64)))
                tlx.barrier_arrive(full[i % NB])


@triton.jit
def relay(x_desc, out_desc, N: tl.constexpr, NB: tl.constexpr, FENCE: tl.constexpr, FREED_BY: tl.constexpr):
    """A loader, a task that doubles in place, a storer: the slot goes around, and its last user (2) frees it, not the second
    (1)."""
    ring = tlx.local_alloc((64, 64), tl.bfloat16, NB)
    loaded = tlx.alloc_barriers(NB, arrive_count=1)
    doubled = tlx.alloc_barriers(NB, arrive_count=1)
    stored = tlx.alloc_barriers(NB, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(N):
                tlx.barrier_wait(loaded[i % NB], phase_of(i, NB))
                tlx.local_store(ring[i % NB], tlx.local_load(ring[i % NB]) * 2)
                if FENCE:
                    tlx.fence_async_shared()
                tlx.barrier_arrive(doubled[i % NB])
                if FREED_BY == 1:
                    tlx.barrier_arrive(stored[i % NB])
        with tlx.async_task(num_warps=1):
            for i in range(N):
                tlx.barrier_wait(stored[i % NB], phase_of(i, NB) ^ 1)
                tlx.barrier_expect_bytes(loaded[i % NB], 64 * 64 * 2)
                tlx.async_descriptor_load(x_desc, ring[i % NB], [i * 64, 0], loaded[i % NB])
        with tlx.async_task(num_warps=1):
            for i in range(N):
                tlx.barrier_wait(doubled[i % NB], phase_of(i, NB))
                tlx.async_descriptor_store(out_desc, ring[i % NB], [i * 64, 0])
                tlx.async_descriptor_store_wait(0)
                if FREED_BY == 2:
                    tlx.barrier_arrive(stored[i % NB])


@triton.jit
def rank_3(x_desc, out_desc, BYTES: tl.constexpr, WAITS: tl.constexpr):
    """A tile of rank 3."""
    buffer = tlx.local_alloc((2, 32, 64), tl.float32, 1)
    full = tlx.alloc_barriers(1, arrive_count=1)
    tlx.barrier_expect_bytes(full[0], BYTES)
    tlx.async_descriptor_load(x_desc, buffer[0], [1, 32, 0], full[0])
    if WAITS:
        tlx.barrier_wait(full[0], 0)
    tlx.async_descriptor_store(out_desc, buffer[0], [1, 32, 0])
    tlx.async_descriptor_store_wait(0)


@triton.jit
def bytes_of_types(a_desc, b_desc, out_ptr, BYTES: tl.constexpr, DTYPE: tl.constexpr):
    """A product of 8-bit or 16-bit tiles, whose copies bring so many bytes."""
    a_smem = tlx.local_alloc((64, 64), DTYPE, 1)
    b_smem = tlx.local_alloc((64, 64), DTYPE, 1)
    full = tlx.alloc_barriers(1, arrive_count=1)
    tlx.barrier_expect_bytes(full[0], 2 * 64 * 64 * BYTES)
    tlx.async_descriptor_load(a_desc, a_smem[0], [0, 0], full[0])
    tlx.async_descriptor_load(b_desc, b_smem[0], [0, 0], full[0])
    tlx.barrier_wait(full[0], 0)
    acc = tlx.async_dot(a_smem[0], tlx.local_trans(b_smem[0]))
    acc = tlx.async_dot_wait(0, acc)
    tl.store(pointers(out_ptr, 0), acc)


def _doubled(device: str, switches: dict) -> Launch:
    x = random(8 * TILE, TILE, device=device)
    out = unwritten(*x.shape, device=device)
    return Launch((by_tiles(x), by_tiles(out)), out, x * 2)


def _of_rank_3(device: str, switches: dict) -> Launch:
    x = random(3, 64, 64, device=device, dtype=torch.float32)
    out = torch.zeros_like(x)
    expected = out.clone()
    expected[1:, 32:] = x[1:, 32:]
    return Launch(tuple(TensorDescriptor.from_tensor(tensor, [2, 32, 64]) for tensor in (x, out)), out, expected)


def _typed(device: str, switches: dict) -> Launch:
    dtype = {"fp8e4nv": torch.float8_e4m3fn, "fp16": torch.float16}[str(switches["DTYPE"])]
    a, b = (random(TILE, TILE, device=device, dtype=torch.float32, seed=seed).to(dtype) for seed in range(2))
    out = unwritten(TILE, TILE, device=device, dtype=torch.float32)
    return Launch((by_tiles(a), by_tiles(b), out), out, a.float() @ b.float().T)


_both = (False, True)
HAZARDS = (
    Hazard(meeting, copy_by_pointers(12), dict(COUNT=(1, 2, 3), SECOND=_both), constants=dict(N=6), archs=(HOPPER,)),
    Hazard(producers, copy_by_pointers(8), dict(NB=(1, 2), BOTH_WAIT=_both, COUNT=(1, 2)), constants=dict(N=8),
           archs=(HOPPER,)),
    Hazard(relay, _doubled, dict(NB=(1, 2), FENCE=_both, FREED_BY=(1, 2)), constants=dict(N=8)),
    Hazard(rank_3, _of_rank_3, dict(BYTES=(2 * 32 * 64 * 4, 32 * 64 * 4), WAITS=_both), archs=(HOPPER,)),
    Hazard(bytes_of_types, _typed, dict(DTYPE=(tl.float8e4nv, tl.float16), BYTES=(1, 2)), archs=(HOPPER,)),
)  # fmt: skip
