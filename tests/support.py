"""Scripts and functions in separate processes, for several tests."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from blackbox import BlackBoxError, Feed

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [*sorted((ROOT / "blackbox").rglob("*.py")), *sorted((ROOT / "feeds").rglob("*.py"))]
_PATIENCE_S = 300.0
_PRELUDE = """\
import os, signal, sys, threading, time
import msgspec, numpy
from tests.script_names import *
from tests.patience import be_patient
be_patient()
feed = msgspec.json.decode(sys.argv[1], type=Feed)
say = lambda *words: print(*words, flush=True)
"""


class Script:
    """Python code in a separate process with the names `feed` and `say`; killed at the end of the `with` block.

    `before` is a command prefix, such as `unshare -m`.
    """

    def __init__(self, code: str, feed: Feed | None = None, before: Sequence[str] = ()) -> None:
        command = [sys.executable, "-c", _PRELUDE + textwrap.dedent(code), msgspec.json.encode(feed).decode()]
        if feed is None:
            command = [sys.executable, "-c", textwrap.dedent(code)]
        self.process = subprocess.Popen(
            [*before, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "feeds")]), "PYTHONFAULTHANDLER": "1"},
        )

    def read(self) -> str:
        """Return its next line of output. Fail with its errors at the end of its output or after a timeout."""
        assert self.process.stdout is not None
        # On a timeout the script prints the stacks of its threads, more useful than a timeout of the test.
        hangs = threading.Timer(_PATIENCE_S, self.process.send_signal, [signal.SIGABRT])
        hangs.start()
        try:
            line = self.process.stdout.readline()
        finally:
            hangs.cancel()
        if not line:
            _, errors = self.process.communicate()
            raise AssertionError(f"the script ended with status {self.process.returncode}\n{errors}")
        return line.strip()

    def expect(self, line: str) -> None:
        """Wait for a line."""
        said = self.read()
        assert said == line, f"the script said {said!r}, expected {line!r}"

    def tell(self, line: str) -> None:
        """Send a line to its `input()`."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def finish(self, timeout: float = 300.0) -> tuple[int, str, str]:
        """Wait for its end; return its status, the rest of its output, and its errors."""
        out, errors = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, errors

    def suspend(self) -> None:
        """SIGSTOP, and wait until all its threads are stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def in_child(work: Callable[[], object]) -> str:
    """Return the error that `work` raises in a forked process, as text; "" if none."""
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()

    def run() -> None:
        try:
            work()
            told.put("")
        except BlackBoxError as error:
            told.put(f"{type(error).__name__}: {error}")

    child = context.Process(target=run)
    child.start()
    child.join(200)
    assert child.exitcode == 0
    return str(told.get())
