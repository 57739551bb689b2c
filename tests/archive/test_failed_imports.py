"""Imports that fail, are interrupted, killed or rejected leave no day, and existing days unchanged."""

from __future__ import annotations

import datetime
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blackbox_feeds.binance import Binance
from blackbox_feeds.synthetic import Synthetic

from blackbox import ConfigError, Recording
from blackbox.archive.column_writer import ColumnWriter
from blackbox.archive.day import IMPORT_LOCK, LOCK, recorded_days
from blackbox.archive.import_days import import_days
from blackbox.errors import JournalError, SourceError
from blackbox.feed.source import Chunk
from blackbox.testing import wait_until
from tests.archive.imports import DAY, DAY_NS, NOON, Made, feed_of, told

ROOT = Path(__file__).resolve().parents[2]


class Held(Made):
    """An endless source that waits before its second chunk until another source has failed."""

    def __init__(self, failed: threading.Event, date: datetime.date) -> None:
        super().__init__([(b"A.t", b"1", NOON)], date=date)
        self._failed = failed

    def chunks(self) -> Iterator[Chunk]:
        yield from super().chunks()
        assert self._failed.wait(60)
        while True:
            yield from super().chunks()


class Failing(Made):
    """A source that fails at its end."""

    def __init__(self, failed: threading.Event, date: datetime.date) -> None:
        super().__init__([(b"A.t", b"1", NOON)], date=date)
        self._failed = failed

    def chunks(self) -> Iterator[Chunk]:
        yield from super().chunks()
        self._failed.set()
        raise SourceError("cannot be read")


def test_a_failed_day_ends_unfinished_days_and_keeps_finished_ones(tmp_path: Path) -> None:
    failed = threading.Event()
    done = Made([(b"A.t", b"1", NOON)], date=datetime.date(2026, 1, 5))
    held = Held(failed, datetime.date(2026, 1, 6))
    failing = Failing(failed, datetime.date(2026, 1, 7))
    with pytest.raises(SourceError, match="cannot be read"):
        import_days(feed_of("raw"), tmp_path, [done, held, failing], threads=2)
    assert [day.name for day in recorded_days(tmp_path / "imported")] == ["2026-01-05"]
    assert not (tmp_path / "imported" / "importing").exists()


def test_the_check_of_a_day_ends_at_once_if_another_day_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = threading.Event()
    ended: list[BaseException] = []

    def examine(_: Recording, progress: Callable[[int], object]) -> None:
        checked.set()
        try:
            wait_until(lambda: progress(0) is not None, 60, what="the end of a large day")
        except BaseException as error:
            ended.append(error)
            raise

    monkeypatch.setattr(Recording, "examine", examine)
    whole = Made([(b"A.t", b"1", NOON)], date=datetime.date(2026, 1, 5))
    failing = Failing(threading.Event(), datetime.date(2026, 1, 6))
    monkeypatch.setattr(failing, "chunks", lambda: (checked.wait(60), Failing.chunks(failing))[1])
    with pytest.raises(SourceError, match="cannot be read"):
        import_days(feed_of("raw"), tmp_path, [whole, failing], threads=2)
    assert [type(error).__name__ for error in ended] == ["_EndedError"]
    assert recorded_days(tmp_path / "imported") == []
    assert not (tmp_path / "imported" / "importing").exists()


INTERRUPTED = """
import sys, threading
from blackbox import Feed
from blackbox.archive.import_days import import_days
from blackbox_feeds.synthetic import Synthetic
import msgspec
feed = msgspec.structs.replace(Feed.local("imported"), schema="itch50")
try:
    import_days(feed, sys.argv[1], [Synthetic(40_000_000, date=f"2026-01-0{day}") for day in (5, 6)], threads=2)
except KeyboardInterrupt:
    print("interrupted", threading.active_count())
"""


def test_an_interrupted_import_ends_and_leaves_no_day(tmp_path: Path) -> None:
    compiled = feed_of("itch50")
    import_days(
        compiled, tmp_path / "compiled", [Synthetic(1_000, date="2026-01-05")]
    )  # so that the process does not compile
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'feeds'}"}
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    feed = tmp_path / "imported"
    wait_until(lambda: any(path.stat().st_size > 64 for path in feed.glob("importing/*/new/*/*.journal")), 240)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=240)[0] == "interrupted 1\n"
    assert recorded_days(feed) == []
    assert not (feed / "importing").exists()


def test_an_existing_day_is_rejected_before_anything_is_written(tmp_path: Path) -> None:
    feed = feed_of("raw", slices=1)
    import_days(feed, tmp_path, [Made([(b"A.t", b"1", NOON)])])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(JournalError, match="2026-01-05 exists, expected a day that is not there yet"):
        import_days(feed, tmp_path, [Made([(b"A.t", b"2", NOON - DAY_NS)]), Made([(b"A.t", b"2", NOON)])])
    assert sorted(tmp_path.rglob("*")) == before
    (day,) = import_days(feed, tmp_path, [Made([(b"A.t", b"2", NOON)])], replace=True)
    assert told(Recording.open(day.path)) == [(b"A.t", b"2", NOON)]
    assert sorted(path.name for path in (tmp_path / feed.name).iterdir()) == [IMPORT_LOCK, LOCK, "2026-01-05"]


def test_a_failed_source_leaves_no_day_and_keeps_the_day_to_replace(tmp_path: Path) -> None:
    feed = feed_of("raw", slices=1)
    rows = [(b"A.t", b"1", NOON)]
    (day,) = import_days(feed, tmp_path, [Made(rows)])
    with pytest.raises(SourceError, match="cannot be read"):
        import_days(feed, tmp_path, [Made(rows, rows, error=SourceError("cannot be read"))], replace=True)
    assert told(Recording.open(day.path)) == rows
    with pytest.raises(SourceError, match="cannot be read"):
        import_days(feed, tmp_path, [Made(rows, error=SourceError("cannot be read"), date=datetime.date(2026, 1, 9))])
    assert recorded_days(tmp_path / feed.name) == [day.path]
    assert not (tmp_path / feed.name / "importing").exists()


def test_a_source_without_messages_leaves_no_day_and_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hello.txt"
    for content in (b"hello\n", b""):
        file.write_bytes(content)
        with pytest.raises(SourceError, match="2026-01-05 has no message: .*hello.txt"):
            import_days(feed_of("raw"), tmp_path, [Binance(file)], date=DAY)
        assert recorded_days(tmp_path / "imported") == []


@pytest.mark.parametrize("threads", [1, 2])
def test_a_day_without_messages_does_not_end_other_imports(tmp_path: Path, threads: int) -> None:
    sources = [Made([], date=datetime.date(2026, 1, 5)), Made([(b"A.t", b"1", NOON)], date=datetime.date(2026, 1, 6))]
    sources.append(Made([], date=datetime.date(2026, 1, 7)))
    with pytest.raises(SourceError, match=r"2026-01-05 has no message: .*; 2026-01-07 has no message"):
        import_days(feed_of("raw"), tmp_path, sources, threads=threads)
    assert [day.name for day in recorded_days(tmp_path / "imported")] == ["2026-01-06"]


def test_a_day_is_checked_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = ColumnWriter.close

    def spoil(writer: ColumnWriter) -> None:
        close(writer)
        (path,) = tmp_path.rglob("*.journal")
        data = bytearray(path.read_bytes())
        data[data.index(b"payload")] ^= 1
        path.write_bytes(data)

    monkeypatch.setattr(ColumnWriter, "close", spoil)
    with pytest.raises(JournalError, match="the day had 1 messages, expected 1: .*checksum"):
        import_days(feed_of("raw", slices=1), tmp_path, [Made([(b"A.t", b"payload", NOON)])])
    assert recorded_days(tmp_path / "imported") == []


IMPORT = """
import sys
from pathlib import Path
from blackbox import Feed
from blackbox.archive import import_days as module
from blackbox_feeds.synthetic import Synthetic
import msgspec
feed = msgspec.structs.replace(Feed.local("imported"), schema="itch50")
module.import_days(feed, sys.argv[1], [Synthetic(40_000_000)])
"""


def test_a_killed_import_leaves_no_day_and_the_next_one_cleans_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'feeds'}"}
    process = subprocess.Popen([sys.executable, "-c", IMPORT, str(tmp_path)], env=environment)
    feed = tmp_path / "imported"
    try:
        wait_until(lambda: any(path.stat().st_size > 64 for path in feed.glob("importing/*/new/*/*.journal")), 240)
        with pytest.raises(JournalError, match=rf"is being imported into by process {process.pid}, expected no other"):
            import_days(feed_of(), tmp_path, [Synthetic(1_000, date="2026-01-06")])
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert recorded_days(feed) == []
    with pytest.raises(JournalError, match="is not a recording|holds"):
        Recording.open(feed)
    assert list(feed.glob("*/*/manifest.json")) == []
    (day,) = import_days(feed_of(), tmp_path, [Synthetic(1_000)])
    assert recorded_days(feed) == [day.path]
    assert "removed an unfinished import of 2026-01-05" in caplog.text
    assert not (feed / "importing").exists()


def test_a_day_is_restored_if_its_replacement_was_killed_between_renames(tmp_path: Path) -> None:
    feed = feed_of("raw", slices=1)
    rows = [(b"A.t", b"1", NOON)]
    (day,) = import_days(feed, tmp_path, [Made(rows)])
    place = tmp_path / feed.name / "importing" / "2026-01-05.abc"
    place.mkdir(parents=True)
    shutil.copytree(day.path, place / "new")
    day.path.rename(place / "old")
    with pytest.raises(JournalError, match="2026-01-05 exists"):
        import_days(feed, tmp_path, [Made(rows)])
    assert told(Recording.open(day.path)) == rows
    assert not place.exists()


FULL = """
import errno, os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from blackbox import Feed
from blackbox.errors import JournalError
from blackbox.archive.import_days import import_days
from blackbox_feeds.synthetic import Synthetic
import msgspec
feed = msgspec.structs.replace(Feed.local("imported"), schema="itch50")
import_days(feed, sys.argv[1], [Synthetic(1_000)])
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    import_days(feed, sys.argv[1], [Synthetic(500_000, date="2026-01-06")])
except JournalError as error:
    print(error)
"""


def test_a_full_disk_is_named_and_leaves_no_day(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'feeds'}"}
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=200
    )
    assert os.strerror(errno.EFBIG) in ended.stdout, ended.stderr
    assert ".journal" in ended.stdout
    assert [day.name for day in recorded_days(tmp_path / "imported")] == ["2026-01-05"]
    assert not (tmp_path / "imported" / "importing").exists()


def test_invalid_settings_are_rejected(tmp_path: Path) -> None:
    rows = [(b"A.t", b"1", NOON)]
    with pytest.raises(ConfigError, match="has schema 'raw', expected 'itch50' of feed 'imported'"):
        import_days(feed_of(), tmp_path, [Made(rows)])
    with pytest.raises(ConfigError, match="no source was given"):
        import_days(feed_of(), tmp_path, [])
    with pytest.raises(ValueError, match="compression was 'gzip', expected one of: none, lz4, zstd"):
        import_days(feed_of("raw"), tmp_path, [Made(rows)], compression="gzip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads were 0, expected at least 1"):
        import_days(feed_of("raw"), tmp_path, [Made(rows)], threads=0)
    with pytest.raises(ConfigError, match="topic was empty"):
        import_days(feed_of("raw"), tmp_path, [Made([(b"", b"1", NOON)])])
    assert list(tmp_path.rglob("manifest.json")) == []
