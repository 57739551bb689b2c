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
from contextlib import nullcontext
from pathlib import Path

import pytest
from blackbox_feeds.synthetic import Synthetic

from blackbox import ConfigError, Recording
from blackbox.archive.files.day import IMPORT_LOCK, LOCK, recorded_days
from blackbox.archive.importing.column_writer import ColumnWriter
from blackbox.archive.importing.import_days import import_days
from blackbox.errors import JournalError, SourceError
from blackbox.feed.source import Chunk, Source
from blackbox.testing import wait_until
from tests.archive.imports import DAY_NS, NOON, Made, feed_of, told
from tests.damaged import flip

ROOT = Path(__file__).resolve().parents[2]
ROWS = [(b"A.t", b"1", NOON)]


def names_of(directory: Path) -> list[str]:
    """Return the finished days; check that nothing else is left."""
    assert not (directory / "imported" / "importing").exists()
    return [day.name for day in recorded_days(directory / "imported")]


def test_a_failed_day_ends_unfinished_days_and_keeps_finished_ones(tmp_path: Path) -> None:
    failed = threading.Event()

    class Held(Made):
        """An endless source that waits before its second chunk until another source has failed."""

        def chunks(self) -> Iterator[Chunk]:
            yield from super().chunks()
            assert failed.wait(200)
            while True:
                yield from super().chunks()

    class Failing(Made):
        def chunks(self) -> Iterator[Chunk]:
            yield from super().chunks()
            failed.set()
            raise SourceError("cannot be read")

    sources = [kind(ROWS, date=datetime.date(2026, 1, day)) for day, kind in ((5, Made), (6, Held), (7, Failing))]
    with pytest.raises(SourceError, match="cannot be read"):
        import_days(feed_of("raw"), tmp_path, sources, threads=2)
    assert names_of(tmp_path) == ["2026-01-05"]


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

    class Failing(Made):
        def chunks(self) -> Iterator[Chunk]:
            assert checked.wait(200)
            raise SourceError("cannot be read")

    monkeypatch.setattr(Recording, "examine", examine)
    sources = Made(ROWS, date=datetime.date(2026, 1, 5)), Failing(ROWS, date=datetime.date(2026, 1, 6))
    with pytest.raises(SourceError, match="cannot be read"):
        import_days(feed_of("raw"), tmp_path, sources, threads=2)
    assert [type(error).__name__ for error in ended] == ["_EndedError"]
    assert names_of(tmp_path) == []


def test_an_existing_day_is_rejected_before_anything_is_written(tmp_path: Path) -> None:
    feed = feed_of("raw", slices=1)
    import_days(feed, tmp_path, [Made(ROWS)])
    before, other = sorted(tmp_path.rglob("*")), [(b"A.t", b"2", NOON)]
    with pytest.raises(JournalError, match="2026-01-05 exists, expected a day that is not there yet"):
        import_days(feed, tmp_path, [Made([(b"A.t", b"2", NOON - DAY_NS)]), Made(other)])
    assert sorted(tmp_path.rglob("*")) == before
    (day,) = import_days(feed, tmp_path, [Made(other)], replace=True)
    assert told(Recording.open(day.path)) == other
    assert sorted(path.name for path in (tmp_path / feed.name).iterdir()) == [IMPORT_LOCK, LOCK, "2026-01-05"]


def test_a_failed_source_leaves_no_day_and_keeps_the_day_to_replace(tmp_path: Path) -> None:
    feed, error = feed_of("raw", slices=1), SourceError("cannot be read")
    (day,) = import_days(feed, tmp_path, [Made(ROWS)])
    for failing in (Made(ROWS, ROWS, error=error), Made(ROWS, error=error, date=datetime.date(2026, 1, 9))):
        with pytest.raises(SourceError, match="cannot be read"):
            import_days(feed, tmp_path, [failing], replace=True)
    assert told(Recording.open(day.path)) == ROWS
    assert names_of(tmp_path) == ["2026-01-05"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_day_without_messages_is_named_and_does_not_end_other_imports(tmp_path: Path, threads: int) -> None:
    sources = [Made(rows, date=datetime.date(2026, 1, day)) for day, rows in ((5, []), (6, ROWS), (7, []))]
    with pytest.raises(SourceError, match=r"2026-01-05 has no message: .*; 2026-01-07 has no message"):
        import_days(feed_of("raw"), tmp_path, sources, threads=threads)
    assert names_of(tmp_path) == ["2026-01-06"]


def test_an_empty_source_of_a_day_with_others_is_named(tmp_path: Path) -> None:
    date = datetime.date(2026, 1, 5)

    class Following(Made):
        def follow(self, before: Source) -> bool:
            return True

    for number, (empty, is_named) in enumerate(((Made(date=date), True), (Following(date=date), False))):
        feed = feed_of("raw", name=f"imported{number}")
        with pytest.raises(SourceError, match="^<.*Made.*> has no message$") if is_named else nullcontext():
            import_days(feed, tmp_path, [Made(ROWS, date=date), empty])
        assert told(Recording.open(tmp_path / feed.name / "2026-01-05")) == ROWS


def test_a_day_is_checked_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = ColumnWriter.close

    def spoil(writer: ColumnWriter) -> None:
        close(writer)
        (path,) = tmp_path.rglob("*.journal")
        flip(path, b"payload")

    monkeypatch.setattr(ColumnWriter, "close", spoil)
    with pytest.raises(JournalError, match="the day had 1 messages, expected 1: .*checksum"):
        import_days(feed_of("raw", slices=1), tmp_path, [Made([(b"A.t", b"payload", NOON)])])
    assert recorded_days(tmp_path / "imported") == []


IMPORT = """
import resource, signal, sys
from blackbox import Feed
from blackbox.errors import JournalError
from blackbox.archive.importing.import_days import import_days
from blackbox_feeds.synthetic import Synthetic
import msgspec
feed = msgspec.structs.replace(Feed.local("imported"), schema="itch50")
if "full" in sys.argv:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    import_days(feed, sys.argv[1], [Synthetic(1_000)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    import_days(feed, sys.argv[1], [Synthetic(40_000_000, date="2026-01-06")])
except JournalError as error:
    print(error)
"""


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", IMPORT, *map(str, words)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'feeds'}"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_the_next_import_cleans_up_after_a_killed_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    feed = tmp_path / "imported"
    with start(tmp_path) as process:
        try:
            wait_until(lambda: any(path.stat().st_size > 64 for path in feed.glob("importing/*/new/*/*.journal")), 300)
            process.send_signal(signal.SIGSTOP)
            owner = rf"is being imported into by process {process.pid}, expected no other"
            with pytest.raises(JournalError, match=owner):
                import_days(feed_of(), tmp_path, [Synthetic(1_000, date="2026-01-05")])
        finally:
            process.kill()
    assert recorded_days(feed) == []
    with pytest.raises(JournalError, match="is not a recording|holds"):
        Recording.open(feed)
    import_days(feed_of(), tmp_path, [Synthetic(1_000, date="2026-01-06")])
    assert names_of(tmp_path) == ["2026-01-06"]
    assert "removed an unfinished import of 2026-01-06" in caplog.text


def test_a_day_is_restored_if_its_replacement_was_killed_between_renames(tmp_path: Path) -> None:
    feed = feed_of("raw", slices=1)
    (day,) = import_days(feed, tmp_path, [Made(ROWS)])
    place = tmp_path / feed.name / "importing" / "2026-01-05.abc"
    place.mkdir(parents=True)
    shutil.copytree(day.path, place / "new")
    day.path.rename(place / "old")
    with pytest.raises(JournalError, match="2026-01-05 exists"):
        import_days(feed, tmp_path, [Made(ROWS)])
    assert told(Recording.open(day.path)) == ROWS
    assert not place.exists()


def test_a_full_disk_is_named_and_leaves_no_day(tmp_path: Path) -> None:
    with start(tmp_path, "full") as process:
        said, _ = process.communicate(timeout=300)
    assert os.strerror(errno.EFBIG) in said
    assert ".journal" in said
    assert len(names_of(tmp_path)) == 1


def test_invalid_settings_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has schema 'raw', expected 'itch50' of feed 'imported'"):
        import_days(feed_of(), tmp_path, [Made(ROWS)])
    with pytest.raises(ConfigError, match="no source was given"):
        import_days(feed_of(), tmp_path, [])
    with pytest.raises(ValueError, match="compression was 'gzip', expected one of: none, lz4, zstd"):
        import_days(feed_of("raw"), tmp_path, [Made(ROWS)], compression="gzip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads were 0, expected at least 1"):
        import_days(feed_of("raw"), tmp_path, [Made(ROWS)], threads=0)
    with pytest.raises(ConfigError, match="topic was empty"):
        import_days(feed_of("raw"), tmp_path, [Made([(b"", b"1", NOON)])])
    assert list(tmp_path.rglob("manifest.json")) == []
