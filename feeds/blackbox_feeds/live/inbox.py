"""Bytes on their way from the thread of a connection to the one that publishes them, and marks between them."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

MOST_BYTES: Final = 64 << 20
"""A reader of the connection waits while more is in the inbox, so that the venue's queue grows, not this one."""
_POLL_MS: Final = 1_000


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
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._put_bytes = self._taken_bytes = 0
        self._is_overlap = False
        self.when_emptied: Callable[[], None] = lambda: None
        """Called by the reader after it has taken everything."""

    def close(self) -> None:
        """Close the descriptor. Both threads must have ended their use."""
        os.close(self._wakeup)

    def put(self, item: bytes | Mark) -> None:
        """Append a message, or a mark."""
        self._items.append(item)
        if item.__class__ is bytes:
            self._put_bytes += len(item)
        if len(self._items) == 1:
            self.wake()

    def wake(self) -> None:
        """End the reader's wait."""
        os.eventfd_write(self._wakeup, 1)

    @property
    def is_full(self) -> bool:
        """True while the writer should wait."""
        return self._put_bytes - self._taken_bytes > MOST_BYTES

    def wait(self, stop_fd: int) -> None:
        """Wait until something was put, `stop_fd` is readable, or a second has passed."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        poll.register(stop_fd, select.POLLIN)
        if self._items:
            return
        poll.poll(_POLL_MS)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)

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
        self.when_emptied()

    def _part(self, messages: list[bytes], is_interrupted: bool) -> Part:
        content = b"".join(messages)
        self._taken_bytes += len(content)
        return Part(content, self._is_overlap, is_interrupted)
