"""The first messages of a subscription as lines of text."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy

from blackbox.cli.ui.messages import describe
from blackbox.feed.schema.schema import schema_of
from blackbox.native.memory.arrays import shared_array
from blackbox.native.system.limits import open_pipe, start_thread
from blackbox.native.system.waits import join

if TYPE_CHECKING:
    from blackbox.block.batch.batch import Batch

_LINE_BYTES = 2_000


class Preview:
    """Prints the first `limit` messages of callbacks, in this process or in processes forked from it.

    Lines go through a pipe to one thread of this process, which prints them.
    """

    def __init__(self, limit: int, print_line: Callable[[str], object]) -> None:
        self._left = shared_array((1,), numpy.int64)
        self._left[0] = limit
        self._limit = limit
        self._print = print_line
        self._reader, self._writer = open_pipe()
        self._thread = threading.Thread(target=self._read, name="blackbox-preview", daemon=True)

    def start(self) -> None:
        """Start printing, after processes were forked."""
        start_thread(self._thread)

    def offer(self, batch: Batch) -> None:
        """Print the batch's messages, up to the limit."""
        # Two slices may both take the last slot; the reader enforces the limit.
        for message in batch if self._left[0] > 0 else ():
            if self._left[0] <= 0:
                return
            self._left[0] -= 1
            line = describe(message, schema_of(batch.block.schema_id)).encode(errors="backslashreplace")
            os.write(self._writer, line[:_LINE_BYTES] + b"\n")

    def close(self) -> None:
        """Print the rest, and end. No callback may be running."""
        os.close(self._writer)
        join(self._thread)

    def _read(self) -> None:
        with os.fdopen(self._reader, encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines):
                if number < self._limit:
                    with suppress(OSError):  # callbacks write to the pipe; the totals report a full disk
                        self._print(line.rstrip("\n"))
