"""A pipe that wakes a polling thread."""

from __future__ import annotations

import os
from contextlib import suppress

from blackbox.native.system.limits import Needs, open_pipe

PIPE_NEEDS = Needs(descriptors=2)


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
