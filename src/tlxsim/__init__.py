"""tlxsim: run and check Triton and TLX kernels on a CPU.

    with tlxsim.simulate(arch="sm_90", schedules=8) as sim:
        kernel[grid](x, y, BLOCK=64)          # an ordinary launch, on CPU tensors
    sim.report.raise_if_errors()

What is modelled, and what is not, is written in docs/tlxsim/model.md.
"""

from __future__ import annotations

from typing import Any

from .findings import Code, Finding, Report, Severity, SimulationError, Unsupported

__all__ = ["Code", "Finding", "Report", "Session", "Severity", "SimulationError", "Unsupported", "simulate"]


def __getattr__(name: str) -> Any:
    """`simulate` and `Session` are imported when asked for: they need numpy and Triton."""
    if name in ("simulate", "Session", "Options"):
        from . import session

        return getattr(session, name)
    raise AttributeError(f"module 'tlxsim' has no attribute {name!r}")
