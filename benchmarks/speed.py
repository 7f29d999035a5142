"""Time the default GPU backend against the streaming limit in the same run.

    python benchmarks/speed.py --json benchmarks/results/h200-speed.json

Medians of CUDA events with the L2 cache cleared between runs (triton.testing.do_bench); bf16; compilation and warm-up are
outside.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

import torch
from triton.testing import do_bench

from blockattn import TileTable, block_attention
from blockattn.bench.batch import nbytes
from blockattn.bench.limit import Limit
from blockattn.bench.machine import describe
from blockattn.bench.workloads import WORKLOADS, Workload


def measure_workload(workload: Workload, limit: Limit) -> list[dict]:
    offsets = torch.nn.functional.pad(workload.lengths().cumsum(0), (1, 0)).cuda()
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
    for direction, run, moved in (
        ("forward", forward, nbytes(workload, total_rows, "forward")),
        ("backward", backward, nbytes(workload, total_rows, "backward")),
    ):
        low, median, high = do_bench(run, warmup=50, rep=300, quantiles=[0.2, 0.5, 0.8])
        rows.append(
            dict(
                workload=workload.name, direction=direction, ms=median, ms_p20=low, ms_p80=high, rows=total_rows,
                bytes=moved, tbs=moved / median * 1e-9, share=limit.ms(moved, direction) / median,
            )
        )  # fmt: skip
        print(f"{workload.name:14} {direction:9} {median:8.3f} ms  {rows[-1]['share']:.3f} of the limit", flush=True)
    return rows


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
        machine=describe(torch.device("cuda"), arguments.commit),
        limit=limit.values(),
    )
    print(result)
    result["rows"] = [row for workload in chosen for row in measure_workload(workload, limit)]
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
