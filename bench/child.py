"""A process of the benchmark's own that takes an order a line and answers with a line of JSON."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, Self

from bench.contest import Lost

_PR_SET_PDEATHSIG: Final = 1
"""As linux/prctl.h has it."""


class Child:
    """Python with these arguments; `send` gives an order and does not wait, `answer` waits for what it says.

    It says something once it is ready. `close`, or the end of the `with` block, ends it, by force if it does not end by
    itself. All raise Lost with the process's last words when it has ended, and when it says nothing for too long: then
    it is ended.
    """

    def __init__(self, *arguments: str) -> None:
        self._what = " ".join(arguments)[:80]
        self._unanswered = 1
        self._errors = TemporaryFile()  # noqa: SIM115  # open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=Path(__file__).parent.parent,
        )
        self._said = b""
        try:
            self.answer()
        except BaseException:
            self.close(0.0)
            raise

    @property
    def pid(self) -> int:
        """The process, for a `Meter`."""
        return self._process.pid

    def send(self, order: Any) -> None:
        """Give an order; first waits for the answer to an earlier one that nobody waited for, as its round was void."""
        while self._unanswered:
            self.answer()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Lost(self._last_words()) from None
        self._unanswered = 1

    def answer(self, patience_s: float = 120.0) -> Any:
        """What the process says next: that it is ready, or what came of an order."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + patience_s
        while b"\n" not in self._said:
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self._process.kill()
                raise Lost(f"a process of the benchmark said nothing for {patience_s:g} s: {self._what}")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise Lost(self._last_words())
            self._said += part
        line, _, self._said = self._said.partition(b"\n")
        self._unanswered = max(0, self._unanswered - 1)
        return json.loads(line)

    def ask(self, order: Any) -> Any:
        """Give an order and wait for what it leads to."""
        self.send(order)
        return self.answer()

    def close(self, patience_s: float = 60.0) -> None:
        """Let it end, or end it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _last_words(self) -> str:
        self._process.kill()
        self._process.wait()
        self._unanswered = 0
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"a process of the benchmark ended: {words[-1] if words else 'in silence'} ({self._what})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def end_with_parent() -> None:
    """Have Linux end this process when the one that started it is gone, also when that was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def orders() -> Iterator[Any]:
    """The other side: say that it is ready, then take the orders, each to be answered by a line of JSON."""
    end_with_parent()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        yield json.loads(line)
