"""Control a replay by single keys in the terminal that it runs in."""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import threading
import tty
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from blackbox.native.system.limits import start_thread
from blackbox.transport.wakeup import Pipe, readable

if TYPE_CHECKING:
    from blackbox.replay.controls import Controls

_MINUTE_NS: Final = 60_000_000_000
_FASTEST: Final = 2.0**20
_SLOWEST: Final = 2.0**-10
_BELOW_MAX: Final = 64.0
"""Speed after halving max."""
_LOOK_EVERY_MS: Final = 500
_READ_BYTES: Final = 256
_LONGEST_KEY: Final = 16
_KEY: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO[A-Z]|.", re.DOTALL)
_BEGUN: Final = re.compile(rb"\x1b(\[[0-?]*[ -/]*|O)?")


class Keys:
    """Reads single keys from a terminal in a thread, until the end of the `with` block.

    Without a terminal it does nothing. The terminal's settings are restored whenever this process is not in the
    foreground: at the end, also after errors, and while it is stopped by Ctrl-Z. Signals need the main thread: in any
    other thread, Ctrl-Z leaves the terminal's settings changed.
    """

    def __init__(self, controls: Controls, fd: int = 0) -> None:
        """`fd`: the terminal, by default the standard input."""
        self._controls = controls
        self._fd = fd
        self._before: list[Any] | None = None
        self._handler: Any = None
        self._lock = threading.RLock()  # the signal handler may interrupt a thread that holds it
        self._stopping = False
        self._end = Pipe()
        self._thread = threading.Thread(target=self._read, name="blackbox-keys", daemon=True)

    @property
    def is_active(self) -> bool:
        """True while keys are read."""
        return self._before is not None

    def __enter__(self) -> Self:
        """Start reading keys, if there is a terminal."""
        try:
            self._before = termios.tcgetattr(self._fd)
        except (termios.error, ValueError):
            return self  # no terminal, or closed
        try:
            if threading.current_thread() is threading.main_thread():
                self._handler = signal.signal(signal.SIGTSTP, self._stop)
            self._take()
            start_thread(self._thread)
        except BaseException:
            self._give_back()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is None:
            return
        try:
            self._end.poke()
            self._thread.join()
        finally:
            self._give_back()

    # The terminal

    def _take(self) -> None:
        """Switch to single keys, unless already done or not in the foreground."""
        with self._lock:
            lines = termios.tcgetattr(self._fd)[tty.LFLAG] & termios.ICANON
            if lines and not self._stopping and self._is_foreground():
                tty.setcbreak(self._fd, termios.TCSANOW)

    def _restore(self) -> None:
        if self._before is not None and self._is_foreground():
            with suppress(termios.error):  # it was closed
                termios.tcsetattr(self._fd, termios.TCSANOW, self._before)

    def _give_back(self) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGTSTP, self._handler)
            self._handler = None
        self._restore()
        self._before = None

    def _is_foreground(self) -> bool:
        """Return True in the foreground: a background process would be stopped for changing the terminal."""
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return True  # it controls no processes

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        with self._lock:
            self._stopping = True
            self._restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)  # not SIGSTOP: the system ignores it if no process could continue us
        signal.signal(signal.SIGTSTP, self._stop)
        self._stopping = False
        self._take()

    # Keys

    def _read(self) -> None:
        poller = select.poll()
        for fd in (self._end.reader, self._fd):
            poller.register(fd, select.POLLIN)
        rest = b""
        with suppress(OSError, termios.error):  # the terminal was closed: no more keys follow
            while self._end.reader not in (ready := dict(poller.poll(_LOOK_EVERY_MS))):
                if not self._is_foreground():
                    readable(self._end.reader, timeout=_LOOK_EVERY_MS / 1e3)  # the foreground reads
                elif self._fd in ready:
                    typed = os.read(self._fd, _READ_BYTES)
                    if not typed:
                        return
                    rest = self._press(rest + typed)
                else:
                    self._take()  # back in the foreground, which no signal reports

    def _press(self, typed: bytes) -> bytes:
        """Run the commands of keys; return the start of an incomplete key sequence."""
        while typed and not (_BEGUN.fullmatch(typed) and len(typed) < _LONGEST_KEY):
            key = _KEY.match(typed)
            assert key is not None
            typed = typed[key.end() :]
            if key[0] in _ACTIONS:
                _ACTIONS[key[0]](self._controls)
        return typed


def describe() -> str:
    """Return a line with the keys, to show during a replay."""
    return "space pause  + - speed  m max  s step  ← → one minute  q stop"


def _pause_or_resume(controls: Controls) -> None:
    if controls.status().state in ("paused", "stepping"):
        controls.resume()
    else:
        controls.pause()


def _double(controls: Controls) -> None:
    if controls.speed is not None:
        controls.speed = max(controls.speed, min(controls.speed * 2, _FASTEST))


def _halve(controls: Controls) -> None:
    if controls.speed is None:
        controls.speed = _BELOW_MAX
    else:
        controls.speed = min(controls.speed, max(controls.speed / 2, _SLOWEST))


def _take_off_speed(controls: Controls) -> None:
    controls.speed = None


def _minute_back(controls: Controls) -> None:
    controls.seek(controls.status().position_ns - _MINUTE_NS)


def _minute_forth(controls: Controls) -> None:
    controls.seek(controls.status().position_ns + _MINUTE_NS)


def _step(controls: Controls) -> None:
    controls.step()


def _stop(controls: Controls) -> None:
    controls.stop()


_ACTIONS: Final[dict[bytes, Callable[[Controls], None]]] = {
    b" ": _pause_or_resume,
    b"+": _double,
    b"-": _halve,
    b"m": _take_off_speed,
    b"s": _step,
    b"\x1b[C": _minute_forth,
    b"\x1bOC": _minute_forth,
    b"\x1b[D": _minute_back,
    b"\x1bOD": _minute_back,
    b"q": _stop,
}
