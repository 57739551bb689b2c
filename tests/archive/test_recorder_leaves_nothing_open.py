"""A recorder leaves no thread and no open file after its end or a failed start."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from blackbox.archive.journal_writer import JournalWriter
from blackbox.archive.journals import Journals
from blackbox.archive.recorder import Recorder
from blackbox.errors import JournalError, NotConfirmedError
from blackbox.testing import RawPublisher
from tests.archive.recorders import MIB, feed_of, segments, wait_recorded
from tests.process_state import held, linux_only, wait_given_back

pytestmark = [linux_only, pytest.mark.own_process]


@pytest.mark.parametrize(("compression", "library"), [("lz4", "lz4.block"), ("zstd", "zstandard")])
def test_a_missing_compression_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: Any, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    before = held()
    recorder = Recorder(feed_of(), tmp_path, compression=compression)
    with pytest.raises(JournalError, match=f"needs {library.partition('.')[0]}, which is not installed"):
        recorder.start()
    del recorder
    wait_given_back(before)


def test_a_start_without_a_publisher_raises_and_leaves_nothing_open(tmp_path: Path) -> None:
    feed = feed_of(slices=2)
    before = held()
    for _ in range(3):
        with pytest.raises(NotConfirmedError, match="no publisher at"):
            Recorder(feed, tmp_path).start(timeout=0.1)
    assert segments(tmp_path, feed) == segments(tmp_path, feed, 1) == []
    wait_given_back(before)


def test_it_leaves_no_thread_and_no_file_open(tmp_path: Path) -> None:
    feed = feed_of(slices=2)
    with RawPublisher(feed) as publisher:
        before = held()
        for _ in range(3):
            with Recorder(feed, tmp_path, segment_bytes=MIB) as recorder:
                for _ in range(5):
                    publisher.send(publisher.encode([(b"T", bytes(500_000))]))
                wait_recorded(recorder, 5)
        del recorder
        wait_given_back(before)


def test_a_start_that_fails_halfway_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = feed_of(slices=2)
    before = held()
    make = Journals._make_writer

    def second_fails(journals: Journals, slice_id: int) -> JournalWriter:
        if slice_id:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "some file")
        return make(journals, slice_id)

    monkeypatch.setattr(Journals, "_make_writer", second_fails)
    with pytest.raises(JournalError, match="some file: Too many open files"):
        Recorder(feed, tmp_path).start()
    wait_given_back(before)
    monkeypatch.undo()
    with RawPublisher(feed), Recorder(feed, tmp_path):
        pass  # the lock is free
