"""A pipe that wakes whoever polls it."""

from __future__ import annotations

import os
from contextlib import suppress

from blackbox.native.limits import Needs, open_pipe

PIPE_NEEDS = Needs(descriptors=2)


class Pipe:
    """A pipe without blocking. Whoever may poke it holds it: it closes with the last of them.

    A file descriptor alone would not do: what a late wake-up is written to could be a file of others by then.
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
        """Make it readable."""
        with suppress(BlockingIOError):  # it is full of wake-ups already
            os.write(self.writer, b"\0")
