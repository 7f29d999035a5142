"""torch's FlexAttention, compiled, on full tiles laid end to end as one sequence, with a block mask made by hand.

Its backward has no configuration for mask blocks below 128 rows (torch 2.11 raises NoValidChoicesError for 64, whatever
`kernel_options` say), so smaller blocks are hidden inside mask blocks of 128 by a mask_mod. `create_block_mask` and
`BlockMask.from_kv_blocks` would take (rows / 128)² index entries; the mask here names the one block that each block meets.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ..batch import Batch
from . import Prepared, graph_obstacle, needs_cuda
from .sdpa import full_tiles_obstacle

MASK_BLOCK = 128


def block_diagonal(rows: int, block_size: int, device: torch.device) -> BlockMask:
    """Every mask block meets itself: whole when it is one of our blocks, else as far as rows share one."""
    count = -(-rows // MASK_BLOCK)
    some = torch.ones(1, 1, count, dtype=torch.int32, device=device)
    itself = torch.arange(count, dtype=torch.int32, device=device).view(1, 1, count, 1)
    whole = block_size == MASK_BLOCK
    partial = (torch.zeros_like(some), torch.zeros_like(itself)) if whole else (some, itself)
    full = (some, itself) if whole else (None, None)
    return BlockMask(
        seq_lengths=(rows, rows),
        kv_num_blocks=partial[0],
        kv_indices=partial[1],
        full_kv_num_blocks=full[0],
        full_kv_indices=full[1],
        q_num_blocks=partial[0],
        q_indices=partial[1],
        full_q_num_blocks=full[0],
        full_q_indices=full[1],
        BLOCK_SIZE=(MASK_BLOCK, MASK_BLOCK),
        mask_mod=lambda batch, head, query, key: query // block_size == key // block_size,
    )


def to_sequence(x: Tensor, rows: Tensor) -> Tensor:
    """`[T, H, D]` to `[1, H, full rows, D]`."""
    return x[rows].transpose(0, 1).contiguous()[None]


def from_sequence(o: Tensor) -> Tensor:
    """Back to `[full rows, H, D]`."""
    return o[0].transpose(0, 1)


class Flex:
    name = "flex"
    about = "torch.compile(flex_attention) on full tiles, BlockMask of 128-blocks made by hand, mask_mod for smaller blocks"

    def obstacle(self, batch: Batch) -> str | None:
        return needs_cuda(batch) or full_tiles_obstacle(batch) or graph_obstacle(batch)

    def prepare(self, batch: Batch) -> Prepared:
        mask = block_diagonal(len(batch.full_rows), batch.workload.block_size, batch.device)
        grouped = batch.workload.q_heads != batch.workload.kv_heads
        attend = functools.partial(torch.compile(flex_attention, dynamic=False), block_mask=mask, enable_gqa=grouped)
        enter = functools.partial(to_sequence, rows=batch.full_rows)
        return Prepared(attend, enter, from_sequence, batch.full_rows, "sequence")


PROVIDERS = (Flex(),)
