"""Time the torch backend on the CPU against the same scaled_dot_product_attention on tiles that were padded beforehand.

    python benchmarks/torch_backend.py --json benchmarks/results/cpu-torch-backend.json

One thread and the process's CPU time, least of several runs, so that other work on the machine matters little.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from blockattn import TileTable, block_attention

# dtype, query heads, kv heads, head dim, rows of a sequence, sequences, block size
SHAPES = [
    (dtype, *shape)
    for dtype in (torch.float32, torch.bfloat16)
    for shape in (
        (4, 4, 64, 1024, 16, 64), (4, 4, 64, 100, 160, 64), (8, 2, 64, 1000, 8, 64), (4, 4, 128, 1024, 8, 64),
        (2, 2, 16, 200, 80, 16), (4, 4, 64, 34, 500, 64),
    )
]  # fmt: skip


def least_ms(function: Callable, runs: int = 7) -> float:
    function()
    times = []
    for _ in range(runs):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times) * 1e3


def measure(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, rows: int, sequences: int, block: int) -> dict:
    total = rows * sequences
    q, k, v, grad = (torch.randn(total, h, head_dim, dtype=dtype) for h in (heads, kv_heads, kv_heads, heads))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    table = TileTable.from_offsets(torch.arange(0, total + 1, rows), total_rows=total, block_size=block)
    a_sequence = -(-rows // block)
    tiles = a_sequence * sequences
    padded = [torch.randn(tiles, h, block, head_dim, dtype=dtype, requires_grad=True) for h in (heads, kv_heads, kv_heads)]
    padded_grad = torch.randn(tiles, heads, block, head_dim, dtype=dtype)
    mask = None
    if rows % block:
        mask = torch.ones(tiles, 1, 1, block, dtype=torch.bool)
        mask[a_sequence - 1 :: a_sequence, :, :, rows % block :] = False

    def ours() -> torch.Tensor:
        return block_attention(*leaves, table, backend="torch")

    def dense() -> torch.Tensor:
        return scaled_dot_product_attention(*padded, attn_mask=mask, enable_gqa=heads != kv_heads)

    with torch.no_grad():
        forward = least_ms(ours), least_ms(dense)
    both = least_ms(lambda: ours().backward(grad)), least_ms(lambda: dense().backward(padded_grad))
    return dict(
        dtype=str(dtype), heads=heads, kv_heads=kv_heads, head_dim=head_dim, rows=rows, sequences=sequences, block=block,
        forward_ms=forward[0], forward_ratio=forward[0] / forward[1], training_ms=both[0], training_ratio=both[0] / both[1],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    measure(*SHAPES[0])  # warms up the allocator and the libraries
    results = []
    for shape in SHAPES:
        results.append(measure(*shape))
        row = results[-1]
        print(
            f"{shape}: forward {row['forward_ratio']:.2f}, forward and backward {row['training_ratio']:.2f} of SDPA's time"
        )
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(dict(torch=torch.__version__, rows=results), indent=1) + "\n")


if __name__ == "__main__":
    main()
