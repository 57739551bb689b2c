"""First error of a slice, in memory shared with its owner, which may be another process."""

from __future__ import annotations

import threading
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

_TEXT_BYTES: Final = 16_384
_KINDS: Final = {
    kind.__name__: kind
    for kind in (CallbackError, ConfigError, GapError, RightsError, SlowSubscriberError, SubscriberError)
}
"""Errors that keep their class across processes."""


class SliceFailure:
    """The first error of a slice. Created before a process is forked, so that both sides share it."""

    def __init__(self) -> None:
        self.error: BlackBoxError | None = None
        """The exception, in the process that raised it."""
        self._lock = threading.Lock()
        self._text: NDArray[numpy.uint8] = shared_array((_TEXT_BYTES,), numpy.uint8)

    def keep(self, error: BlackBoxError) -> None:
        """Store an error unless there is one."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            kind = f"{type(error).__name__}\n".encode()
            told = "".join(traceback.format_exception(error)).encode(errors="backslashreplace")
            text = kind + told[len(kind) - _TEXT_BYTES :]
            self._text[1 : len(text)] = numpy.frombuffer(text, numpy.uint8)[1:]
            self._text[0] = text[0]  # last, so that readers see either nothing or all of it

    def seen(self) -> BlackBoxError | None:
        """Return the error, if any; from another process, one of the same class with the traceback as text."""
        if self.error is not None or self._text[0] == 0:
            return self.error
        kind, _, text = self._text.tobytes().rstrip(b"\0").decode(errors="replace").partition("\n")
        return EndpointError(0, text) if kind == EndpointError.__name__ else _KINDS.get(kind, SubscriberError)(text)
