"""Sync policies: when a journal is synced, and the end after a failed sync."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import numpy
import pytest

from blackbox.archive.record.journal_state import Wanted
from blackbox.archive.record.journal_writer import JournalWriter
from blackbox.archive.record.settings import JournalSettings
from blackbox.block.batch.block_handler import BLOCK, IDLE
from blackbox.transport.wakeup import Pipe
from tests import journals
from tests.archive.recorders import FOREVER_NS, MIB
from tests.journals import Put, Row


class Writer:
    """A journal writer with a block of two messages to append."""

    def __init__(self, path: Path, *, sync_each: bool = False) -> None:
        day = (journals.Day(path, journals.feed_of()).path, FOREVER_NS * 10**6)
        settings = JournalSettings(segment_bytes=MIB, fsync="block" if sync_each else "interval")
        self.writer = JournalWriter(0, 0, settings, Pipe(), lambda _: day)
        self.state = self.writer.state
        self._append = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.writer.handler.function)
        parts = Put((Row(b"T", b"1"), Row(b"T", b"2"))).block(0)
        self._kept = header, body = [numpy.frombuffer(part, numpy.uint8) for part in parts]
        self.state.head, self.state.body, self.state.body_bytes = header.ctypes.data, body.ctypes.data, len(body)
        self.state.ts_recv = 1

    def append(self, *kinds: int) -> None:
        for kind in kinds:
            self.state.kind = kind
            self._append(self.writer.handler.record)


@pytest.mark.parametrize("sync_each", [True, False])
def test_each_block_is_synced_when_told(tmp_path: Path, sync_each: bool) -> None:
    """The file is replaced with a pipe, which cannot be synced, so a sync raises."""
    pipe, made = Pipe(), Writer(tmp_path, sync_each=sync_each)
    made.state.fd = pipe.writer
    made.append(BLOCK, IDLE)
    assert (made.state.messages, made.state.lost) == ((0, 2) if sync_each else (2, 0))
    assert made.state.error == (errno.EINVAL if sync_each else 0)
    made.writer.close()


def test_no_sync_succeeds_after_one_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Writer(tmp_path)
    made.append(BLOCK)
    made.state.wanted = Wanted.MORE_ROOM
    made.writer.tend()
    made.append(BLOCK)  # to the next segment
    sync, failed = os.fdatasync, list[int]()

    def fails_once(fd: int) -> None:
        if failed:
            return sync(fd)
        failed.append(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fails_once)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            made.writer.sync(what_is_written=True)
    with pytest.raises(OSError, match="Input/output error"):
        made.writer.close()


def test_synced_data_is_not_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    made = Writer(tmp_path)
    for blocks in range(3):
        for _ in range(3):
            made.writer.sync(what_is_written=True)
            assert len(synced) == 1 + blocks, "the head of the segment, then each block"
        made.state.flushed = 0  # as after a long idle time
        made.append(BLOCK, IDLE)
    made.writer.close()
    assert len(synced) == 4
