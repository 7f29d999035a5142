"""How fast the simulator is: ms for a 64-row tile of a forward block-attention kernel, D = 64, and compile + parse seconds.

    OPENBLAS_NUM_THREADS=1 python benchmarks/tlxsim_speed.py [--tiles 64 256 1024 4096] [--json FILE]

Level ttir, one schedule, one program, one core, one BLAS thread. A tile's time must not grow with the tiles of a program.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "0"  # before anything imports triton
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "tlxsim"))

import torch
from kernels import hopper_attention

import tlxsim

TARGET_MS, TARGET_SECONDS = 1.5, 0.5


def measure(tiles: int, schedule: str, trace: bool) -> tuple[float, float]:
    """One launch, whose output must be right: ms a tile without the frontend, and the frontend's seconds (it caches)."""
    launched = hopper_attention.launch("cpu", tiles)
    began = time.perf_counter()
    with tlxsim.simulate("sm_90", schedules=(schedule,), budgets=False, trace=trace) as sim:
        hopper_attention.start(launched)
    seconds = time.perf_counter() - began
    sim.report.raise_if_errors()
    assert launched.right(), f"off by {launched.error()}"
    frontend = sim.report.launches[0]["frontend_seconds"]
    return (seconds - frontend) / tiles * 1e3, frontend


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tiles", type=int, nargs="+", default=[64, 256, 1024, 4096], help="tiles of a program")
    parser.add_argument("--schedule", default="random:0", help="eager, late or random:N")
    parser.add_argument("--repeat", type=int, default=3, help="the median of so many runs, one for the largest")
    parser.add_argument("--trace", action="store_true", help="keep a trace as well")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    _, seconds = measure(4, options.schedule, options.trace)
    print(f"compile + parse: {seconds:.3f} s")
    rows = []
    for tiles in options.tiles:
        repeat = options.repeat if tiles <= 1024 else 1
        times = [measure(tiles, options.schedule, options.trace)[0] for _ in range(repeat)]
        rows.append(dict(tiles=tiles, ms_a_tile=round(statistics.median(times), 4)))
        print(f"{tiles:5} tiles: {rows[-1]['ms_a_tile']:.3f} ms a tile", flush=True)
    if options.json:
        options.json.write_text(json.dumps(dict(schedule=options.schedule, frontend_seconds=seconds, rows=rows), indent=1))
    slow = seconds > TARGET_SECONDS or any(row["ms_a_tile"] > TARGET_MS for row in rows)
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
