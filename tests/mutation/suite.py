"""The test-suite as the runner uses it: pytest collects it once, each child runs the tests that reach a mutated function.

Tests run in the order of how many jit functions they call: a measure of time that is the same on every machine, so that
the first test to fail is the same too.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import hypothesis
import pytest
import torch
from _pytest.runner import runtestprotocol
from triton.runtime import interpreter

TESTS = Path(__file__).resolve().parents[1]
FILES = ("test_parity.py", "test_tiles.py", "test_invariance.py", "test_api.py", "test_rotary.py")
KERNELS = "blockattn.kernels"


@dataclasses.dataclass(frozen=True)
class Test:
    """A collected test, the jit functions of the kernels that it calls, and how many calls of any it makes."""

    item: pytest.Item
    functions: frozenset[str]
    calls: int

    @property
    def name(self) -> str:
        return self.item.nodeid.removeprefix("tests/")


class _WithinCollection:
    """A pytest plugin that runs a function in place of the tests; its value, or why it gave up, is kept."""

    def __init__(self, function: Callable[[list[pytest.Item]], Any]):
        self.function, self.value, self.exit = function, None, None

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config):
        config.pluginmanager.unregister(name="terminalreporter")

    def pytest_runtestloop(self, session):
        try:
            self.value = self.function(session.items)
        except SystemExit as reason:
            self.exit = reason
        return True


def patch_once() -> None:
    """Triton's interpreter patches its language at every call of a jit function, half of its time: once a module will do."""
    patch, patched = interpreter._patch_lang, set()

    def patch_new(function):
        if id(function.__globals__) not in patched:
            patched.add(id(function.__globals__))
            patch(function)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch_new


def with_tests(function: Callable[[list[pytest.Item]], Any]) -> Any:
    """Collect the tests of the Triton kernels and call `function` with them, while pytest's session is open.

    Hypothesis draws the same examples each time and does not shrink those that fail.
    """
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutation", derandomize=True, database=None, phases=phases)
    hypothesis.settings.load_profile("mutation")
    patch_once()
    torch.set_num_threads(1)
    plugin = _WithinCollection(function)
    options = ["-s", "--tb=no", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-k", "not torch"]
    code = pytest.main([*options, *(str(TESTS / name) for name in FILES)], plugins=[plugin])
    if code != pytest.ExitCode.OK:
        raise SystemExit(f"pytest could not collect the tests: {code!r}")
    if plugin.exit is not None:
        raise plugin.exit
    return plugin.value


def measure(items: list[pytest.Item], starts: Callable[[str], None]) -> list[tuple[int, frozenset[str]]]:
    """Run tests on the kernels as they are; for each, its calls of jit functions and those of the kernels among them."""
    calls, rewrite = collections.Counter(), interpreter.InterpretedFunction.rewrite

    def counted(function):
        calls[f"{function.fn.__module__}.{function.fn.__name__}"] += 1
        return rewrite(function)

    interpreter.InterpretedFunction.rewrite = counted
    measured = []
    for item, following in _pairs(items):
        calls.clear()
        starts(item.nodeid)
        if _fails(item, following):
            raise SystemExit(1)
        ours = frozenset(name.removeprefix(f"{KERNELS}.") for name in calls if name.startswith(f"{KERNELS}."))
        measured.append((calls.total(), ours))
    return measured


def first_failure(tests: list[Test], starts: Callable[[str], None]) -> str | None:
    """The name of the first test that fails, in the order of their calls."""
    for test, following in _pairs(sorted(tests, key=lambda test: (test.calls, test.name))):
        starts(test.name)
        if _fails(test.item, following and following.item):
            return test.name
    return None


def install(module: str, source: str, folder: Path) -> None:
    """Run a mutated source in the namespace of its module, in this process; it is written to a file for Triton to read."""
    path = folder / f"{module}.py"
    path.write_text(source)
    exec(compile(source, path, "exec"), loaded(module).__dict__)


def loaded(module: str) -> ModuleType:
    return sys.modules[f"{KERNELS}.{module}"]


def _pairs(values: list) -> list[tuple]:
    return list(itertools.pairwise([*values, None]))


def _fails(item: pytest.Item, following: pytest.Item | None) -> bool:
    return any(report.failed for report in runtestprotocol(item, nextitem=following, log=False))
