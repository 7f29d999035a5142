"""TLX kernels for Hopper whose IR is the corpus, and those parts of TLX that every architecture has."""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx


@triton.jit
def specialised(a_desc, b_desc, c_desc, tiles, K: tl.constexpr, S: tl.constexpr, M: tl.constexpr):
    """A GEMM of one producer and two consumers that share a ring, each with half of the rows."""
    a_smem = tlx.local_alloc((M, K), tl.bfloat16, S * 2)
    b_smem = tlx.local_alloc((K, M), tlx.dtype_of(b_desc), S)
    full = tlx.alloc_barriers(S, arrive_count=1)
    empty = tlx.alloc_barriers(num_barriers=S, arrive_count=2)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(0, tiles):
                slot = i % S
                tlx.barrier_wait(empty[slot], ((i // S) & 1) ^ 1)
                tlx.barrier_expect_bytes(full[slot], 3 * M * K * tlx.size_of(tl.bfloat16))
                tlx.async_descriptor_load(a_desc, a_smem[slot], [0, i * K], full[slot])
                tlx.async_descriptor_load(a_desc, a_smem[slot + S], [M, i * K], full[slot], eviction_policy="evict_first")
                tlx.async_descriptor_load(b_desc, b_smem[slot], [i * K, 0], full[slot], eviction_policy="evict_last")
        with tlx.async_task(num_warps=4, registers=232, replicate=2):
            half = tlx.async_task_replica_id()
            acc = tl.zeros((M, M), tl.float32)
            for i in range(0, tiles):
                slot = i % S
                tlx.barrier_wait(full[slot], (i // S) & 1)
                acc = tlx.async_dot(a_smem[slot + half * S], b_smem[slot], acc)
                acc = tlx.async_dot_wait(0, acc)
                tlx.barrier_arrive(empty[slot], 1)
            c_smem = tlx.local_view(a_smem, half)
            tlx.local_store(c_smem, acc.to(tl.bfloat16))
            tlx.fence_async_shared()
            tlx.async_descriptor_store(c_desc, c_smem, [half * M, 0])
            tlx.async_descriptor_store_wait(0)


@triton.jit
def wgmma(a_ptr, b_ptr, out_ptr, flag, N: tl.constexpr):
    """wgmma with operands in registers and shared memory, transposed, with and without an accumulator, fences left out."""
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    smem = tlx.local_alloc((N, N), tl.float16, 3)
    tlx.local_store(smem[0], a)
    tlx.local_store(smem[1], b)
    tlx.fence("async_shared")
    acc = tl.zeros((N, N), tl.float32)
    c = tlx.async_dot(smem[0], smem[1])
    d = tlx.async_dot(a, tlx.local_trans(smem[1]), acc)
    e = tlx.async_dot(tlx.local_trans(smem[0]), smem[1], acc, use_acc=flag > 1, input_precision="tf32")
    c = tlx.async_dot_wait(2, c)
    tlx.local_store(smem[2], c.to(tl.float16))
    d = tlx.async_dot_wait(0, d)
    f = tlx.async_dot_wait(0, tlx.async_dot(smem[2], smem[1], d))
    e = tlx.async_dot_wait(0, e)
    tl.store(out_ptr + at, f + e)


@triton.jit
def local_memory(x_ptr, out_ptr, N: tl.constexpr):
    """Views of shared memory, and asynchronous copies into it."""
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    smem = tlx.local_alloc((N, N), tl.float32, 2)
    first = tlx.async_load(x_ptr + at, smem[0])
    group = tlx.async_load_commit_group([first])
    second = tlx.async_load(x_ptr + at, smem[1], mask=rows[:, None] < 20, other=1.0, cache_modifier=".cg")
    tlx.async_load_commit_group([second])
    tlx.async_load_wait_group(1)
    token = tlx.async_load_wait_group(0, [group])
    x = tlx.local_load(smem[0], token) + tl.trans(tlx.local_load(tlx.local_trans(smem[1])))
    quarter = tlx.local_slice(smem[1], [0, N // 2], [N, N // 2])
    half = tl.sum(tlx.local_load(quarter), 1)
    bits = tlx.local_load(tlx.local_reinterpret(smem[1], tl.int32))
    flat = tlx.local_alloc((N,), tl.float32, 1)
    tlx.local_store(flat[0], half)
    wide = tlx.local_alloc((N, N), tl.float32, 2, reuse=smem)
    tlx.local_store(wide[1], x)
    late = tlx.async_load(x_ptr + at, smem[0])
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0, [late])
    x += tlx.local_load(wide[0])
    tl.store(out_ptr + at, x + bits + tlx.local_load(flat[0])[:, None])


@triton.jit
def layouts(x_ptr, out_ptr, N: tl.constexpr):
    """Loads into an explicit register layout."""
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    smem = tlx.local_alloc((N, N), tl.float32, 1)
    tlx.local_store(smem[0], tl.load(x_ptr + at))
    L: tl.constexpr = tlx.layout(shape=((8, 4, 4), (8, 4)), stride=((8, 64, 256), (1, 1024)))
    x = tlx.local_load(smem[0], layout=L)
    tl.store(out_ptr + at, tlx.release_layout(x) * 2)


@triton.jit
def synchronised(x_ptr, out_ptr, flag, N: tl.constexpr):
    """Named barriers, warp barriers, predicated waits and expectations, tasks of several sizes."""
    smem = tlx.local_alloc((N,), tl.float32, 1)
    ready = tlx.alloc_barriers(2, arrive_count=1)
    done = tlx.alloc_warp_barrier(1, num_warps=4, num_arrivals=2)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tlx.named_barrier_wait(9, 256)
            tlx.barrier_wait(ready[0], 0, flag > 0)
            tlx.barrier_wait(ready[1], phase=tl.constexpr(0))
            tlx.barrier_wait(done[0], 0)
            at = tl.arange(0, N)
            tl.store(out_ptr + at, tlx.local_load(smem[0]))
        with tlx.async_task(num_warps=4):
            at = tl.arange(0, N)
            tlx.local_store(smem[0], tl.load(x_ptr + at))
            tlx.barrier_expect_bytes(ready[0], 0, flag > 0)
            tlx.named_barrier_arrive(9, 256)
            tlx.barrier_arrive(ready[1])
            tlx.barrier_arrive(done[0])
            tlx.barrier_arrive(done[0], 1)
        with tlx.async_task(num_warps=2, replicate=2):
            if tlx.async_task_replica_id() == 1:
                tl.store(out_ptr + N, tl.load(x_ptr + N))
                tlx.named_barrier_wait(10, 64)
            else:
                tlx.named_barrier_wait(11, 64)


@triton.jit
def tma(x_desc, out_desc, sums_desc, flag, M: tl.constexpr, N: tl.constexpr):
    """TMA copies both ways, predicated, prefetched and reducing."""
    smem = tlx.local_alloc((M, N), tl.int32, 2)
    bar = tlx.alloc_barriers(1)
    tlx.prefetch(x_desc, tensormap=True)
    tlx.async_descriptor_prefetch_tensor(x_desc, [0, 0], eviction_policy="evict_last")
    tlx.async_descriptor_prefetch_tensor(x_desc, [0, 0], flag > 0)
    tlx.barrier_expect_bytes(bar[0], M * N * 4)
    tlx.async_descriptor_load(x_desc, smem[0], [0, 0], bar[0], flag > 0)
    tlx.barrier_wait(bar[0], 0)
    tlx.async_descriptor_store(out_desc, smem[0], [0, 0], eviction_policy="evict_first")
    tlx.async_descriptor_store(sums_desc, smem[0], [0, 0], store_reduce="add")
    tlx.async_descriptor_store(sums_desc, smem[0], [0, 0], store_reduce="min")
    tlx.async_descriptor_store(sums_desc, smem[0], [0, 0], store_reduce="max")
    tlx.async_descriptor_store(sums_desc, smem[0], [0, 0], store_reduce="and")
    tlx.async_descriptor_store_wait(1)
    tlx.async_descriptor_store(sums_desc, smem[0], [0, 0], store_reduce="or")
    tlx.async_descriptor_store(sums_desc, smem[0], [0, 0], store_reduce="xor")
    tlx.async_descriptor_store_wait(0, read_only=False)


@triton.jit
def device_tma(x_ptr, out_ptr, rows, M: tl.constexpr, N: tl.constexpr):
    """TLX copies through descriptors that the kernel makes."""
    x_desc = tl.make_tensor_descriptor(x_ptr, [rows, N], [N, 1], [M, N])
    out_desc = tl.make_tensor_descriptor(out_ptr, [rows, N], [N, 1], [M, N])
    smem = tlx.local_alloc((M, N), tl.float16, 1)
    bar = tlx.alloc_barriers(1)
    tlx.barrier_expect_bytes(bar[0], M * N * 2)
    tlx.async_descriptor_load(x_desc, smem[0], [0, 0], bar[0])
    tlx.barrier_wait(bar[0], 0)
    tlx.async_descriptor_store(out_desc, smem[0], [0, 0])
    tlx.async_descriptor_store_wait(0)


@triton.jit
def aliased(x_ptr, out_ptr, N: tl.constexpr):
    """Buffers that share storage by a specification."""
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    spec = tlx.storage_alias_spec(storage=tlx.storage_kind.smem, buffer_size_bytes=4 * N * N)
    a = tlx.local_alloc((N, N), tl.float32, 1, tlx.storage_kind.smem, reuse=spec)
    b = tlx.local_alloc((N, N), tl.float16, 2, tlx.storage_kind.smem, reuse=spec)
    x = tl.load(x_ptr + at)
    tlx.local_store(a[0], x)
    y = tlx.local_load(a[0])
    tlx.local_store(b[1], y.to(tl.float16))
    tl.store(out_ptr + at, tlx.local_load(b[1]))


@triton.jit
def overlapping(x_ptr, out_ptr, N: tl.constexpr):
    """Buffers that share storage in part, by reuse groups."""
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    spec = tlx.storage_alias_spec(storage=tlx.storage_kind.smem)
    a = tlx.local_alloc((N, N), tl.float32, 2, tlx.storage_kind.smem, reuse=spec)
    b = tlx.local_alloc((N, N), tl.float16, 2, tlx.storage_kind.smem, reuse=spec)
    c = tlx.local_alloc((N, N), tl.bfloat16, 2, tlx.storage_kind.smem, reuse=spec)
    spec.set_buffer_overlap(tlx.reuse_group(a, tlx.reuse_group(b, c, group_type=tlx.reuse_group_type.distinct)))
    x = tl.load(x_ptr + at)
    tlx.local_store(a[0], x)
    y = tlx.local_load(a[0])
    tlx.local_store(b[0], y.to(tl.float16))
    tlx.local_store(c[1], x.to(tl.bfloat16))
    tl.store(out_ptr + at, tlx.local_load(b[0]).to(tl.float32) + tlx.local_load(c[1]))


@triton.jit
def per_thread(x_ptr, out_ptr, N: tl.constexpr):
    """Operations on single threads and programs of a cluster, and prefetches."""
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tlx.prefetch(x_ptr + at, level="L1")
    tl.store(out_ptr + at, x + tlx.thread_id(0) + tlx.thread_id(2) + tlx.cluster_cta_rank())


@triton.jit
def portable(x_ptr, out_ptr, N: tl.constexpr):
    """What TLX has for all GPUs."""
    at = tl.arange(0, N)
    x = tlx.buffer_load(x_ptr, at) + tlx.buffer_load(x_ptr, at, mask=at < 5, other=1.0) + tlx.zeros((N,), tl.float32)
    tlx.assert_same_layout(x, x)
    format: tl.constexpr = tlx.get_fp8_format_name(tl.float8e4nv)
    if format == "e4m3":
        x += tlx.num_warps() + tlx.assume_uniform(tl.program_id(0)) + tlx.warp_any(at > 3)
    tlx.buffer_store(x, out_ptr, at, mask=at < 7)


@triton.jit
def reinterpreted(x_ptr, out_ptr, N: tl.constexpr):
    """Shared memory seen as another type and shape, with explicit layouts in shared memory and in registers."""
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    smem = tlx.local_alloc((N, N), tl.float32, 1, layout=tlx.swizzled_layout(3, 4, 3))
    tlx.local_store(smem[0], tl.load(x_ptr + at))
    halves = tlx.local_load(tlx.local_reinterpret(smem[0], tl.float16, [N, 2 * N]))
    L: tl.constexpr = tlx.layout(shape=((8, 4, 4), (8, 4)), stride=((8, 64, 256), (1, 1024)))
    x = tlx.require_layout(tl.load(x_ptr + at), L) + tlx.zeros((N, N), tl.float32, layout=L)
    tl.store(out_ptr + at, tlx.release_layout(x) + tl.sum(halves, 1)[:, None])
    deep = tlx.local_alloc((2, N, N), tl.float16, 1)
    tl.store(out_ptr, tl.sum(tlx.local_load(tlx.local_trans(deep[0], (0, 2, 1)))))
