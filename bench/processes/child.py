"""A child process that runs one function: it reads an order per line and answers with a line of JSON.

bench   Child("bench.processes.sender:publish", feeds=...)  ──order──>  for order in orders():
answer()   <──JSON──        answer(began=...)
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, Self

import msgspec

from blackbox.transport.wakeup import readable

_PR_SET_PDEATHSIG: Final = 1
"""Value of linux/prctl.h."""
_ROOT: Final = Path(__file__).resolve().parents[2]


class Ended(Exception):  # noqa: N818  # the message says what went wrong
    """A child process ended early, did not answer in time, or ended with an error."""


class Child:
    """A process that runs `function` ("module:function") with these arguments.

    The function loops over `orders()` and calls `answer` once for each, or as often as both sides agree. `send` sends
    an order without waiting; `answer` waits for the next answer. `close`, or the end of the `with` block, ends the
    process, by force if necessary. All of them raise Ended, with the last line of its stderr, if the process ended
    early or did not answer in time.
    """

    def __init__(self, function: str, /, **arguments: Any) -> None:
        self._name = function
        self._unanswered = 1
        self._errors = TemporaryFile()  # noqa: SIM115  # open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.processes.child", function, _json(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=_ROOT,
        )
        self._said = b""
        try:
            self.answer()
        except BaseException:
            self._end()
            raise

    @property
    def pid(self) -> int:
        """PID of the process."""
        return self._process.pid

    def send(self, order: Any) -> None:
        """Send an order, after waiting for unread answers of a void round."""
        while self._unanswered:
            self.answer()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(_json(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        self._unanswered = 1

    def answer(self, patience_s: float = 120.0, beside: Sequence[Child] = ()) -> Any:
        """Return the next answer. Raises Ended also if a process in `beside` ends, because this one may wait for it."""
        deadline = time.monotonic() + patience_s
        while b"\n" not in self._said:
            watched = {child._output: child for child in (self, *beside)}
            ready = readable(*watched, timeout=deadline - time.monotonic())
            if not ready:
                self.kill()
                raise Ended(f"{self._name} said nothing for {patience_s:g} s")
            for output in ready:
                watched[output]._read()
        line, _, self._said = self._said.partition(b"\n")
        self._unanswered = max(0, self._unanswered - 1)
        return json.loads(line)

    def ask(self, order: Any) -> Any:
        """Send an order and wait for the answer."""
        self.send(order)
        return self.answer()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def close(self, patience_s: float = 60.0) -> None:
        """End the process and wait for it. Raises Ended if it had to be killed or its status was not 0."""
        has_ended = self._process.poll() is not None  # its error was raised before
        try:
            self._process.communicate(timeout=patience_s)
            if not has_ended and self._process.returncode:
                raise self._ended()
        except subprocess.TimeoutExpired:
            raise Ended(f"{self._name} did not end within {patience_s:g} s") from None
        finally:
            self._end()

    @property
    def _output(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _read(self) -> None:
        part = os.read(self._output, 1 << 16)
        if not part:
            raise self._ended()
        self._said += part

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


def orders() -> Iterator[Any]:
    """In the child: report that it is ready, then yield each order."""
    answer()
    while line := sys.stdin.readline():
        yield json.loads(line)


def answer(**what: Any) -> None:
    """In the child: answer an order."""
    print(_json(what), flush=True)


def has_order() -> bool:
    """In the child: return True if the next order has arrived."""
    return bool(readable(sys.stdin.fileno(), timeout=0))


def _json(what: Any) -> str:
    return json.dumps(msgspec.to_builtins(what))


def end_with_parent() -> None:
    """Have Linux end this process when its parent ends, even if the parent is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    end_with_parent()
    _module, _, _function = sys.argv[1].partition(":")
    getattr(importlib.import_module(_module), _function)(**json.loads(sys.argv[2]))
