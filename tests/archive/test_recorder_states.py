"""A recorder's life: used once, one per directory, ended by stop or an error; it leaves nothing open."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from blackbox.archive.files.day import Lock
from blackbox.archive.maintain import deleter
from blackbox.archive.maintain.deleter import Deleter
from blackbox.archive.maintain.retention import Retention
from blackbox.archive.record.journal_writer import JournalWriter
from blackbox.archive.record.journals import Journals, JournalsLife
from blackbox.archive.record.keeper import Keeper
from blackbox.archive.record.recorder import Recorder
from blackbox.archive.record.settings import JournalSettings
from blackbox.errors import JournalError, NotConfirmedError
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import RawPublisher, wait_until
from tests.archive.recorders import MIB, feed_of, one_slice, payloads, segments, wait_recorded
from tests.process_state import held, linux_only, wait_given_back


@pytest.mark.parametrize("where", ["tend", "sync"])
def test_a_failed_keeper_ends_the_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no more")

    with pytest.raises(JournalError, match="its keeper failed: no more"), one_slice(tmp_path) as (_, __, recorder):
        monkeypatch.setattr(JournalWriter, where, fail)
        wait_until(lambda: recorder.state is SubscriberLife.ENDED)
        monkeypatch.undo()


def test_a_failed_keeper_does_not_poll_without_pause(tmp_path: Path) -> None:
    calls: list[float] = []
    keeper = Keeper(tmp_path, JournalSettings(fsync_interval=0.001), lambda: calls.append(time.monotonic()))
    keeper.fail("no more")
    keeper.start([], None)
    wait_until(lambda: len(calls) >= 3)
    assert keeper.end()
    assert calls[2] - calls[1] > 0.1


def test_days_are_not_deleted_after_the_end_without_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    feed, begun, go_on = feed_of(), threading.Event(), threading.Event()

    def look(_deleter: Deleter) -> list[str]:
        begun.set()
        go_on.wait(200)
        return []

    monkeypatch.setattr(Deleter, "look", look)
    monkeypatch.setattr(deleter, "_PATIENCE_S", 0.1)
    with one_slice(tmp_path, retention=Retention(days=1)):
        assert begun.wait(200)
    assert "are still being deleted: the directory stays locked until then" in caplog.text
    with pytest.raises(JournalError, match=f"is being recorded by process {os.getpid()},"):
        Recorder(feed, tmp_path).start()
    go_on.set()

    def is_free() -> bool:
        with suppress(JournalError):
            Lock(tmp_path / feed.name).close()
            return True
        return False

    wait_until(is_free)


def test_a_recorder_is_used_once_and_ended_by_stop_or_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), one_slice(tmp_path) as (feed, publisher, recorder):
        with pytest.raises(JournalError, match="start was called when running"):
            recorder.start()
        with pytest.raises(JournalError, match=f"is being recorded by process {os.getpid()},"):
            Recorder(feed, tmp_path).start()
        with pytest.raises(RuntimeError, match="journals of feed .* was to be open when it was open, expected closing"):
            recorder._journals.open()
        thread = threading.Thread(target=recorder.run)
        thread.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        wait_recorded(recorder, 1)
        raise ZeroDivisionError
    thread.join()
    recorder.stop()
    with pytest.raises(JournalError, match="start was called when ended"):
        recorder.start()
    assert (recorder.state, recorder._journals.life) == (SubscriberLife.ENDED, JournalsLife.CLOSED)
    assert payloads(tmp_path, feed) == [b"0"]
    with pytest.raises(JournalError, match="holds a feed whose key_bytes is 0, expected 2"):
        Recorder(feed_of(key_bytes=2), tmp_path).start()


@pytest.mark.parametrize(("compression", "library"), [("lz4", "lz4.block"), ("zstd", "zstandard")])
def test_a_missing_compression_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: Any, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(JournalError, match=f"needs {library.partition('.')[0]}, which is not installed"):
        Recorder(feed_of(), tmp_path, compression=compression).start()


def test_stop_before_start_opens_nothing(tmp_path: Path) -> None:
    recorder = Recorder(feed_of(), tmp_path)
    recorder.stop()
    assert recorder.statistics().messages == 0
    with pytest.raises(JournalError, match="start was called when ended"):
        recorder.start()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"segment_bytes": 5}, "segment_bytes was 5, expected 1048576 to"),
        ({"fsync_interval": 0}, "fsync_interval was 0, expected 0.001 to 3600 seconds"),
        ({"fsync": "often"}, "fsync was 'often', expected never, interval or block"),
        ({"compression": "rar"}, "compression was 'rar', expected none, lz4 or zstd"),
    ],
)
def test_invalid_settings_are_rejected(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Recorder(feed_of(), tmp_path, **settings)


@linux_only
@pytest.mark.own_process
def test_it_leaves_no_thread_and_no_file_open(tmp_path: Path) -> None:
    feed = feed_of(slices=2)
    before = held()
    for _ in range(3):
        with pytest.raises(NotConfirmedError, match="no publisher at"):
            Recorder(feed, tmp_path).start(timeout=0.1)
    assert segments(tmp_path, feed) == segments(tmp_path, feed, 1) == []
    wait_given_back(before)
    with RawPublisher(feed) as publisher:
        before = held()
        for _ in range(3):
            with Recorder(feed, tmp_path, segment_bytes=MIB) as recorder:
                for _ in range(5):
                    publisher.send(publisher.encode([(b"T", bytes(500_000))]))
                wait_recorded(recorder, 5)
        del recorder
        wait_given_back(before)


@linux_only
@pytest.mark.own_process
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
