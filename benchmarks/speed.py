"""Time the default GPU backend against the streaming limit in the same run, the tile table, and the host time of a call.

    python benchmarks/speed.py --json benchmarks/results/h200-speed.json

Medians of CUDA events with the L2 cache cleared between runs (triton.testing.do_bench); bf16; compilation and warm-up are
outside. The table is timed in a CUDA graph, since its two kernels are shorter than their launches.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time

import torch
import triton
from triton.testing import do_bench, do_bench_cudagraph

from blockattn import TileTable, block_attention
from blockattn.bench.limit import Limit
from blockattn.bench.workloads import WORKLOADS, Workload


def measure_workload(workload: Workload, limit: Limit) -> list[dict]:
    offsets = workload.offsets().cuda()
    total_rows = int(offsets[-1])
    generator = torch.Generator(device="cuda").manual_seed(0)

    def normal(heads: int) -> torch.Tensor:
        shape = (total_rows, heads, workload.head_dim)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)

    q, k, v, do = (normal(h) for h in (workload.q_heads, workload.kv_heads, workload.kv_heads, workload.q_heads))
    for x in (q, k, v):
        x.requires_grad_()
    table = TileTable.from_offsets(offsets, total_rows=total_rows, block_size=workload.block_size)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return block_attention(q, k, v, table)

    o = block_attention(q, k, v, table)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(o, (q, k, v), do, retain_graph=True)

    rows = []
    for direction, run, nbytes in (
        ("forward", forward, workload.forward_bytes(total_rows)),
        ("backward", backward, workload.backward_bytes(total_rows)),
    ):
        low, median, high = do_bench(run, warmup=50, rep=300, quantiles=[0.2, 0.5, 0.8])
        rows.append(
            dict(
                workload=workload.name, direction=direction, ms=median, ms_p20=low, ms_p80=high, rows=total_rows,
                bytes=nbytes, tbs=nbytes / median * 1e-9, share=limit.share(median, nbytes, direction),
            )
        )  # fmt: skip
        print(f"{workload.name:14} {direction:9} {median:8.3f} ms  {rows[-1]['share']:.3f} of the limit", flush=True)
    return rows


def measure_table(workload: Workload) -> dict:
    offsets = workload.offsets().cuda()
    total_rows = int(offsets[-1])

    def build() -> TileTable:
        return TileTable.from_offsets(offsets, total_rows=total_rows, block_size=workload.block_size)

    return dict(workload=workload.name, graph_us=do_bench_cudagraph(build) * 1e3, eager_us=do_bench(build) * 1e3)


def measure_host(calls: int = 2000) -> dict:
    """Host time of an eager forward of one block, with a ready table: the GPU is faster than the launches."""
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

    inference = sorted(per_call() for _ in range(5))[2]
    q.requires_grad_()
    training = sorted(per_call() for _ in range(5))[2]
    return dict(inference_us=inference, training_us=training)


def machine() -> dict:
    def output(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    return dict(
        gpu=torch.cuda.get_device_name(), driver=output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        torch=torch.__version__, triton=triton.__version__, python=sys.version.split()[0],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="file to write")
    parser.add_argument("--workload", nargs="*", help="names (default: all)")
    parser.add_argument("--commit", help="of the sources, for the JSON")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/speed.py needs an NVIDIA GPU")
    chosen = [w for w in WORKLOADS if not arguments.workload or w.name in arguments.workload]
    limit = Limit()
    result = dict(
        machine=machine(),
        commit=arguments.commit,
        limit_tbs={d: b * 1e-12 for d, b in limit.bandwidth.items()},
        trusted=limit.trusted(),
    )
    print(result)
    result["host"] = measure_host()
    result["table"] = measure_table(WORKLOADS[0])
    print(result["host"], result["table"], flush=True)
    result["rows"] = [row for workload in chosen for row in measure_workload(workload, limit)]
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
