"""A process of the benchmark's own that takes an order a line and answers with a line of JSON."""

from __future__ import annotations

import ctypes
import json
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

_PR_SET_PDEATHSIG: Final = 1
"""As linux/prctl.h has it."""


class Child:
    """Python with these arguments; `send` gives an order and does not wait, `answer` waits for what it says.

    It says something once it is ready. With the `with` block it ends, at its end of input or, after a minute, by force.
    """

    def __init__(self, *arguments: str) -> None:
        self._what = " ".join(arguments)[:80]
        self._unanswered = 1
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        try:
            self.answer()
        except BaseException:
            self._process.kill()
            self._process.communicate()
            raise

    @property
    def pid(self) -> int:
        """The process, for a `Meter`."""
        return self._process.pid

    def send(self, order: Any) -> None:
        """Give an order; first waits for the answer to an earlier one that nobody waited for, as its round was void."""
        while self._unanswered:
            self.answer()
        self._unanswered = 1
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self, timeout: float = 120.0) -> Any:
        """What the process said when it was ready, or when it was done.

        Raises RuntimeError when it ended early, TimeoutError when it said nothing for `timeout` seconds.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            raise TimeoutError(f"a process of the benchmark said nothing for {timeout:g} s: {self._what}")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended early: {self._what}")
        self._unanswered -= 1
        return json.loads(line)

    def ask(self, order: Any) -> Any:
        """Give an order and wait for what it leads to."""
        self.send(order)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()
            self._process.wait()


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
