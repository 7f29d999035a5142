"""Mutants that are no faults, each class with its proof and the level that it holds at; `run.py` runs them all the same.

A level is "ttir", the kernel as written, or "both": as the compiler has made it ("fenced") as well; checked there.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Equivalence:
    """Why mutants are equivalent, where that holds, and which: for each kernel their texts."""

    level: str
    proof: str
    mutants: dict[str, tuple[str, ...]]


EQUIVALENT: tuple[Equivalence, ...] = (
    Equivalence(
        "both",
        "the arrival that the barrier counts is the expectation's own, so that no phase can complete before it; the count "
        "of bytes is signed and may fall below zero before it is raised",
        {
            "hopper_gemm": (
                "load_tiles: moved: tlx.barrier_expect_bytes(full[slot], (CONSUMERS * BM + BN) * BK * 2) → "
                "below for part in tl.static_range(CONSUMERS)",
            ),
            "blackwell_gemm": (
                "load_tiles: moved: tlx.barrier_expect_bytes(full[slot], (BM + BN) * BK * 2) → below async_descriptor_load",
            ),
            "hopper_attention": (
                "load_tiles: moved: tlx.barrier_expect_bytes(full[slot], 3 * ROWS * D * 2) → below async_descriptor_load",
            ),
        },
    ),
    Equivalence(
        "both",
        "the buffer is freed a little later, after a wait for the task's own store, which ends without any other task",
        {
            "hopper_gemm": (
                "multiply: moved: tlx.barrier_arrive(empty[(turn - 1) % SLOTS], 1) → below async_descriptor_store_wait",
            ),
            "blackwell_gemm": (
                "store_tiles: moved: tlx.barrier_arrive(acc_empty[place], 1) → below async_descriptor_store_wait",
            ),
        },
    ),
    Equivalence(
        "both",
        "the ordinary store and the TMA store behind it are one task's, and no other task's copy writes the buffer: the "
        "compiler puts its own fence between them, which level fenced shows and checks",
        {
            "hopper_gemm": (
                "multiply: dropped: tlx.fence_async_shared() → (nothing)",
                "multiply: moved: tlx.fence_async_shared() → below async_descriptor_store",
                "multiply: moved: tlx.fence_async_shared() → above local_store",
            ),
            "blackwell_gemm": (
                "store_tiles: dropped: tlx.fence_async_shared() → (nothing)",
                "store_tiles: moved: tlx.fence_async_shared() → below async_descriptor_store",
                "store_tiles: moved: tlx.fence_async_shared() → above local_store",
            ),
        },
    ),
    Equivalence(
        "both",
        "the compiler puts its own fence between the ordinary store and the TMA store of one task; what another task's TMA "
        "load needs is a fence before the arrival that frees the buffer, and it still has one",
        {"hopper_attention": ("attend: moved: tlx.fence_async_shared() → below async_descriptor_store",)},
    ),
    Equivalence(
        "both",
        "it waits for every product instead of all but the last: slower, and nothing is freed earlier",
        {"hopper_gemm": ("multiply: count: tlx.async_dot_wait(1, acc) → tlx.async_dot_wait(0, acc)",)},
    ),
    Equivalence(
        "both",
        "slots and phases come from the number of slots, so that nobody touches the buffer or barrier that is added",
        {
            "hopper_gemm": (
                "gemm: count: a_smem: SLOTS * CONSUMERS → SLOTS * CONSUMERS + 1",
                "gemm: count: b_smem: SLOTS → SLOTS + 1",
                "gemm: count: c_smem: CONSUMERS → CONSUMERS + 1",
                "gemm: count: full: SLOTS → SLOTS + 1",
                "gemm: count: empty: SLOTS → SLOTS + 1",
            ),
            "blackwell_gemm": (
                "gemm: count: a_smem: SLOTS → SLOTS + 1",
                "gemm: count: b_smem: SLOTS → SLOTS + 1",
                "gemm: count: c_smem: 1 → 2",
                "gemm: count: acc: PLACES → PLACES + 1",
                "gemm: count: full: SLOTS → SLOTS + 1",
                "gemm: count: empty: SLOTS → SLOTS + 1",
                "gemm: count: acc_full: PLACES → PLACES + 1",
                "gemm: count: acc_empty: PLACES → PLACES + 1",
            ),
            "hopper_attention": (
                "attention: count: q_smem: SLOTS → SLOTS + 1",
                "attention: count: k_smem: SLOTS → SLOTS + 1",
                "attention: count: v_smem: SLOTS → SLOTS + 1",
                "attention: count: full: SLOTS → SLOTS + 1",
                "attention: count: empty: SLOTS → SLOTS + 1",
            ),
        },
    ),
)


def find(kernel: str, mutant: str) -> Equivalence | None:
    return next((e for e in EQUIVALENT if mutant in e.mutants.get(kernel, ())), None)
