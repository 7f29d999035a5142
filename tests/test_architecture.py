"""The import arrows of the package: who may import whom, read from the sources."""

import ast
import pathlib

import pytest

SOURCE = pathlib.Path(__file__).parent.parent / "src" / "blockattn"

KERNEL_PARTS = {f"kernels.{name}" for name in ("calls", "launch", "plans", "tile_math", "walk")}
PROVIDERS = ("flash", "flash4", "flex", "layer", "ours", "rotary", "sdpa", "xformers")

# Each module and the modules of the package that it may import; "*" stands for one name.
ARROWS = {
    "__init__": {"api", "rotary", "tiles"},
    "nn": {"api", "checks", "rotary", "tiles"},
    "api": {"checks", "dispatch", "ops", "reference", "rotary", "tiles"},
    "ops": {"dispatch", "rotary", "tiles"},
    "rotary": {"checks", "tiles"},
    "checks": set(),
    "dispatch": set(),  # imports backends by name when they are first used
    "tiles": {"checks"},
    "reference": set(),
    "torch_backend": {"rotary", "tiles"},
    "testing": {"api", "reference", "rotary"},
    "cli": {"__init__", "bench.command", "dispatch", "demo", "tiles"},
    "kernels.__init__": set(),
    "kernels.launch": {"kernels.plans"},
    "kernels.plans": set(),
    "kernels.tile_math": set(),
    "kernels.walk": {"tiles"},
    "kernels.triton_tiles": {"tiles", "kernels.launch"},
    "kernels.pairs": {"rotary", "tiles", "kernels.launch", "kernels.plans", "kernels.walk"},
    "kernels.calls": {"rotary", "kernels.launch", "kernels.pairs"},
    "kernels.triton_forward": KERNEL_PARTS,
    "kernels.triton_backward": KERNEL_PARTS,
    "kernels.triton_rotary_forward": {*KERNEL_PARTS, "kernels.pairs"},
    "kernels.triton_rotary_backward": {*KERNEL_PARTS, "kernels.pairs"},
    "kernels.compile": {
        f"kernels.{name}"
        for name in ("plans", "triton_backward", "triton_forward", "triton_rotary_backward", "triton_rotary_forward")
    },
    "bench.__init__": set(),
    "bench.limit": set(),
    "bench.workloads": {"api", "tiles"},
    "bench.batch": {"rotary", "bench.workloads"},
    "bench.providers.__init__": {"bench.batch", *(f"bench.providers.{name}" for name in PROVIDERS)},
    "bench.providers.ours": {"__init__", "dispatch", "bench.batch", "bench.providers"},
    "bench.providers.rotary": {
        "__init__",
        "rotary",
        "bench.batch",
        "bench.providers",
        "bench.providers.flash",
        "bench.providers.ours",
    },
    "bench.providers.layer": {
        "nn",
        "bench.batch",
        "bench.providers",
        "bench.providers.flash",
        "bench.providers.ours",
        "bench.providers.rotary",
    },
    "bench.providers.sdpa": {"bench.batch", "bench.providers"},
    "bench.providers.flash": {"bench.batch", "bench.providers"},
    "bench.providers.flash4": {"bench.batch", "bench.providers", "bench.providers.flash"},
    "bench.providers.flex": {"bench.batch", "bench.providers", "bench.providers.sdpa"},
    "bench.providers.xformers": {"bench.batch", "bench.providers"},
    "bench.gate": {"rotary", "testing", "bench.batch"},
    "bench.timer": set(),
    "bench.result": set(),
    "bench.machine": {"__init__"},
    "bench.measure": {f"bench.{name}" for name in ("batch", "gate", "limit", "providers", "result", "timer", "workloads")},
    "bench.accuracy": {f"bench.{name}" for name in ("batch", "gate", "measure", "providers", "workloads")},
    "bench.terminal": {"bench.accuracy", "bench.gate", "bench.result"},
    "bench.charts": {"bench.result"},
    "bench.report": {"bench.charts", "bench.result"},
    "bench.command": {
        f"bench.{name}"
        for name in ("accuracy", "limit", "machine", "measure", "providers", "report", "result", "terminal", "workloads")
    },
}
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


def name_of(path: pathlib.Path) -> str:
    return ".".join(path.with_suffix("").parts)


def imports(path: pathlib.Path) -> set[str]:
    """Modules of the package that a file imports, at any depth of its code."""
    package = ("blockattn", *path.parts[:-1])
    found = set()
    for node in ast.walk(ast.parse((SOURCE / path).read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (base, node.module)))
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {module for name in names if (module := module_of(name))}
    return found


def module_of(name: str) -> str | None:
    """The file that a dotted name comes from, as in ARROWS; None outside the package."""
    parts = name.split(".")
    if parts[0] != "blockattn":
        return None
    for length in range(len(parts), 0, -1):
        path = SOURCE.joinpath(*parts[1:length])
        if path.with_suffix(".py").is_file():
            return ".".join(parts[1:length])
        if (path / "__init__.py").is_file():
            return ".".join([*parts[1:length], "__init__"])
    return None


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_follow_the_arrows(path):
    name = name_of(path)
    if name.startswith("demo."):
        allowed = {"__init__", "nn", "rotary", "tiles"} | {name_of(p) for p in MODULES if name_of(p).startswith("demo.")}
    else:
        allowed = ARROWS[name]
    assert {module.removesuffix(".__init__") for module in imports(path)} <= {
        module.removesuffix(".__init__") for module in allowed
    }


def test_files_stay_readable():
    long = {name_of(path): n for path in MODULES if (n := len((SOURCE / path).read_text().splitlines())) > 400}
    assert long == {}


SIMULATOR = sorted((SOURCE.parent / "tlxsim").rglob("*.py"))


@pytest.mark.parametrize("path", SIMULATOR, ids=lambda path: path.stem)
def test_the_simulator_knows_nothing_of_the_library(path):
    text = path.read_text()
    imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in imported for alias in node.names} | {getattr(node, "module", "") for node in imported}
    assert not any((name or "").split(".")[0] == "blockattn" for name in names)
    assert len(text.splitlines()) <= 400
