"""Time what an eager call costs the host, and the tile table of a batch, on a GPU.

    python benchmarks/host.py --json benchmarks/results/h200-host.json

The host time is that of a call on one block, whose kernel is shorter than its launch. The table's two kernels are shorter
than their launches too, so they are timed in a CUDA graph as well.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
from triton.testing import do_bench, do_bench_cudagraph

from blockattn import TileTable, block_attention
from blockattn.bench.machine import describe
from blockattn.bench.workloads import W128


def measure_table() -> dict:
    """Microseconds of making the table of W128, 1152 sequences."""
    offsets = torch.nn.functional.pad(W128.lengths().cumsum(0), (1, 0)).cuda()
    total_rows = int(offsets[-1])

    def build() -> TileTable:
        return TileTable.from_offsets(offsets, total_rows=total_rows, block_size=W128.block_size)

    return dict(workload=W128.name, graph_us=do_bench_cudagraph(build) * 1e3, eager_us=do_bench(build) * 1e3)


def measure_host(calls: int = 2000) -> dict:
    """Microseconds of an eager forward with a ready table; training records for autograd."""
    q = torch.randn(64, 4, 64, device="cuda", dtype=torch.bfloat16)
    table = TileTable.from_offsets(torch.tensor([0, 64], device="cuda"), total_rows=64)

    def per_call() -> float:
        for _ in range(200):
            block_attention(q, q, q, table)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            block_attention(q, q, q, table)
        elapsed = time.perf_counter() - start
        torch.cuda.synchronize()
        return elapsed / calls * 1e6

    inference = statistics.median(per_call() for _ in range(9))
    q.requires_grad_()
    training = statistics.median(per_call() for _ in range(9))
    return dict(inference_us=inference, training_us=training)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="file to write")
    parser.add_argument("--commit", help="of the sources, for the JSON")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/host.py needs an NVIDIA GPU")
    machine = describe(torch.device("cuda"), arguments.commit)
    result = dict(machine=machine, host=measure_host(), table=measure_table())
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
