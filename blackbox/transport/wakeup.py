"""Wait for input, and a pipe that wakes a waiting thread."""

from __future__ import annotations

import math
import os
import select
from contextlib import suppress

from blackbox.native.system.limits import Needs, open_pipe

PIPE_NEEDS = Needs(descriptors=2)


def readable(*descriptors: int, timeout: float | None) -> list[int]:
    """Wait until descriptors have input, have ended or failed, for at most `timeout` seconds; return these.

    `select.select` refuses descriptors above 1,023.
    """
    poller = select.poll()
    for fd in descriptors:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(None if timeout is None else math.ceil(1e3 * max(0.0, timeout)))]


class Pipe:
    """A non-blocking pipe, closed with the last object that holds it.

    A bare descriptor could be reused by another file before a late wake-up is written.
    """

    __slots__ = ("reader", "writer")

    def __init__(self) -> None:
        self.reader, self.writer = open_pipe()
        for fd in (self.reader, self.writer):
            os.set_blocking(fd, False)

    def __del__(self) -> None:
        for name in self.__slots__:
            if hasattr(self, name):
                os.close(getattr(self, name))

    def poke(self) -> None:
        """Make the pipe readable."""
        with suppress(BlockingIOError):  # the pipe is full, so it is readable already
            os.write(self.writer, b"\0")
