"""The yardstick: how long a kernel that only streams the same bytes takes on this GPU, in the same run.

Bytes count each tensor once. Bandwidth is that of a kernel with the same mix: 3 reads to 1 write for a forward, 4 to 3 for a
backward; grouped heads read relatively more, and are held to the same mix. The share of the limit is the streaming time over
the measured time. On an H200 a run counts only if the two mixes reach the floors below; otherwise something else was using
the card.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.testing import do_bench

MIXES = {"forward": (3, 1), "backward": (4, 3)}  # streams read and written
H200_FLOORS = {"forward": 4.40e12, "backward": 4.13e12}  # bytes a second


@triton.jit
def stream_kernel(
    a_ptr, b_ptr, c_ptr, d_ptr, x_ptr, y_ptr, z_ptr, elements,
    READS: tl.constexpr, WRITES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < elements
    total = tl.load(a_ptr + index, mask=inside) + tl.load(b_ptr + index, mask=inside) + tl.load(c_ptr + index, mask=inside)
    if READS == 4:
        total += tl.load(d_ptr + index, mask=inside)
    tl.store(x_ptr + index, total, mask=inside)
    if WRITES == 3:
        tl.store(y_ptr + index, total, mask=inside)
        tl.store(z_ptr + index, total, mask=inside)


class Limit:
    """Streaming bandwidth of both mixes in bytes a second, measured once on seven bf16 tensors of `elements` values each."""

    def __init__(self, elements: int | None = None, device: str = "cuda"):
        if elements is None:  # a second of streaming on the largest GPUs, half of the free memory of small ones
            elements = min(840_000_000, torch.cuda.mem_get_info(device)[0] // 28)
        streams = [torch.empty(elements, device=device, dtype=torch.bfloat16).normal_() for _ in range(7)]
        grid = (triton.cdiv(elements, 4096),)
        self.bandwidth = {}
        for direction, (reads, writes) in MIXES.items():
            ms = do_bench(
                lambda r=reads, w=writes: stream_kernel[grid](*streams, elements, r, w, 4096), return_mode="median"
            )
            self.bandwidth[direction] = (reads + writes) * elements * streams[0].element_size() / (ms * 1e-3)

    def ms(self, nbytes: int, direction: str) -> float:
        """Streaming time of so many bytes with the mix of a direction."""
        return nbytes / self.bandwidth[direction] * 1e3

    def trusted(self) -> bool:
        """False on an H200 whose bandwidth is below what it reaches undisturbed; True elsewhere."""
        if "H200" not in torch.cuda.get_device_name():
            return True
        return all(self.bandwidth[direction] >= floor for direction, floor in H200_FLOORS.items())

    def values(self) -> dict[str, float | bool]:
        """Both mixes in TB/s and whether the run is trusted, for a result's JSON."""
        return {direction: value * 1e-12 for direction, value in self.bandwidth.items()} | {"trusted": self.trusted()}
