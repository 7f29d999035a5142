"""TLX kernels for Blackwell whose IR is the corpus."""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx


@triton.jit
def specialised(a_desc, b_desc, c_desc, tiles, M: tl.constexpr, K: tl.constexpr, S: tl.constexpr, T: tl.constexpr):
    """A GEMM of a loading, a multiplying and an epilogue task, with rings in shared and in tensor memory."""
    a_smem = tlx.local_alloc((M, K), tl.float16, S)
    b_smem = tlx.local_alloc((K, M), tl.float16, S)
    acc_tmem = tlx.local_alloc((M, M), tl.float32, T, tlx.storage_kind.tmem)
    c_smem = tlx.local_alloc((M, M // 2), tl.float16, 1)
    full, empty = tlx.alloc_barriers(S), tlx.alloc_barriers(S)
    acc_full, acc_empty = tlx.alloc_barriers(T), tlx.alloc_barriers(T)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(0, tiles):
                tlx.barrier_wait(acc_full[i % T], (i // T) & 1)
                for part in tl.static_range(2):
                    view = tlx.local_slice(acc_tmem[i % T], [0, part * (M // 2)], [M, M // 2])
                    tlx.local_store(c_smem[0], tlx.local_load(view).to(tl.float16))
                    tlx.fence("async_shared")
                    tlx.async_descriptor_store(c_desc, c_smem[0], [i * M, part * (M // 2)])
                    tlx.async_descriptor_store_wait(0)
                tlx.barrier_arrive(acc_empty[i % T], 1)
        with tlx.async_task(num_warps=1, registers=24):
            step = 0
            for i in range(0, tiles):
                tlx.barrier_wait(acc_empty[i % T], ((i // T) & 1) ^ 1)
                for k in range(0, 4):
                    slot = step % S
                    tlx.barrier_wait(full[slot], (step // S) & 1)
                    tlx.async_dot(a_smem[slot], b_smem[slot], acc_tmem[i % T], use_acc=k > 0, mBarriers=[empty[slot]])
                    step += 1
                tlx.tcgen05_commit(acc_full[i % T])
        with tlx.async_task(num_warps=1, registers=24):
            step = 0
            for i in range(0, tiles):
                for k in range(0, 4):
                    slot = step % S
                    tlx.barrier_wait(empty[slot], ((step // S) & 1) ^ 1)
                    tlx.barrier_expect_bytes(full[slot], 2 * M * K * 2)
                    tlx.async_descriptor_load(a_desc, a_smem[slot], [i * M, k * K], full[slot])
                    tlx.async_descriptor_load(b_desc, b_smem[slot], [k * K, 0], full[slot])
                    step += 1


@triton.jit
def products(x_ptr, out_ptr, flag, N: tl.constexpr):
    """tcgen05 MMAs: operands in shared and in tensor memory, transposed, predicated, with several barriers and with none."""
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    x = tl.load(x_ptr + at)
    smem = tlx.local_alloc((N, N), tl.float16, 2)
    acc = tlx.local_alloc((N, N), tl.float32, 2, tlx.storage_kind.tmem)
    p = tlx.local_alloc((N, N), tl.float16, 1, tlx.storage_kind.tmem)
    bars = tlx.alloc_barriers(4)
    tlx.local_store(smem[0], x)
    tlx.local_store(smem[1], x)
    tlx.local_store(p[0], x)
    tlx.fence_async_shared()
    tlx.async_dot(
        smem[0], tlx.local_trans(smem[1]), acc[0], use_acc=False, mBarriers=[bars[0], bars[1]], out_dtype=tl.float32
    )
    tlx.async_dot(p[0], smem[1], acc[1], use_acc=flag > 0, mBarriers=[bars[2]])
    tlx.async_dot(smem[0], smem[1], acc[1], force_async=True)
    tlx.tcgen05_commit(bars[3])
    tlx.barrier_wait(bars[0], 0)
    tlx.barrier_wait(bars[1], 0)
    tlx.barrier_wait(bars[2], 0)
    tlx.barrier_wait(bars[3], 0)
    y = tlx.local_load(acc[0]) + tlx.local_load(acc[1])
    left = tlx.subslice(acc[0], 0, N // 2)
    tlx.local_store(left, tlx.local_load(left) * 2)
    tl.store(out_ptr + at, y + tlx.local_load(acc[0]))


@triton.jit
def aliased(x_ptr, out_ptr, N: tl.constexpr):
    """Tensor memory that two buffers share."""
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    q = tlx.local_alloc((N, N), tl.float32, 1, tlx.storage_kind.tmem)
    r = tlx.local_alloc((N, N), tl.float16, 2, tlx.storage_kind.tmem, reuse=q)
    x = tl.load(x_ptr + at)
    tlx.local_store(q[0], x)
    y = tlx.local_load(q[0])
    tlx.local_store(r[1], y.to(tl.float16))
    tl.store(out_ptr + at, tlx.local_load(r[1]))


@triton.jit
def copied(x_ptr, out_ptr, N: tl.constexpr):
    """Shared memory copied to tensor memory."""
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    smem = tlx.local_alloc((N, N), tl.float32, 1)
    tmem = tlx.local_alloc((N, N), tl.float32, 1, tlx.storage_kind.tmem)
    bar = tlx.alloc_barriers(1)
    tlx.local_store(smem[0], tl.load(x_ptr + at))
    tlx.fence_async_shared()
    tlx.tmem_copy(smem[0], tmem[0])
    tlx.tcgen05_commit(bar[0])
    tlx.barrier_wait(bar[0], 0)
    tl.store(out_ptr + at, tlx.local_load(tmem[0]))


@triton.jit
def reinterpreted(x_ptr, out_ptr, N: tl.constexpr):
    """Tensor memory seen as another type."""
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    tmem = tlx.local_alloc((N, N), tl.float32, 1, tlx.storage_kind.tmem)
    tlx.local_store(tmem[0], tl.load(x_ptr + at))
    tl.store(out_ptr + at, tlx.local_load(tlx.local_reinterpret(tmem[0], tl.int32)))


@triton.jit
def reduced(x_ptr, out_ptr, N: tl.constexpr):
    """Reductions over a warp."""
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, tlx.warp_redux(x, "max") + tlx.warp_redux(x, "abs_min"))
