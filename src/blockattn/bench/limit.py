"""The yardstick: how long a kernel that only streams the same bytes takes on this GPU, in the same run.

Bytes count each tensor once. Bandwidth is that of a kernel with the same mix: 3 reads to 1 write for a forward, 4 to 3 for
a backward. `share` is the streaming time over the measured time, 1.0 at the limit. On an H200 a run counts only if the two
mixes reach the floors below; otherwise something else was using the card.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.testing import do_bench

MIXES = {"forward": (3, 1), "backward": (4, 3)}  # streams read and written
H200_FLOORS = {"forward": 4.40e12, "backward": 4.13e12}  # bytes a second


@triton.jit
def stream_kernel(source_ptr, target_ptr, elements, READS: tl.constexpr, WRITES: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < elements
    total = tl.zeros((BLOCK,), tl.float32)
    for stream in tl.static_range(READS):
        total += tl.load(source_ptr + stream * elements + index, mask=inside)
    for stream in tl.static_range(WRITES):
        tl.store(target_ptr + stream * elements + index, total.to(target_ptr.dtype.element_ty), mask=inside)


class Limit:
    """Streaming bandwidth of both mixes in bytes a second, measured once on bf16 streams of `elements` values each."""

    def __init__(self, elements: int = 1 << 29, device: str = "cuda"):
        source = torch.empty((4, elements), device=device, dtype=torch.bfloat16).normal_()
        target = torch.empty((3, elements), device=device, dtype=torch.bfloat16)
        self.bandwidth = {}
        for direction, (reads, writes) in MIXES.items():
            ms = do_bench(lambda r=reads, w=writes: self._stream(source, target, r, w), return_mode="median")
            self.bandwidth[direction] = (reads + writes) * elements * source.element_size() / (ms * 1e-3)

    @staticmethod
    def _stream(source: torch.Tensor, target: torch.Tensor, reads: int, writes: int) -> None:
        elements, block = source.shape[1], 4096
        stream_kernel[(triton.cdiv(elements, block),)](source, target, elements, reads, writes, block, num_warps=4)

    def share(self, ms: float, nbytes: int, direction: str) -> float:
        """Streaming time of `nbytes` over `ms`."""
        return nbytes / self.bandwidth[direction] / (ms * 1e-3)

    def trusted(self) -> bool:
        """False on an H200 whose bandwidth is below what it reaches undisturbed; True elsewhere."""
        if "H200" not in torch.cuda.get_device_name():
            return True
        return all(self.bandwidth[direction] >= floor for direction, floor in H200_FLOORS.items())
