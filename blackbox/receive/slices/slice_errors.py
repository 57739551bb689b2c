"""Errors of a slice: the first one ends it, and its owner reads it, also in another process."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.errors import (
    BlackBoxError,
    CallbackError,
    ConfigError,
    EndpointError,
    GapError,
    RightsError,
    SlowSubscriberError,
    SubscriberError,
)
from blackbox.native.memory.arrays import shared_array
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

_TEXT_BYTES: Final = 16_384
_KINDS: Final = {
    kind.__name__: kind
    for kind in (CallbackError, ConfigError, GapError, RightsError, SlowSubscriberError, SubscriberError)
}
"""Errors that keep their class across processes."""
_EVERY_S = 10.0
_MOST_ERRORS = 10
"""Errors of callbacks logged in that time."""


class SliceErrors:
    """The first error of a slice, and the log of its callbacks' errors: some in full, the rest as a count.

    Created before a process is forked, so that both sides share it. Thread-safe.
    """

    def __init__(self, slice_id: int, news: Pipe, *, logs: bool) -> None:
        """`news` is poked after an error. `logs`: errors of callbacks are logged, and do not end the slice."""
        self.first: BlackBoxError | None = None
        """The exception, in the process that raised it."""
        self._slice_id, self._news, self._logs = slice_id, news, logs
        self._lock = threading.Lock()
        self._text: NDArray[numpy.uint8] = shared_array((_TEXT_BYTES,), numpy.uint8)
        self._count = 0
        self._until = 0.0

    def report(self, error: BlackBoxError) -> None:
        """Store an error unless there is one, and notify the owner."""
        with self._lock:
            if self.first is None:
                self.first = error
                kind = f"{type(error).__name__}\n".encode()
                trace = "".join(traceback.format_exception(error)).encode(errors="backslashreplace")
                text = kind + trace[len(kind) - _TEXT_BYTES :]
                self._text[1 : len(text)] = numpy.frombuffer(text, numpy.uint8)[1:]
                self._text[0] = text[0]  # last, so that readers see either nothing or all of it
        self._news.poke()

    def seen(self) -> BlackBoxError | None:
        """Return the error, if any; from another process, one of the same class with the traceback as text."""
        if self.first is not None or self._text[0] == 0:
            return self.first
        kind, _, text = self._text.tobytes().rstrip(b"\0").decode(errors="replace").partition("\n")
        return EndpointError(0, text) if kind == EndpointError.__name__ else _KINDS.get(kind, SubscriberError)(text)

    def callback_raised(self, error: CallbackError) -> bool:
        """Log or report an error of a callback; return True to continue."""
        if not self._logs:
            self.report(error)
            return False
        with self._lock:
            if time.monotonic() >= self._until:
                self._log_more()
                self._until = time.monotonic() + _EVERY_S
            self._count += 1
            is_logged = self._count <= _MOST_ERRORS
        if is_logged:
            log.error("%s", error, exc_info=error.__cause__ or error)
        return True

    def close(self) -> None:
        """Log how many errors were not logged."""
        with self._lock:
            self._log_more()

    def _log_more(self) -> None:
        if self._count > _MOST_ERRORS:
            text = "slice %d: %d more errors of callbacks were not logged"
            log.error(text, self._slice_id, self._count - _MOST_ERRORS)
        self._count = 0
