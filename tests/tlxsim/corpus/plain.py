"""Kernels of plain Triton whose IR is the corpus: each operation of the language that a GPU compiles stands here once."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a


@triton.jit(noinline=True)
def _apart(x):
    return x * 3 + 1


@triton.jit
def floats(x_ptr, y_ptr, out_ptr, scale, N: tl.constexpr):
    """Arithmetic and mathematics of floats, and their conversions."""
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    a = tl.exp(x) + tl.exp2(x) - tl.log(y) * tl.log2(y) / tl.sqrt(y)
    a += tl.sqrt_rn(y) + tl.div_rn(x, y) + tl.rsqrt(y) + tl.sin(x) + tl.cos(x) + tl.erf(x)
    a += tl.abs(x) + tl.floor(x) + tl.ceil(y) + tl.fma(x, y, a) + tl.sigmoid(x) + tl.clamp(x, -1.0, 1.0)
    a += tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL) + tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    a += tl.maximum(x, y) + tl.minimum(x, y) + (-x) + (x % y) + libdevice.tanh(x) + scale
    a = tl.where((x < y) & (x == x) | (x >= y) & (x != y) | (x > 2.0) & (x <= 3.0), a, x)
    a += a.to(tl.float16).to(tl.float32) + a.to(tl.bfloat16).to(tl.float32) + a.to(tl.float8e5).to(tl.float32)
    a += a.to(tl.float64).to(tl.float32) + a.to(tl.int32, bitcast=True).to(tl.float32) + a.to(tl.int32).to(tl.float32)
    a += a.to(tl.uint32).to(tl.float32) + a.to(tl.float16, fp_downcast_rounding="rtz")
    tl.store(out_ptr + at, a)


@triton.jit
def integers(x_ptr, y_ptr, out_ptr, n, N: tl.constexpr):
    """Arithmetic of integers, signed and unsigned."""
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    a = (x + y - 3) * y // 5 + x % 7 + (x << 2) + (x >> 1) + (x & y) + (x | 12) + (x ^ y) + (-x) + (~y)
    u, v = x.to(tl.uint32), y.to(tl.uint32)
    a += ((u // v + u % v) >> 3).to(tl.int32) + tl.umulhi(u, v).to(tl.int32) + tl.abs(x) + tl.cdiv(n, 4) + tl.maximum(x, y)
    a += tl.maximum(u, v).to(tl.int32) + tl.minimum(u, v).to(tl.int32) + tl.minimum(x, y) + tl.where(u < v, 1, 0)
    a += x.to(tl.int8).to(tl.int32) + x.to(tl.int64).to(tl.int32) + u.to(tl.uint8).to(tl.int32) + (x > y) + (u >= v)
    a += (tl.rand(17, at) * 100).to(tl.int32) + tl.randint(3, at)
    tl.store(out_ptr + at, a)


@triton.jit
def shapes(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """What moves elements and computes none."""
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + columns[None, :])
    even, odd = tl.split(tl.reshape(x, (M, N // 2, 2)))
    y = tl.reshape(tl.join(odd, even), (M, N))
    y += tl.trans(tl.trans(x)) + tl.permute(tl.reshape(x, (N, M)), (1, 0)) + tl.broadcast_to(rows[:, None], (M, N))
    y += (
        tl.reshape(tl.interleave(even, odd), (M, N))
        + tl.flip(x, 1)
        + tl.zeros((M, N), tl.float32)
        + tl.full((M, N), 2.0, tl.float32)
    )
    y += tl.gather(x, tl.broadcast_to(columns[None, :] ^ 1, (M, N)), 1) + tl.reshape(tl.ravel(x), (M, N), can_reorder=True)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], y)


@triton.jit
def catted(x_ptr, out_ptr, N: tl.constexpr):
    """The one operation that the plugin's conversion does not take."""
    at = tl.arange(0, N)
    pair = tl.cat(tl.load(x_ptr + at), tl.load(x_ptr + N + at), can_reorder=True)
    tl.store(out_ptr + tl.arange(0, 2 * N), pair)


@triton.jit
def _longest(a, b):
    return tl.maximum(a, b)


@triton.jit
def _affine(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def reductions(x_ptr, i_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """Reductions and scans, with one value and with several, and what is built on them."""
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x, i = tl.load(x_ptr + rows[:, None] * N + columns[None, :]), tl.load(i_ptr + rows[:, None] * N + columns[None, :])
    a = tl.sum(x, 1) + tl.max(x, 1) + tl.min(x, 1) + tl.reduce(x, 1, _longest) + tl.sum(x) + tl.xor_sum(i, 1) + tl.max(i, 1)
    best, place = tl.max(x, 1, return_indices=True)
    a += best + place + tl.argmax(x, 1) + tl.argmin(x, 1, tie_break_left=False) + tl.reduce_or(i, 1)
    y = tl.cumsum(x, 1) + tl.cumprod(x, 1, reverse=True)
    u, v = tl.associative_scan((x, y), 1, _affine)
    y += u + v + tl.sort(x, 1) + tl.cumsum(i, 1)
    counts = tl.histogram(tl.sum(i, 1), 16)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], y + a[:, None] + tl.sum(counts))


@triton.jit
def memory(x_ptr, i_ptr, lock_ptr, out_ptr, n, N: tl.constexpr):
    """Loads, stores and atomics of pointers, with all that they take."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last", cache_modifier=".cg")
    x += tl.load(x_ptr + at, mask=inside) + tl.load(x_ptr + at, volatile=True) + tl.load(x_ptr)
    tl.atomic_add(out_ptr + at, x, mask=inside, sem="relaxed", scope="cta")
    a = tl.atomic_max(i_ptr + at, 3) + tl.atomic_min(i_ptr + at, 5) + tl.atomic_and(i_ptr + at, 255) + tl.atomic_or(i_ptr, 1)
    a += tl.atomic_xor(i_ptr + at, 2) + tl.atomic_xchg(i_ptr + at, 7) + tl.atomic_add(i_ptr + at, 1)
    a += tl.atomic_max(i_ptr.to(tl.pointer_type(tl.uint32)) + at, tl.full((N,), 3, tl.uint32)).to(tl.int32)
    while tl.atomic_cas(lock_ptr, 0, 1, sem="acquire") == 1:
        pass
    tl.debug_barrier()
    tl.store(out_ptr + at, x + a, mask=inside, cache_modifier=".wb", eviction_policy="evict_first")
    tl.store(out_ptr, 1.0)
    tl.atomic_xchg(lock_ptr, 0, sem="release")


@triton.jit
def pointers(table_ptr, half_ptr, flag_ptr, out_ptr, offset: tl.int64, N: tl.constexpr):
    """Pointers as numbers, as values in memory, and of small types."""
    at = tl.arange(0, N)
    row = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    x = tl.load(row + at.to(tl.int64) + offset) + tl.load(half_ptr + at).to(tl.float32)
    flag = tl.load(flag_ptr + at)
    x += (row.to(tl.int64) % 16).to(tl.float32) + tl.where(flag, 1.0, 2.0)
    tl.store(out_ptr + at, tl.where(tl.program_id(1) + tl.program_id(2) + tl.num_programs(1) > 0, x, -x))
    tl.store(flag_ptr + at, flag == 0)


@triton.jit
def control(x_ptr, out_ptr, n, flag, N: tl.constexpr, DEBUG: tl.constexpr):
    """Loops, branches, an early return, calls, and what only a debug build keeps."""
    if flag > 4:
        return
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    total = tl.zeros((N,), tl.float32)
    steps = 0
    for i in range(0, n, 2):
        if i % 3 == 0:
            total += x * i
            steps += 1
        else:
            total -= x
    for i in tl.range(0, n, num_stages=2, loop_unroll_factor=2, disallow_acc_multi_buffer=True):
        total += tl.load(x_ptr + at + i)
    for _ in tl.range(n, warp_specialize=False, flatten=True):
        total *= 2
    for k in tl.static_range(2):
        total += k
    while steps > 2 and n < 100:
        steps -= 1
        n += 3
    tl.assume(n > 0)
    bound = tl.multiple_of(_gcd(steps, n), 4)
    if DEBUG:
        tl.device_assert(bound < 100, "bound")
        tl.device_print("steps", steps, n)
    scale = x if flag == 1 else -x
    tl.store(out_ptr + at, total * scale + bound + _apart(steps))


@triton.jit
def assembly(x_ptr, out_ptr, N: tl.constexpr):
    """Inline PTX with one result and with two, packed, and a loop over a tile's elements."""
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    a, b = tl.inline_asm_elementwise(
        "{ add.f32 $0, $2, 0f3F800000; mul.f32 $1, $2, $3; }", "=f,=f,f,f", [x, y], dtype=(tl.float32, tl.float32),
        is_pure=False, pack=1,
    )  # fmt: skip
    c = tl.map_elementwise(_longest, a, b)
    tl.store(out_ptr + at, c)


@triton.jit
def dots(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    """Matrix products of registers in each precision."""
    rows, columns = tl.arange(0, N), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    c = tl.dot(a, b) + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="tf32")
    c += tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    c = tl.dot(a.to(tl.bfloat16), tl.trans(b.to(tl.bfloat16)), acc=c)
    c += tl.dot(a.to(tl.float8e5), b.to(tl.float8e5), max_num_imprecise_acc=0) + tl.dot(a, b, out_dtype=tl.float16)
    c += tl.dot(a.to(tl.int8), b.to(tl.int8)).to(tl.float32)
    tl.store(out_ptr + at, c)


@triton.jit
def scaled(a_ptr, scale_ptr, out_ptr, N: tl.constexpr):
    """A product of fp8 matrices with block scales."""
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(a_ptr + at).to(tl.float8e4nv)
    scale = tl.load(scale_ptr + tl.arange(0, N)[:, None] * 2 + tl.arange(0, 2)[None, :])
    tl.store(out_ptr + at, tl.dot_scaled(a, scale, "e4m3", a, scale, "e4m3"))


@triton.jit
def pipelined(a_ptr, b_ptr, out_ptr, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """A product over K in a loop that the compiler pipelines."""
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    c = tl.zeros((M, N), tl.float32)
    for i in range(0, k, K):
        a = tl.load(a_ptr + rows[:, None] * k + i + depth[None, :], mask=i + depth[None, :] < k, other=0.0)
        b = tl.load(b_ptr + (i + depth[:, None]) * N + columns[None, :])
        c = tl.dot(a, b, c)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], c.to(tl.bfloat16))


@triton.jit
def batched(a_ptr, b_ptr, out_ptr, B: tl.constexpr, N: tl.constexpr):
    """A product of three-dimensional tensors."""
    at = tl.arange(0, B)[:, None, None] * N * N + tl.arange(0, N)[None, :, None] * N + tl.arange(0, N)[None, None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


@triton.jit
def device_descriptors(x_ptr, out_ptr, rows, columns, M: tl.constexpr, N: tl.constexpr):
    """TMA descriptors made by the kernel, loads, stores and reductions of tiles in registers."""
    source = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [M, N])
    target = tl.make_tensor_descriptor(out_ptr, [rows, columns], [columns, 1], [M, N], padding_option="nan")
    x = source.load([tl.program_id(0) * M, 0])
    target.store([tl.program_id(0) * M, 0], x + target.load([0, 0]))
    target.atomic_add([0, 0], x)


@triton.jit
def host_descriptors(source, sums, M: tl.constexpr, N: tl.constexpr):
    """TMA descriptors made by the host."""
    x = source.load([tl.program_id(0) * M, 0])
    sums.atomic_add([0, 0], x)
    sums.atomic_min([0, 0], x)
    sums.atomic_max([0, 0], x)
    sums.atomic_and([0, 0], x)
    sums.atomic_or([0, 0], x)
    sums.atomic_xor([0, 0], x | 3)
    sums.store([M, 0], x)


@triton.jit
def indexed_descriptors(source, target, pick_ptr, N: tl.constexpr):
    """Rows picked by index, with TMA."""
    at = tl.load(pick_ptr + tl.arange(0, 32))
    target.scatter(source.gather(at, 0), at, N)


@triton.jit
def tuples(pair, weights, out_ptr, N: tl.constexpr):
    """Tuples as arguments, a constant among them, and None."""
    x_ptr, skip = pair
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at + skip)
    if weights is not None:
        x *= tl.load(weights + at)
    tl.store(out_ptr + at, x)
