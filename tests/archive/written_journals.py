"""A slice's journal that tests write by hand, block by block and heartbeat by heartbeat, as a recorder would."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import numpy

from blackbox.archive.journal_writer import JournalWriter
from blackbox.block.block_handler import BLOCK, CONTROL, IDLE
from blackbox.block.format import FLAG_CONTROL, FLAG_FIXED
from blackbox.transport.wakeup import Pipe
from tests import wire
from tests.journals import Day, Put, Row, feed_of

FOREVER = 1 << 62


class Journal:
    """A slice's journal that is written by hand, block by block."""

    def __init__(self, day: Path, key_bytes: int = 0, segment_bytes: int = 1 << 20) -> None:
        if not day.joinpath("manifest.json").exists():
            Day(day, feed_of(key_bytes=key_bytes))
        self.writer = JournalWriter(0, key_bytes, segment_bytes, False, "none", Pipe(), lambda _: (day, FOREVER))
        self._append = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.writer.at.function)

    def put(self, put: Put) -> None:
        self._give(BLOCK, *put.block(0), put.ts_recv)

    def hear(self, numbers: dict[bytes, int], epoch: int = 1, ts_recv: int = 0, held: int = 0, flags: int = 0) -> None:
        """Take a heartbeat that tells these next sequence numbers."""
        count = len(numbers)
        payloads = [struct.pack("<q", number) for number in numbers.values()]
        body = wire.body_of([0] * count, list(range(count)), list(numbers), payloads, True)
        header, body = wire.sealed(
            body,
            flags=wire.CHECKSUM | FLAG_CONTROL | FLAG_FIXED | flags,
            count=count,
            epoch=epoch,
            ts_out=max(0, ts_recv - 1),
            topics=count,
            topic_bytes=sum(map(len, numbers)),
            stride=8,
        )
        self._give(CONTROL, header, body, ts_recv, held)

    def rest(self) -> None:
        self.writer.state.kind = IDLE
        self._append(self.writer.at.record)

    def _give(self, kind: int, header: bytes, body: bytes, ts_recv: int, held: int = 0) -> None:
        self._kept = numpy.frombuffer(header, numpy.uint8), numpy.frombuffer(body + bytes(8), numpy.uint8)
        given = self.writer.state
        given.kind, given.held, given.first_row, given.ts_recv = kind, held, 0, ts_recv
        given.head, given.body, given.body_bytes = self._kept[0].ctypes.data, self._kept[1].ctypes.data, len(body)
        self._append(self.writer.at.record)


def block(sequence: int, count: int = 1, ts: int = 0, epoch: int = 1, topic: bytes = b"A") -> Put:
    """A block of so many messages of one topic, sent and received at `ts`."""
    return Put(tuple(Row(topic, b"%d" % i) for i in range(count)), sequence, ts, ts, epoch)
