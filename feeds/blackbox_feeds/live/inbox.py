"""Bytes on their way from the thread of a connection to the one that publishes them, and marks between them."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

from blackbox.errors import SourceError
from blackbox.transport.wakeup import Pipe, readable
from blackbox_feeds.io.loop_thread import LoopThread

MOST_BYTES: Final = 64 << 20
"""A reader of the connection waits while more is in the inbox, so that the venue's queue grows, not this one."""
_WAIT_S: Final = 1.0


class Mark(Enum):
    """An event between two messages."""

    INTERRUPTED = 1
    """The connection was interrupted."""
    OVERLAP = 2
    """From here on messages of a second connection, which repeat earlier ones."""
    END_OF_OVERLAP = 3


class Part(NamedTuple):
    """Consecutive messages without a mark between them."""

    content: bytes
    is_overlap: bool
    is_interrupted: bool
    """True if the connection was interrupted before these messages. There may be none yet."""


class Inbox:
    """Written by one thread, read by another. Only the bound is checked, by the writer."""

    def __init__(self) -> None:
        self._items: deque[bytes | Mark] = deque()
        self._wakeup = Pipe()
        self._put_bytes = self._taken_bytes = 0
        self._is_overlap = False

    def put(self, item: bytes | Mark) -> None:
        """Append a message, or a mark."""
        self._items.append(item)
        if item.__class__ is bytes:
            self._put_bytes += len(item)
        if len(self._items) == 1:
            self.wake()

    def wake(self) -> None:
        """End the reader's wait."""
        self._wakeup.poke()

    @property
    def is_full(self) -> bool:
        """True while the writer should wait."""
        return self._put_bytes - self._taken_bytes > MOST_BYTES

    def wait(self, stop_fd: int) -> None:
        """Wait until something was put, `stop_fd` is readable, or a second has passed."""
        if self._items:
            return
        readable(self._wakeup.reader, stop_fd, timeout=_WAIT_S)
        with suppress(BlockingIOError):
            os.read(self._wakeup.reader, 4_096)

    def take(self) -> Iterator[Part]:
        """Yield everything that was put so far."""
        messages: list[bytes] = []
        is_interrupted = False
        for _ in range(len(self._items)):
            item = self._items.popleft()
            if isinstance(item, bytes):
                messages.append(item)
                continue
            if messages:
                yield self._part(messages, is_interrupted)
                messages, is_interrupted = [], False
            if item is Mark.INTERRUPTED:
                is_interrupted = True
            else:
                self._is_overlap = item is Mark.OVERLAP
        if messages or is_interrupted:
            yield self._part(messages, is_interrupted)

    def _part(self, messages: list[bytes], is_interrupted: bool) -> Part:
        content = b"".join(messages)
        self._taken_bytes += len(content)
        return Part(content, self._is_overlap, is_interrupted)


class InboxThread(LoopThread):
    """The thread of a connection. `start`, `take` and `stop` are called by the publishing thread.

    Attribute: `inbox`, from `start` on.
    """

    Failure = SourceError
    inbox: Inbox

    def start(self) -> None:
        """Start the thread. Raises LimitError."""
        self.inbox = Inbox()
        super().start()

    def take(self, stop_fd: int) -> Iterator[Part]:
        """Wait as `Inbox.wait`, and yield everything that was put so far. Raises the error of the thread."""
        self.inbox.wait(stop_fd)
        error = self.error  # set after the last message was put
        yield from self.inbox.take()
        self._go_on()
        if error is not None:
            raise error

    @abstractmethod
    def _go_on(self) -> None:
        """Read on if the inbox was full. Called by the publishing thread."""

    def _ended(self) -> None:
        self.inbox.wake()
