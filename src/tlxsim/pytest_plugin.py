"""`pytest --tlxsim`: tests that ask for the device "cuda" run on the CPU, their kernels in the simulator.

A test fails on findings of severity error; `@pytest.mark.tlxsim_allow("TLX003")` accepts some. Each test runs in a forked
child of its own (`--tlxsim-no-fork` turns that off), because a compiler that aborts would end the whole run. Without
`--tlxsim` the plugin does nothing.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import signal
import sys
from typing import Any

import pytest

_SESSION: pytest.StashKey[Any] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tlxsim", "run Triton and TLX kernels in a simulator")
    group.addoption("--tlxsim", action="store_true", help="simulate every kernel that a test launches")
    group.addoption("--tlxsim-arch", default="sm_90", metavar="ARCH", help="the GPU: sm_90, sm_100, ... (default sm_90)")
    group.addoption("--tlxsim-schedules", type=int, default=8, metavar="N", help="schedules of each launch (default 8)")
    group.addoption("--tlxsim-level", default="ttir", choices=("ttir", "fenced"), help="as written, or as compiled")
    group.addoption("--tlxsim-no-fork", action="store_true", help="run the tests in this process")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tlxsim_allow(*codes): findings of these codes do not fail the test under --tlxsim")
    if config.getoption("--tlxsim"):
        config.pluginmanager.register(Simulated(config), "tlxsim-simulated")


class Simulated:
    """The hooks of a run with `--tlxsim`."""

    def __init__(self, config: pytest.Config):
        from .session import Options

        os.environ["TRITON_INTERPRET"] = "0"
        read = config.getoption
        arch, schedules, level = read("--tlxsim-arch"), read("--tlxsim-schedules"), read("--tlxsim-level")
        try:
            self.options = Options(arch, schedules, level, trace=False)
        except ValueError as error:
            raise pytest.UsageError(f"--tlxsim: {error}") from None
        self.forks = hasattr(os, "fork") and not read("--tlxsim-no-fork")
        self.launches = 0
        self.codes: collections.Counter[str] = collections.Counter()
        self._stack = contextlib.ExitStack()

    def pytest_sessionstart(self) -> None:
        """Modules ask for the GPU when they are imported, so the device is there before tests are collected."""
        from . import stack
        from .fake_cuda import cuda_on_cpu

        def outside(kernel: Any, *args: Any) -> None:
            raise RuntimeError(f"{kernel.__name__} is launched outside of a test, which tlxsim does not simulate")

        self._stack.enter_context(cuda_on_cpu(self.options.arch))
        self._stack.enter_context(stack.hooked(outside, self.options.arch))

    def pytest_sessionfinish(self) -> None:
        self._stack.close()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if not self.forks:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in _in_child(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        """What fixtures launch belongs to the test."""
        from . import stack
        from .session import Session

        session = item.stash[_SESSION] = Session(self.options)
        with stack.hooked(session.launch, self.options.arch):
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        from . import stack

        session = item.stash[_SESSION]
        with stack.hooked(session.launch, self.options.arch):
            outcome = yield
        report = session.report
        found = {finding.code.number: 0 for finding in report.findings}
        for finding in report.findings:
            found[finding.code.number] += finding.count
        item.user_properties.append(("tlxsim", (len(report.launches), found)))
        if report.findings:
            item.add_report_section("call", "tlxsim", report.text())
        allowed = {code for mark in item.iter_markers("tlxsim_allow") for code in mark.args}
        wrong = [finding for finding in report.errors if finding.code.number not in allowed]
        if wrong and outcome.excinfo is None:
            text = "\n\n".join(finding.text() for finding in wrong)
            outcome.force_exception(pytest.fail.Exception(f"tlxsim: {len(wrong)} errors\n\n{text}", pytrace=False))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            launches, found = dict(report.user_properties).get("tlxsim", (0, {}))
            self.launches += launches
            self.codes.update(found)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        from .findings import Code

        write = terminalreporter.write_line
        options = self.options
        how = f"{options.arch}, level {options.level}, {len(options.names())} schedules each"
        write(f"tlxsim: {self.launches} launches simulated for {how}")
        for code in Code:
            if self.codes[code.number]:
                write(f"tlxsim: {code.number} {code.title}: {self.codes[code.number]}")


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
    return [pytest.TestReport(item.nodeid, item.location, {}, "failed", f"the test's process {death}", "call")]
