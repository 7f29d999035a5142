"""Run every combination of the op's options on a GPU against the fp64 oracle, both directions, and count what fails.

    python benchmarks/coverage.py --json benchmarks/results/h200-coverage.json

Head dims × blocks × dtypes × causal × shift × GQA × strided, with NaN in the rows that no sequence uses, and the same
without unused rows. Cases are spread over processes, since most of the time is compilation.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
import os
import pathlib
import sys
import time
import zlib

import torch

from blockattn.testing import Case, compare, make_inputs, run

HEAD_DIMS = (16, 24, 40, 64, 72, 128, 136, 200, 256)
BLOCKS = (16, 32, 64, 128)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def cases() -> list[Case]:
    """One batch for each combination: empty, one-row, short, full and several-block sequences."""
    found = []
    for head_dim, block, dtype, causal, shifted, gqa, strided, unused in itertools.product(
        HEAD_DIMS, BLOCKS, DTYPES, (False, True), (False, True), (False, True), (False, True), (False, True)
    ):
        spans = (0, 1, block - 1, block, block + 1, 3 * block + 5, 0)
        used = (0, 1, block - 5, block, block // 2, 3 * block + 2, 0)
        found.append(
            Case(
                spans, used=used if unused else None, before=3 * unused, after=2 * unused, q_heads=4,
                kv_heads=2 if gqa else 4, head_dim=head_dim, block_size=block, shift=5 * shifted, causal=causal,
                dtype=dtype, layout="packed" if strided else "contiguous",
                grad_layout="packed" if strided else "contiguous",
            )
        )  # fmt: skip
    return found


def rotary_cases() -> list[Case]:
    """The same batch with rotary embedding: kinds of table, conventions, whole and partial R, apart and packed.

    Causal masks, rotate_v, grouped heads, table dtypes and start positions take turns over these.
    """
    found = []
    for number, (head_dim, block, dtype, kind, interleaved, partial, packed) in enumerate(
        itertools.product(HEAD_DIMS, BLOCKS, DTYPES, ("token", "position"), (False, True), (False, True), ("", "flat"))
    ):
        spans = (0, 1, block - 1, block, block + 1, 3 * block + 5, 0)
        found.append(
            Case(
                spans, before=3, after=2, q_heads=4, kv_heads=(4, 2)[number // 2 % 2], head_dim=head_dim, block_size=block,
                causal=number % 3 == 0, shift=5 * (number % 5 == 0), dtype=dtype, layout="packed", rotary=kind,
                grad_layout=("contiguous", "packed")[number // 4 % 2], dim=head_dim // 8 * 4 + 2 if partial else 0,
                interleaved=interleaved, rotate_v=number // 3 % 2 == 0, starts=kind == "position" and number % 7 < 4,
                table_dtype=(torch.float32, torch.bfloat16, torch.float16)[number // 5 % 3], packed=packed,
            )
        )  # fmt: skip
    return found


def check(case: Case) -> tuple[str, list[str]]:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    inputs = make_inputs(case, "cuda", seed=zlib.crc32(str(case).encode()))
    try:
        return str(case), compare(case, inputs, run(case, inputs, "triton"), multiplies_in_tf32=True)
    except Exception as error:
        return str(case), [f"{type(error).__name__}: {error}"[:300]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="file to write")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--skip", type=int, default=0, help="leave out the first cases, which an earlier run has checked")
    parser.add_argument("--rotary", action="store_true", help="the cases with rotary embedding instead")
    parser.add_argument("--seconds", type=float, help="stop then and report the cases checked so far")
    parser.add_argument("--commit", help="of the sources, for the JSON")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/coverage.py needs an NVIDIA GPU")
    every = rotary_cases() if arguments.rotary else cases()
    # Cases that share a compiled kernel stay together.
    chosen = sorted(every, key=lambda c: (c.causal, c.kv_heads, c.layout, str(c.dtype), c.head_dim, c.block_size))[
        arguments.skip :
    ]
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    results = []
    pool = concurrent.futures.ProcessPoolExecutor(arguments.workers, mp_context=context)
    pending = [pool.submit(check, case) for case in chosen]
    try:
        for done in concurrent.futures.as_completed(pending, timeout=arguments.seconds):
            results.append(done.result())
    except TimeoutError:
        print(f"stopped after {arguments.seconds} s: {len(results)} of {len(chosen)} cases checked")
    for process in list(pool._processes.values()):
        process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)
    failures = {name: lines for name, lines in results if lines}
    import triton

    summary = dict(
        gpu=torch.cuda.get_device_name(), commit=arguments.commit, torch=torch.__version__, triton=triton.__version__,
        dimensions=dict(head_dims=HEAD_DIMS, blocks=BLOCKS, dtypes=[str(d) for d in DTYPES],
                        flags=["rotary kind", "interleaved", "partial R", "packed"] if arguments.rotary else
                        ["causal", "shift", "gqa", "strided", "nan_in_unused_rows"]),
        directions=["forward", "backward"], all_cases=len(every), skipped=arguments.skip,
        cases=len(results), passed=len(results) - len(failures), failed=len(failures),
        seconds=round(time.monotonic() - start), failures=failures,
    )  # fmt: skip
    print(json.dumps({**summary, "failures": dict(list(failures.items())[:20])}, indent=1))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(summary, indent=1) + "\n")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
