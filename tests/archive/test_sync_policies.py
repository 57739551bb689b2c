"""Sync policies."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Literal

import numpy
import pytest

from blackbox.archive.append import MORE_ROOM
from blackbox.archive.journal_writer import JournalWriter
from blackbox.block.block_handler import BLOCK, IDLE
from blackbox.transport.wakeup import Pipe
from tests import journals
from tests.archive.recorders import FOREVER_NS, MIB, one_slice, payloads, wait_recorded
from tests.journals import Put, Row


@pytest.mark.parametrize("fsync", ["never", "interval", "block"])
def test_every_sync_policy_records_all(tmp_path: Path, fsync: Literal["never", "interval", "block"]) -> None:
    with one_slice(tmp_path, fsync=fsync, fsync_interval=0.001) as (feed, publisher, recorder):
        for number in range(200):
            publisher.send(publisher.encode([(b"T", b"%d" % number), (b"T", bytes(20_000 * (number % 3)))]))
        wait_recorded(recorder, 400)
    assert payloads(tmp_path, feed)[::2] == [b"%d" % number for number in range(200)]
    assert recorder.statistics().lost == 0


@pytest.mark.parametrize(("sync_each", "stored_messages"), [(True, 0), (False, 2)])
def test_each_block_is_synced_when_told(tmp_path: Path, sync_each: bool, stored_messages: int) -> None:
    """The file is replaced with a pipe, which cannot be synced, so a sync raises."""
    pipe, wake = Pipe(), Pipe()
    day = (journals.Day(tmp_path, journals.feed_of()).path, FOREVER_NS * 10**6)
    writer = JournalWriter(0, 0, MIB, sync_each, "none", wake, lambda _: day)
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64)(writer.at.function)
    given = writer.state
    given.fd = pipe.writer
    header, body = (numpy.frombuffer(part, numpy.uint8) for part in Put((Row(b"T", b"1"), Row(b"T", b"2"))).block(0))
    given.head, given.body, given.body_bytes, given.ts_recv = header.ctypes.data, body.ctypes.data, len(body), 1
    for kind in (BLOCK, IDLE):
        given.kind = kind
        function(writer.at.record)
    assert given.messages == stored_messages
    assert given.lost == 2 - stored_messages
    assert given.error == (errno.EINVAL if sync_each else 0)
    writer.close()


def test_no_sync_succeeds_after_one_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = (journals.Day(tmp_path, journals.feed_of()).path, FOREVER_NS * 10**6)
    writer = JournalWriter(0, 0, MIB, False, "none", Pipe(), lambda _: day)
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64)(writer.at.function)
    header, body = (numpy.frombuffer(part, numpy.uint8) for part in Put((Row(b"T", b"1"),)).block(0))
    given = writer.state
    given.head, given.body, given.body_bytes, given.ts_recv = header.ctypes.data, body.ctypes.data, len(body), 1
    given.kind = BLOCK
    function(writer.at.record)
    given.wanted = MORE_ROOM
    writer.tend()
    function(writer.at.record)  # to the next segment
    sync, failed = os.fdatasync, list[int]()

    def fails_once(fd: int) -> None:
        if failed:
            return sync(fd)
        failed.append(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fails_once)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            writer.sync(what_is_written=True)
    with pytest.raises(OSError, match="Input/output error"):
        writer.close()


def test_synced_data_is_not_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def sync(fd: int) -> None:
        os.fsync(fd)
        synced.append(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    day = (journals.Day(tmp_path, journals.feed_of()).path, FOREVER_NS * 10**6)
    writer = JournalWriter(0, 0, MIB, False, "none", Pipe(), lambda _: day)
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64)(writer.at.function)
    header, body = (numpy.frombuffer(part, numpy.uint8) for part in Put((Row(b"T", b"1"),)).block(0))
    given = writer.state
    given.head, given.body, given.body_bytes, given.ts_recv = header.ctypes.data, body.ctypes.data, len(body), 1
    for blocks in range(3):
        for _ in range(3):
            writer.sync(what_is_written=True)
            assert len(synced) == 1 + blocks, "the head of the segment, then each block"
        given.flushed = 0  # as after a long idle time
        for kind in (BLOCK, IDLE):
            given.kind = kind
            function(writer.at.record)
    writer.close()
    assert len(synced) == 4
