"""torch's scaled_dot_product_attention, each of its backends, on a batch of the full tiles: `[tiles, heads, block, D]`."""

from __future__ import annotations

import dataclasses
import functools

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ..batch import Batch
from . import Prepared, needs_cuda

LEAST_FULL = 0.9  # of the rows in full blocks, for a figure that stands for the workload


def full_tiles_obstacle(batch: Batch) -> str | None:
    """A dense batch has no place for shorter tiles."""
    share = len(batch.full_rows) / max(1, batch.total_rows)
    return None if share >= LEAST_FULL else f"it takes full blocks only, and they hold {share:.0%} of the rows"


def to_tiles(x: Tensor, rows: Tensor, block_size: int) -> Tensor:
    """`[T, H, D]` to `[tiles, H, block, D]`."""
    return x[rows].unflatten(0, (-1, block_size)).transpose(1, 2).contiguous()


def from_tiles(o: Tensor) -> Tensor:
    """Back to `[tiles · block, H, D]`."""
    return o.transpose(1, 2).flatten(0, 1)


@dataclasses.dataclass(frozen=True)
class Sdpa:
    """One backend of scaled_dot_product_attention."""

    backend: SDPBackend
    short: str

    @property
    def name(self) -> str:
        return f"sdpa-{self.short}"

    @property
    def about(self) -> str:
        return f"scaled_dot_product_attention on full tiles, {self.backend.name}"

    def obstacle(self, batch: Batch) -> str | None:
        on_cpu = self.backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH) and batch.device.type == "cpu"
        return (None if on_cpu else needs_cuda(batch)) or full_tiles_obstacle(batch)

    def prepare(self, batch: Batch) -> Prepared:
        grouped = batch.workload.q_heads != batch.workload.kv_heads

        def attend(q, k, v):
            with sdpa_kernel(self.backend):
                return scaled_dot_product_attention(q, k, v, enable_gqa=grouped)

        enter = functools.partial(to_tiles, rows=batch.full_rows, block_size=batch.workload.block_size)
        return Prepared(attend, enter, from_tiles, batch.full_rows, "tiles")


PROVIDERS = (
    Sdpa(SDPBackend.FLASH_ATTENTION, "flash"),
    Sdpa(SDPBackend.EFFICIENT_ATTENTION, "efficient"),
    Sdpa(SDPBackend.CUDNN_ATTENTION, "cudnn"),
    Sdpa(SDPBackend.MATH, "math"),
)
