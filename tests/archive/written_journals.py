"""A slice's journal written by tests, block by block and heartbeat by heartbeat, as by a recorder."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy

from blackbox.archive.record.journal_writer import JournalWriter
from blackbox.archive.record.settings import JournalSettings
from blackbox.block.batch.block_handler import BLOCK, CONTROL, IDLE, NOTE
from blackbox.transport.wakeup import Pipe
from tests import wire
from tests.journals import Day, Put, Row, feed_of

FOREVER = 1 << 62


class Journal:
    """A slice's journal written block by block."""

    def __init__(self, day: Path, key_bytes: int = 0, is_outbox: bool = False, **settings: Any) -> None:
        if not day.joinpath("manifest.json").exists():
            Day(day, feed_of(key_bytes=key_bytes))
        made = JournalSettings(**{"segment_bytes": 1 << 20} | settings)
        self.writer = JournalWriter(0, key_bytes, made, Pipe(), lambda _: (day, FOREVER), is_outbox=is_outbox)
        self._append = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.writer.handler.function)

    def put(self, put: Put) -> None:
        self._give(BLOCK, *put.block(0), put.ts_recv)

    def hear(
        self,
        ends: Mapping[bytes, int | tuple[int, int]],
        epoch: int = 1,
        ts_recv: int = 0,
        held: int = 0,
        flags: int = 0,
        **fields: int,
    ) -> None:
        """Append a heartbeat with these ends of keys. `fields`: header fields as in `wire.control`."""
        header, body = wire.control(ends, flags, epoch=epoch, ts_out=max(0, ts_recv - 1), **fields)
        self._give(CONTROL, header, body, ts_recv, held)

    def note(self, body: bytes, ts_recv: int, sequence: int = 0, is_alone: bool = False) -> None:
        self.writer.state.in_force = is_alone
        self._give(NOTE, b"", body, ts_recv, first_row=sequence)

    def rest(self) -> None:
        self.writer.state.kind = IDLE
        self._append(self.writer.handler.record)

    def write(self) -> None:
        """Write the buffer, as after a long idle time."""
        self.writer.state.flushed = 0
        self.rest()

    def _give(self, kind: int, header: bytes, body: bytes, ts_recv: int, held: int = 0, first_row: int = 0) -> None:
        self._kept = numpy.frombuffer(header, numpy.uint8), numpy.frombuffer(body + bytes(8), numpy.uint8)
        given = self.writer.state
        given.kind, given.held, given.first_row, given.ts_recv = kind, held, first_row, ts_recv
        given.head, given.body, given.body_bytes = self._kept[0].ctypes.data, self._kept[1].ctypes.data, len(body)
        self._append(self.writer.handler.record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()


def block(sequence: int, count: int = 1, ts: int = 0, epoch: int = 1, topic: bytes = b"A") -> Put:
    """Return a block of `count` messages of one topic, sent and received at `ts`."""
    return Put(tuple(Row(topic, b"%d" % i) for i in range(count)), sequence, ts, ts, epoch)
