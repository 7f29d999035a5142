"""Mutants that no test on a CPU can kill, with the reason; `run.py --equivalents` tries to kill them all the same.

reason: the mutants that it holds for, as ("module.function", "before → after").
"""

EQUIVALENT: dict[str, list[tuple[str, str]]] = {
    "64 bits matter from 2³¹ elements on: test_a_row_stride_that_needs_64_bits_inside_a_tile, on a GPU": [
        ("walk.rows_from", "rows.to(tl.int64) if WIDE else rows → rows.to(tl.int64) if not WIDE else rows"),
        ("walk.rows_from", "rows.to(tl.int64) → rows"),
    ],
    "only a head 2³¹ elements after the first needs 64 bits: gigabytes, which the CPU tests do not take": [
        ("triton_forward.forward_kernel", "head.to(tl.int64) → head"),
        ("triton_forward.forward_kernel", "(head // GROUP).to(tl.int64) * k_head → head // GROUP * k_head"),
        ("triton_forward.forward_kernel", "(head // GROUP).to(tl.int64) * v_head → head // GROUP * v_head"),
        ("triton_backward.backward_kernel", "kv_head.to(tl.int64) * GROUP → kv_head * GROUP"),
        ("triton_backward.backward_kernel", "kv_head.to(tl.int64) * k_head → kv_head * k_head"),
        ("triton_backward.backward_kernel", "kv_head.to(tl.int64) * v_head → kv_head * v_head"),
    ],
    "only a tile table of 2³¹ / 3 lines, 17 GB, needs 64 bits": [
        ("walk.program_line", "(program // HEADS).to(tl.int64) → program // HEADS"),
        ("triton_tiles.count_kernel", "tl.zeros((), tl.int64) → tl.zeros((), tl.int32)"),
        ("triton_tiles.expand_kernel", "tl.program_id(0).to(tl.int64) → tl.program_id(0)"),
    ],
    "int32 offsets and lengths within the rows do not overflow, and those outside are found invalid all the same": [
        (
            "triton_tiles._piece",
            "tl.load(offsets_ptr + own, mask=has_own, other=0).to(tl.int64) → "
            "tl.load(offsets_ptr + own, mask=has_own, other=0)",
        ),
        (
            "triton_tiles._piece",
            "tl.load(offsets_ptr + own + 1, mask=own < sequences, other=0).to(tl.int64) → "
            "tl.load(offsets_ptr + own + 1, mask=own < sequences, other=0)",
        ),
        (
            "triton_tiles._piece",
            "tl.load(lengths_ptr + own, mask=has_own, other=0).to(tl.int64) → "
            "tl.load(lengths_ptr + own, mask=has_own, other=0)",
        ),
    ],
    "it reads past the end of offsets and drops what it read, which only a guard page would notice": [
        (
            "triton_tiles._piece",
            "tl.load(offsets_ptr + own + 1, mask=own < sequences, other=0) → tl.load(offsets_ptr + own + 1)",
        ),
        ("triton_tiles._piece", "mask=own < sequences → mask=own <= sequences"),
    ],
    "a length fits both widths, 32 bits are cheaper": [
        ("walk.load_tile", "tl.load(line_ptr + 1).to(tl.int32) → tl.load(line_ptr + 1)"),
    ],
    "`tl.store` converts to the type that it stores": [
        ("walk.store_rows", "value.to(ptr.dtype.element_ty) → value"),
        ("triton_tiles.count_kernel", "(invalid == 0).to(tl.int64) → invalid == 0"),
        ("triton_tiles.expand_kernel", "kind.to(tl.int64) → kind"),
    ],
    "`tl.store` repeats a scalar": [
        ("walk.fill_rows", "tl.zeros((BLOCK, CHUNK), tl.float32) + value → value"),
        (
            "triton_forward.forward_kernel",
            "tl.full((BLOCK,), 0.0, tl.float32) + walk.fill_value(kind, float('-inf')) → "
            "walk.fill_value(kind, float('-inf'))",
        ),
    ],
    "0, NaN and -inf are the same after it": [
        ("walk.fill_rows", "tl.zeros((BLOCK, CHUNK), tl.float32) + value → tl.zeros((BLOCK, CHUNK), tl.float32) - value"),
        ("walk.fill_rows", "tl.zeros((BLOCK, CHUNK), tl.float32) → tl.zeros((BLOCK, CHUNK), tl.float16)"),
        ("triton_forward.forward_kernel", "tl.full((BLOCK,), 0.0, tl.float32) → tl.full((BLOCK,), 1.0, tl.float32)"),
        ("triton_forward.forward_kernel", "tl.full((BLOCK,), 0.0, tl.float32) → tl.full((BLOCK,), 0.0, tl.float16)"),
    ],
    "the mask of channels is true everywhere where D is a multiple of CHUNK": [
        ("walk._inside", "D % CHUNK → D"),
    ],
    "keys up to a query inside the tile are inside too; queries past the length meet zeros of q and do": [
        ("tile_math.exponentials", "visible & (keys[None, :] <= queries[:, None]) → keys[None, :] <= queries[:, None]"),
    ],
    "rows past the length of ds meet zeros of q and are not stored": [
        ("triton_backward.backward_kernel", "other=0.0 → other=1.0"),
    ],
    "channels of v past D only reach columns of o that are not stored": [
        (
            "triton_forward.forward_kernel",
            "walk.load_rows(v_ptr, v_row, keys, length, 0, D, CHUNK) → "
            "walk.load_rows(v_ptr, v_row, keys, length, 0, CHUNK, CHUNK)",
        ),
        (
            "triton_forward.forward_kernel",
            "walk.load_rows(v_ptr, v_row, keys, length, first, D, CHUNK) → "
            "walk.load_rows(v_ptr, v_row, keys, length, first, CHUNK, CHUNK)",
        ),
    ],
    "queries past the block are masked everywhere: only work": [
        ("triton_forward.forward_kernel", "range(0, BLOCK, ROWS) → range(0, BLOCK + ROWS, ROWS)"),
        ("triton_backward.backward_kernel", "BLOCK // ROWS → BLOCK"),
    ],
    "v is loaded once more": [
        ("triton_forward.forward_kernel", "first > 0 → first >= 0"),
    ],
    "`first` is a multiple of CHUNK": [
        ("triton_forward.forward_kernel", "first > 0 → first > 1"),
    ],
    "`_products` takes one step and gives the same": [
        ("triton_backward.backward_kernel", "CHUNK >= D → CHUNK > D"),
        ("triton_backward.backward_kernel", "CHUNK >= D → CHUNK > D (2)"),
    ],
    "D is a multiple of 8 and CHUNK a power of two from 16 on, so CHUNK is never D - 1": [
        ("triton_backward.backward_kernel", "CHUNK >= D → CHUNK >= D - 1"),
        ("triton_backward.backward_kernel", "CHUNK >= D → CHUNK >= D - 1 (2)"),
    ],
    "dv is computed and stored twice, the same": [
        ("triton_backward.backward_kernel", "STEPS > 1 → STEPS >= 1"),
        ("triton_backward.backward_kernel", "STEPS > 1 → STEPS >= 1 (2)"),
    ],
    "one step means one query head a kv head and all rows at once: both names hold the same": [
        (
            "triton_backward.backward_kernel",
            "walk.store_rows(dv_ptr + start * dkv_row + kv_head * D, dkv_row, keys, length, first, dv, D, CHUNK) → "
            "walk.store_rows(dv_ptr + start * dq_row + kv_head * D, dkv_row, keys, length, first, dv, D, CHUNK)",
        ),
        (
            "triton_backward.backward_kernel",
            "walk.store_rows(dv_ptr + start * dkv_row + kv_head * D, dkv_row, keys, length, first, dv, D, CHUNK) → "
            "walk.store_rows(dv_ptr + start * dkv_row + kv_head * D, dq_row, keys, length, first, dv, D, CHUNK)",
        ),
        (
            "triton_backward.backward_kernel",
            "walk.store_rows(dv_ptr + start * dkv_row + kv_head * D, dkv_row, keys, length, first, dv, D, CHUNK) → "
            "walk.store_rows(dv_ptr + start * dkv_row + kv_head * D, dkv_row, queries, length, first, dv, D, CHUNK)",
        ),
    ],
    "`score_gradient` leaves these zeros out": [
        ("triton_backward.backward_kernel", "(ROWS,) → (BLOCK,)"),
        ("triton_backward.backward_kernel", "tl.zeros((ROWS,), tl.float32) → tl.zeros((ROWS,), tl.float16)"),
    ],
    "what is loaded past the last sequence is masked wherever it is used": [
        (
            "triton_tiles._piece",
            "tl.load(offsets_ptr + own + 1, mask=own < sequences, other=0) → "
            "tl.load(offsets_ptr + own + 1, mask=own < sequences, other=1)",
        ),
        (
            "triton_tiles._piece",
            "tl.load(offsets_ptr + own + 1, mask=own < sequences, other=0) → "
            "tl.load(offsets_ptr + own + 1, mask=own < sequences, other=-1)",
        ),
    ],
    "a sum that wraps is found by `start >= 0` and by `used <= total_rows`; everything else by the checks before it": [
        ("triton_tiles._piece", "(start >= 0) & (start <= after) → start <= after"),
        ("triton_tiles._piece", "start >= 0 → start >= -1"),
        ("triton_tiles._piece", "(used >= 0) & (used <= total_rows) → used >= 0"),
        ("triton_tiles._piece", "used <= total_rows → used <= total_rows + 1"),
    ],
    "a step past the last piece is masked everywhere: only work": [
        ("triton_tiles.count_kernel", "range(0, pieces, STEP) → range(0, pieces + STEP, STEP)"),
    ],
    "the piece past the last has no rows and is valid, and what it stores is stored over": [
        ("triton_tiles.count_kernel", "piece < pieces → piece <= pieces"),
    ],
    "pieces past the last come after all others, are valid and are not stored": [
        ("triton_tiles.count_kernel", "inside & (rows > 0) → rows > 0"),
        ("triton_tiles.count_kernel", "inside & (valid == 0) → valid == 0"),
    ],
    "only whether it is 0 matters": [
        (
            "triton_tiles.count_kernel",
            "invalid += tl.sum((inside & (valid == 0)).to(tl.int32), 0) → "
            "invalid -= tl.sum((inside & (valid == 0)).to(tl.int32), 0)",
        ),
    ],
    "`tl.sum` adds flags in 32 bits": [
        ("triton_tiles.count_kernel", "(inside & (valid == 0)).to(tl.int32) → inside & (valid == 0)"),
    ],
    "a scalar that becomes a block in a loop: the interpreter lets it, the compiler refuses it (test_tiles.py on a GPU)": [
        ("triton_tiles.expand_kernel", "tl.full((STEP,), 0, tl.int32) + (pieces - 1) → pieces - 1"),
    ],
    "a bisection that has ended stays where it is": [
        ("triton_tiles.expand_kernel", "range(bisections) → range(bisections + 1)"),
    ],
}
