"""Where a kernel can arrive on a barrier: read from its IR, for messages about a deadlock."""

from __future__ import annotations

import dataclasses
from typing import Any

from .naming import base_name

ARRIVALS = {
    "ttng.arrive_barrier", "ttng.barrier_expect", "ttng.tc_gen5_commit", "ttng.tc_gen5_mma", "tlx.warp_barrier_arrive",
    "ttng.async_copy_mbarrier_arrive", "ttng.async_tma_copy_global_to_local", "ttng.async_tma_gather",
}  # fmt: skip
SAME_BARRIERS = ("ttg.memdesc_", "tlx.local_alias", "tlx.require_layout")


@dataclasses.dataclass(frozen=True)
class Site:
    """A line that arrives, and the number of its task: 0 for the default one, then the partitions in order."""

    location: Any
    task: int


def arrive_sites(region: list) -> dict[str, list[Site]]:
    """For each barrier's name the lines that can arrive on it."""
    found: dict[str, list[Site]] = {}
    _walk(region, {}, 0, found)
    return found


def _walk(region: list, names: dict[str, str], task: int, found: dict[str, list[Site]]) -> None:
    for block in region:
        for op in block.ops:
            if op.name == "ttg.local_alloc":
                names[op.results[0]] = base_name(op)
            elif op.name.startswith(SAME_BARRIERS) and op.operands[0] in names:
                names[op.results[0]] = names[op.operands[0]]
            elif op.name in ARRIVALS:
                for operand in dict.fromkeys(op.operands):
                    if operand in names:
                        found.setdefault(names[operand], []).append(Site(op.loc, task))
            for inner in op.regions:
                _walk(inner, names, task, found)
            for number, partition in enumerate(op.partitions, 1):
                captured = {arg: names[x] for arg, x in zip(partition.args, op.operands) if x in names}
                _walk(partition.region, captured, number, found)
