"""A function in a forked child: the compiler may segfault or abort, and then this process goes on.

The child shares nothing afterwards: its result comes back pickled through a pipe, what it prints through files, and it ends
without running destructors. An exception in it, or its death, is a `ChildError` here.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import pickle
import re
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

STDERR_LINES = 20  # of what is neither an error nor an assertion
_TELLING = re.compile(r"error: (?!Failures have been detected)|Assertion .* failed")


class ChildError(RuntimeError):
    """The child raised, died or did not end in time.

    Args:
        message: what happened.
        stderr: the errors and failed assertions that it wrote there with their source lines, or else its last lines.
        kind: module and name of the class of the exception that it raised; empty if it died.
        causes: the exceptions behind that one, as text.
    """

    def __init__(self, message: str, stderr: str, kind: tuple[str, ...] = (), causes: tuple[str, ...] = ()):
        super().__init__(f"{message}\n{stderr}".rstrip())
        self.message, self.stderr, self.kind, self.causes = message, stderr, kind, causes


class Child:
    """A function that runs in a child from now on.

    Once `result()` has waited for it, `stdout` is what it printed, and `stderr` what mattered there.
    """

    def __init__(self, function: Callable[[], Any], timeout: float = 300.0):
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._streams = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115  # they live as long as the child
        self._outcome: tuple[str, Any] | None = None
        self.stdout = self.stderr = ""
        self._pipe, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*multi-threaded.*")  # the child touches no other thread's locks
            self._pid = os.fork()
        if self._pid == 0:
            _be_child(function, write, *(stream.fileno() for stream in self._streams))
        os.close(write)

    def result(self) -> Any:
        """What the function returned.

        Raises:
            ChildError: it raised, died, or ran out of time.
        """
        if self._outcome is None:
            self._outcome = self._wait()
        kind, value = self._outcome
        if kind == "error":
            raise ChildError(*value)
        return value

    def __del__(self) -> None:
        if getattr(self, "_outcome", True) is None:  # nobody wants the result any more
            os.kill(self._pid, signal.SIGKILL)
            os.close(self._pipe)
            os.waitpid(self._pid, 0)

    def _wait(self) -> tuple[str, Any]:
        data, late = self._read()
        if late:
            os.kill(self._pid, signal.SIGKILL)
        os.close(self._pipe)
        _, status = os.waitpid(self._pid, 0)
        out, err = (_contents(stream) for stream in self._streams)
        self.stdout, self.stderr = "".join(itertools.takewhile(_is_no_dump, out)), _telling(err)
        if late:
            return "error", (f"did not end within {self._timeout:.0f} s", self.stderr)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            return "error", (f"died of {signal.Signals(-code).name}", self.stderr)
        if code or not data:
            return "error", (f"exited with status {code} without a result", self.stderr)
        kind, value = pickle.loads(data)
        return (kind, value) if kind == "value" else ("error", (value[0], self.stderr, *value[1:]))

    def _read(self) -> tuple[bytes, bool]:
        """All that the child writes, and whether it took too long."""
        parts = []
        while True:
            ready, _, _ = select.select([self._pipe], [], [], max(0.0, self._deadline - time.monotonic()))
            if not ready:
                return b"", True
            part = os.read(self._pipe, 1 << 20)
            if not part:
                return b"".join(parts), False
            parts.append(part)


def run(function: Callable[[], Any]) -> Any:
    """The function's result, computed in a child."""
    return Child(function).result()


def _contents(stream: Any) -> list[str]:
    with stream:
        stream.seek(0)
        return stream.read().decode(errors="replace").splitlines(keepends=True)


def _is_no_dump(line: str) -> bool:
    """Not the beginning of the module that the frontend prints when its own output does not verify."""
    return not line.startswith(("#loc", '"builtin.module"', "module "))


def _telling(lines: list[str]) -> str:
    """The compiler's diagnostics out of all that it dumps, each once, with the two lines that show the place."""
    found: dict[str, None] = {}
    for number, line in enumerate(lines):
        if _TELLING.search(line):
            shown = lines[number : number + 3]
            placed = len(shown) == 3 and shown[2].strip() == "^"
            found["".join(text[:1000] for text in (shown if placed else [line]))] = None
    return "".join(found or lines[-STDERR_LINES:]).rstrip()


def _chain(error: BaseException | None) -> list[str]:
    """The exception as text, then those behind it."""
    texts = []
    while error is not None and len(texts) < 10:
        texts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return texts


def _be_child(function: Callable[[], Any], pipe: int, stdout: int, stderr: int) -> None:
    """The child's life; does not return."""
    status = 1
    try:
        faulthandler.disable()  # the parent tells of the child's death
        gc.disable()  # nothing is freed here, and a finaliser could touch what belongs to the parent
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        # a test runner may have put other streams in place
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        try:
            answer = ("value", function())
        except BaseException as error:
            message, *causes = _chain(error)
            answer = ("error", (message, (type(error).__module__, type(error).__name__), tuple(causes)))
        with os.fdopen(pipe, "wb") as stream:
            pickle.dump(answer, stream)
        status = 0
    finally:
        os._exit(status)
