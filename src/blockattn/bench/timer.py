"""Times of a call in milliseconds (triton.testing on a GPU, torch.utils.benchmark on a CPU), and tiny calls in a graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

Call = Callable[[], object]
GPU_MS, CPU_MS = 15, 50  # of measuring a call for, each time that its turn comes


def samples(call: Call, device: torch.device) -> list[float]:
    """Some times of a call; on a GPU with the L2 cache cleared before each."""
    if device.type == "cuda":
        from triton.testing import do_bench

        return do_bench(call, warmup=1, rep=GPU_MS, return_mode="all")
    from torch.utils.benchmark import Timer

    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return [seconds * 1e3 for seconds in timer.blocked_autorange(min_run_time=CPU_MS * 1e-3).times]


def captured(calls: list[Call], stream: torch.cuda.Stream) -> Call:
    """A CUDA graph of the calls, one after the other, on the stream that made their tensors."""
    for call in calls:
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outputs = [call() for call in calls]

    def replay() -> list:
        graph.replay()
        return outputs  # they live as long as the graph

    return replay
