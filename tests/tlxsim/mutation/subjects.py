"""The kernels that are mutated, and what the simulator says of one of them, mutated or not."""

from __future__ import annotations

import dataclasses
import importlib.util
import linecache
import tempfile
from pathlib import Path
from types import ModuleType

KERNELS = Path(__file__).parents[1] / "kernels"
ARCHS = {"hopper_gemm": "sm_90", "blackwell_gemm": "sm_100", "hopper_attention": "sm_90"}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a simulation said.

    Args:
        codes: names of the codes of its errors.
        warnings: names of the codes of its warnings.
        silent: schedules without an error.
        right: whether the output was right after the last schedule.
        refused: why the frontend or the simulator did not take the kernel.
    """

    codes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    right: bool = False
    refused: str = ""
    text: str = dataclasses.field(default="", compare=False)

    @property
    def kind(self) -> str:
        if self.refused:
            return "refused"
        if self.codes or self.warnings:
            return "reported" if self.codes else "warned"
        return "missed" if self.right else "wrong output"


def source(kernel: str) -> str:
    return (KERNELS / f"{kernel}.py").read_text()


def load(text: str, name: str = "mutated") -> ModuleType:
    """A module from its source, in a file of its own, since Triton and the findings read the lines of a kernel."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", prefix=f"{name}_", delete=False) as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location(Path(file.name).stem, file.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    linecache.getlines(file.name)
    Path(file.name).unlink()
    return module


def simulate(module: ModuleType, arch: str, schedules: int | tuple[str, ...], level: str = "ttir", seed: int = 0) -> Outcome:
    """Run a kernel module's own launch."""
    import tlxsim
    from tlxsim.frontend import FrontendError

    launched = module.launch("cpu")
    try:
        with tlxsim.simulate(arch, schedules, level=level, budgets=False, trace=False, seed=seed) as sim:
            module.start(launched)
    except (FrontendError, tlxsim.Unsupported) as error:
        return Outcome(refused=f"{type(error).__name__}: {error}".split("\n")[0])
    findings, names = sim.report.findings, sim.report.launches[0]["schedules"]
    errors = sim.report.errors
    loud = {name for finding in findings for name in finding.schedules}
    return Outcome(
        tuple(sorted({finding.code.name for finding in errors})),
        tuple(sorted({finding.code.name for finding in findings if finding not in errors})),
        tuple(name for name in names if name not in loud),
        launched.right(),
        text="\n\n".join(finding.text() for finding in findings),
    )
