"""`pytest --tlxsim`: tests that ask for the device "cuda" run on the CPU, their kernels in the simulator.

A test fails on findings of severity error; `@pytest.mark.tlxsim_allow("TLX003")` accepts some. What fixtures launch before
and after a test belongs to it. Each test runs in a forked child of its own (`--tlxsim-no-fork` turns that off), because a
compiler that aborts would end the whole run; so fixtures of a wider scope are made anew for each test.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

_SESSION: pytest.StashKey[Any] = pytest.StashKey()
_FAKED: pytest.StashKey[bool] = pytest.StashKey()
_OURS = ("tlxsim", "triton", "utlx_plugin", "contextlib")  # modules between a launch and what refuses it


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if pluginmanager.get_plugin("tlxsim") is None:  # loaded by -p: the entry point may not register the module once more
        pluginmanager.set_blocked("tlxsim")
    group = parser.getgroup("tlxsim", "run Triton and TLX kernels in a simulator")
    group.addoption("--tlxsim", action="store_true", help="simulate every kernel that a test launches")
    group.addoption("--tlxsim-arch", default="sm_90", metavar="ARCH", help="the GPU: sm_90, sm_100, ... (default sm_90)")
    group.addoption("--tlxsim-schedules", type=int, default=8, metavar="N", help="schedules of each launch (default 8)")
    group.addoption("--tlxsim-level", default="ttir", choices=("ttir", "fenced"), help="as written, or as compiled")
    group.addoption(
        "--tlxsim-fork", action="store_true", default=hasattr(os, "fork"), help="a process for each test (default)"
    )
    group.addoption("--tlxsim-no-fork", action="store_false", dest="tlxsim_fork", help="run the tests in this process")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """A conftest.py may ask for the GPU already; wrong options are named in pytest_configure."""
    options = early_config.known_args_namespace
    if options.tlxsim and _obstacle(options) is None:
        _fake(early_config, options.tlxsim_arch)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tlxsim_allow(*codes): findings of these codes do not fail the test under --tlxsim")
    if config.getoption("--tlxsim"):
        obstacle = _obstacle(config.option)
        if obstacle is not None:
            raise pytest.UsageError(f"--tlxsim: {obstacle}")
        _fake(config, config.getoption("--tlxsim-arch"))
        config.pluginmanager.register(Simulated(config), "tlxsim-simulated")


def _obstacle(options: Any) -> str | None:
    """What is wrong with the options, or missing, in a line."""
    from .cli import obstacle

    return obstacle(options.tlxsim_arch, options.tlxsim_schedules, options.tlxsim_level)


def _fake(config: pytest.Config, arch: str) -> None:
    """From now on the device "cuda" is the CPU, since modules ask for it when they are imported; only tests may launch."""
    if _FAKED in config.stash:
        return
    config.stash[_FAKED] = True
    os.environ["TRITON_INTERPRET"] = "0"
    from . import stack
    from .fake_cuda import cuda_on_cpu

    def outside(kernel: Any, *args: Any) -> None:
        raise RuntimeError(f"{kernel.__name__} is launched outside of a test, which tlxsim does not simulate")

    entered = contextlib.ExitStack()
    config.add_cleanup(entered.close)
    entered.enter_context(cuda_on_cpu(arch))
    entered.enter_context(stack.hooked(outside, arch))


class Simulated:
    """The hooks of a run with `--tlxsim`."""

    def __init__(self, config: pytest.Config):
        from .session import Options

        read = config.getoption
        self.options = Options(read("--tlxsim-arch"), read("--tlxsim-schedules"), read("--tlxsim-level"), trace=False)
        self.forks = read("--tlxsim-fork")
        self.launches = self.tests = 0
        self.found: collections.Counter[str] = collections.Counter()
        self.tests_with: collections.Counter[str] = collections.Counter()
        self.mild: dict[str, list[str]] = {}  # warnings and notes, and the tests that have them

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if not self.forks:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in _in_child(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        from .session import Session

        item.stash[_SESSION] = Session(self.options)
        _allowed(item)
        with self._simulated(item, "setup"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        with self._simulated(item, "call"):
            result = yield
        _fail(item, item.stash[_SESSION].report.errors)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Any:
        report = item.stash[_SESSION].report
        known = len(report.findings)
        try:
            with self._simulated(item, "teardown"):
                result = yield
        finally:
            if report.launches or report.findings:
                found = [(f.code.number, f.severity.value, f.text().splitlines()[0]) for f in report.findings]
                item.user_properties.append(("tlxsim", dict(launches=len(report.launches), findings=found)))
        _fail(item, [finding for finding in report.findings[known:] if finding in report.errors])
        return result

    @contextlib.contextmanager
    def _simulated(self, item: pytest.Item, phase: str) -> Iterator[None]:
        """Launches belong to the item; what is new in its report is a section of the phase."""
        from . import stack
        from .findings import Unsupported
        from .frontend import FrontendError

        session = item.stash[_SESSION]
        known = len(session.report.findings)
        try:
            with stack.hooked(session.launch, self.options.arch):
                yield
        except (Unsupported, FrontendError) as error:
            _cut(error)
            raise
        finally:
            if len(session.report.findings) > known:
                item.add_report_section(phase, "tlxsim", session.report.text())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        simulated = dict(report.user_properties).get("tlxsim") if report.when == "teardown" else None
        if simulated is None:
            return
        self.tests += 1
        self.launches += simulated["launches"]
        codes = [code for code, *_ in simulated["findings"]]
        self.found.update(codes)
        self.tests_with.update(set(codes))
        for _, severity, text in simulated["findings"]:
            if severity != "error":
                self.mild.setdefault(text, []).append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        from .findings import Code

        write, options = terminalreporter.write_line, self.options
        for text, tests in self.mild.items():
            more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
            write(f"tlxsim: {text}\n    in {tests[0]}{more}")
        how = f"{options.arch}, level {options.level}, {len(options.names())} schedules each"
        write(f"tlxsim: {self.launches} launches of {self.tests} tests simulated for {how}")
        for code in sorted(Code, key=lambda code: code.number):
            if self.found[code.number]:
                count = f"{self.found[code.number]} findings in {self.tests_with[code.number]} tests"
                write(f"tlxsim: {code.number} {code.title}: {count}")


def _allowed(item: pytest.Item) -> set[str]:
    """The codes that the item's marks accept; one that does not exist fails it."""
    from .findings import Code

    allowed = {code for mark in item.iter_markers("tlxsim_allow") for code in mark.args}
    unknown = sorted(allowed - {code.number for code in Code}, key=str)
    if unknown:
        pytest.fail(f"tlxsim_allow: there is no code {', '.join(map(str, unknown))}, see `tlxsim codes`", pytrace=False)
    return allowed


def _fail(item: pytest.Item, errors: list[Any]) -> None:
    wrong = [finding for finding in errors if finding.code.number not in _allowed(item)]
    if wrong:
        text = "\n\n".join(finding.text() for finding in wrong)
        pytest.fail(f"tlxsim: {len(wrong)} errors\n\n{text}", pytrace=False)


def _cut(error: BaseException) -> None:
    """End the traceback where the kernel is launched: the way to the refusal inside of the simulator helps nobody."""
    last, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_globals.get("__name__", "").split(".")[0] not in _OURS:
            last = step
        step = step.tb_next
    if last is not None:
        last.tb_next = None


def _in_child(item: pytest.Item) -> list[pytest.TestReport]:
    """The reports of a test that runs in a forked child; of a child that dies, a failure that names the signal."""
    from _pytest.runner import runtestprotocol

    hook, read_end, write_end = item.config.hook, *os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read_end)
            reports = runtestprotocol(item, nextitem=None, log=False)
            data = [hook.pytest_report_to_serializable(config=item.config, report=report) for report in reports]
            with os.fdopen(write_end, "wb") as stream:
                pickle.dump(data, stream)
            status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as stream:
        data = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0 and data:
        load = hook.pytest_report_from_serializable
        return [load(config=item.config, data=report) for report in pickle.loads(data)]
    death = f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
    sections = [(f"Captured {name} call", text) for name, text in zip(("stdout", "stderr"), _captured(item)) if text]
    text = f"the test's process {death}"
    return [pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call", sections)]


def _captured(item: pytest.Item) -> tuple[str, str]:
    """What a dead child has left in the files that it shares with this process."""
    capture = item.config.pluginmanager.getplugin("capturemanager")
    return capture.read_global_capture() if capture is not None else ("", "")
