"""This library's backends, with a tile table made beforehand, as a model with several layers has it."""

from __future__ import annotations

import dataclasses
import functools

from blockattn import TileTable, block_attention, dispatch

from ..batch import Batch
from . import Prepared

MAX_REFERENCE_TILES = 1024


def tile_table(batch: Batch) -> TileTable:
    """The batch's table, made without reading its contents."""
    return TileTable.from_offsets(
        batch.offsets, total_rows=batch.total_rows, block_size=batch.workload.block_size, check_offsets=False
    )


@dataclasses.dataclass(frozen=True)
class Ours:
    """`blockattn.block_attention` with one backend."""

    backend: str

    @property
    def name(self) -> str:
        return f"blockattn-{self.backend}"

    @property
    def about(self) -> str:
        return f"block_attention(q, k, v, table, backend={self.backend!r})"

    def obstacle(self, batch: Batch) -> str | None:
        if self.backend == "reference" and len(batch.lengths) > MAX_REFERENCE_TILES:
            return f"a Python loop over blocks, run up to {MAX_REFERENCE_TILES} of them only"
        if self.backend == "reference" and batch.workload.graph and batch.device.type == "cuda":
            return "reads offsets on the host, which a CUDA graph cannot hold"
        try:
            dispatch.require(self.backend, batch.device, batch.q.dtype)
        except ValueError as error:
            return str(error).split(": ", 1)[1].removesuffix(". backend=None picks one that can")
        return None

    def prepare(self, batch: Batch) -> Prepared:
        return Prepared(functools.partial(block_attention, offsets=tile_table(batch), backend=self.backend))


PROVIDERS = tuple(Ours(backend) for backend in ("triton", "torch", "reference"))
