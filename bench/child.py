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

_PR_SET_PDEATHSIG: Final = 1
"""As linux/prctl.h has it."""


class Ended(Exception):  # noqa: N818  # the process has, or was: what was wrong with it stands in the text
    """A process of the benchmark ended early, said nothing for too long, or did not end well."""


class Child:
    """Python with these arguments; `send` gives an order and does not wait, `answer` waits for what it says.

    It says something once it is ready. With `close`, or the end of the `with` block, it ends, by force if it does not
    by itself. Whatever else it does raises Ended with its last words; a process that says nothing for too long is
    ended. `name` is what it is called there.
    """

    def __init__(self, *arguments: str, name: str = "") -> None:
        self._name = name or " ".join(arguments[:2] if arguments[0] == "-m" else ("a script",))
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
            self._end()
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
            raise self._ended() from None
        self._unanswered = 1

    def answer(self, patience_s: float = 120.0) -> Any:
        """What the process says next: that it is ready, or what came of an order."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + patience_s
        while b"\n" not in self._said:
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self.kill()
                raise Ended(f"{self._name} said nothing for {patience_s:g} s")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise self._ended()
            self._said += part
        line, _, self._said = self._said.partition(b"\n")
        self._unanswered = max(0, self._unanswered - 1)  # a subscriber of rivals answers an order twice
        return json.loads(line)

    def ask(self, order: Any) -> Any:
        """Give an order and wait for what it leads to."""
        self.send(order)
        return self.answer()

    def kill(self) -> None:
        """End it by force."""
        self._process.kill()
        self._process.wait()

    def close(self, patience_s: float = 60.0) -> None:
        """Let it end, or end it; raises Ended when it did not end by itself, or not with status 0."""
        has_ended = self._process.poll() is not None  # what it died of was told before
        try:
            self._process.communicate(timeout=patience_s)
            if not has_ended and self._process.returncode:
                raise self._ended()
        except subprocess.TimeoutExpired:
            raise Ended(f"{self._name} did not end within {patience_s:g} s") from None
        finally:
            self._end()

    def _ended(self) -> Ended:
        self.kill()
        status = self._process.returncode
        self._unanswered = 0
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip()
        ended = Ended(f"{self._name} ended with status {status}: {words.splitlines()[-1] if words else 'in silence'}")
        ended.add_note(words)
        return ended

    def _end(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._errors.close()

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
