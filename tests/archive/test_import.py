"""Importing: the very messages that publishing, recording and compacting give, under their own dates, or no day."""

from __future__ import annotations

import datetime
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
from blackbox_feeds.binance import Binance
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.iex import Iex
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.synthetic import Synthetic
from blackbox_feeds.tape import Tape

from blackbox import ConfigError, Feed, JournalError, Recorder, Recording, Source, SourceError
from blackbox.archive import column_writer
from blackbox.archive.column_writer import ColumnWriter
from blackbox.archive.compact import compact
from blackbox.archive.day import recorded_days
from blackbox.archive.import_days import import_days
from blackbox.archive.marks import MarkKind
from blackbox.feed.schema import RAW, Schema
from blackbox.feed.source import Chunk
from blackbox.testing import wait_until
from tests.recorded import record

DAY = datetime.date(2026, 1, 5)
ROOT = Path(__file__).resolve().parents[2]

REAL: dict[str, Callable[[Path], Source]] = {
    "itch50": lambda data: Itch50(data / "itch50/runk_locate-13-10k.bin", date="2020-01-30"),
    "iex deep": lambda data: Iex(data / "iex/goiex_DEEP10.pcap.gz"),
    "iex tops": lambda data: Iex(data / "iex/goiex_TOPS16.pcapng.gz"),
    "tape": lambda data: Tape([data / "lean" / name for name in ("ibm_20131007_trade.zip", "ibm_20131007_quote.zip")]),
    "dbn": lambda data: Dbn(next((data / "dbn").glob("esh4-*20231225.mbo.dbn.zst"))),
    "binance": lambda data: Binance(data / "binance/cm_btcusd_perp_20240808.gz"),
}


def feed_of(schema: str = "itch50", name: str = "imported", slices: int = 2, **settings: Any) -> Feed:
    return msgspec.structs.replace(Feed.local(name, slices), schema=schema, **settings)


def messages_of(
    recording: Recording,
) -> dict[tuple[int, bytes], tuple[list[int], list[int], list[bytes], bytes, list[int]]]:
    """By slice and key, in the order of the journal: numbers, times, topics, payloads and their sizes."""
    parts = defaultdict(list)
    for batch in recording.batches():
        parts[batch.block.slice_id, batch.block.key].append(batch)
        assert batch.block.schema_id == recording.schema.schema_id
    return {
        name: (
            [number for batch in batches for number in batch.sequence.tolist()],
            [time for batch in batches for time in batch.ts_event.tolist()],
            [batch.topics[index] for batch in batches for index in batch.topic_index.tolist()],
            b"".join(batch.payloads().tobytes() for batch in batches),
            [size for batch in batches for size in numpy.diff(batch.payload_offsets()).tolist()],
        )
        for name, batches in parts.items()
    }


@pytest.mark.parametrize("key_bytes", [0, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", REAL)
def test_what_is_imported_equals_what_is_published_recorded_and_compacted(
    shared_data: Path, tmp_path: Path, name: str, key_bytes: int
) -> None:
    source = REAL[name](shared_data)
    feed = feed_of(source.schema.name, "export", key_bytes=key_bytes)
    (day,) = import_days(feed, tmp_path / "imported", [source], date=DAY, compression="zstd")
    recorded = record(tmp_path / "recorded", "export", lambda: REAL[name](shared_data), key_bytes=key_bytes)
    (recorded_day,) = recorded_days(recorded)
    compact(Recording.open(recorded_day), tmp_path / "compacted", compression="zstd")
    imported, compacted = Recording.open(day.path), Recording.open(tmp_path / "compacted")
    assert messages_of(imported) == messages_of(compacted)
    assert (imported.schema, imported.date, imported.verify(), imported.gaps()) == (source.schema, DAY, [], [])
    assert day.messages == sum(compacted.counts().values())
    assert imported.summary().blocks <= compacted.summary().blocks * 1.2 + 4
    if name == "iex deep":
        assert "goiex_DEEP10.pcap.gz" in day.truncated[0]


def test_an_imported_day_says_that_its_run_is_whole(tmp_path: Path) -> None:
    (day,) = import_days(feed_of(slices=3), tmp_path, [Synthetic(2_000, symbols=1)])
    recording = Recording.open(day.path)
    for slice_id in range(3):
        kinds = [mark.kind for mark in recording.marks([slice_id])]
        assert kinds == [
            MarkKind.SEGMENT_BEGIN,
            MarkKind.RECORDER_BEGIN,
            MarkKind.EPOCH_BEGIN,
            MarkKind.EPOCH_END,
            MarkKind.RECORDER_END,
            MarkKind.SEGMENT_END,
        ]
        assert all(not mark.keys and not mark.flags for mark in recording.marks([slice_id]))
    shutil.rmtree(day.path / "slice-00001")
    assert any("slice-00001" in str(each.path) for each in Recording.open(day.path).verify())


def test_a_day_that_is_imported_again_has_the_same_numbers_and_times(tmp_path: Path) -> None:
    first, second = (
        Recording.open(import_days(feed_of(), tmp_path / name, [Synthetic(30_000)])[0].path) for name in ("a", "b")
    )
    assert first.to_arrow() == second.to_arrow()
    (low, high), (out_low, out_high) = first.time_range("ts_event"), first.time_range("ts_out")
    assert low <= out_low <= out_high == high
    for batch in first.batches():
        assert batch.block.ts_out >= batch.ts_event.max()
    assert first.time("09:30", "ts_out") == first.time("09:30")


class Made(Source):
    """Messages as they are told, a chunk a list; then perhaps an error."""

    schema = RAW

    def __init__(
        self,
        *chunks: list[tuple[bytes, bytes, int]],
        date: datetime.date | None = None,
        error: Exception | None = None,
        schema: Schema = RAW,
    ) -> None:
        self._chunks, self.date, self._error = chunks, date, error
        self.schema = schema

    def chunks(self) -> Iterator[Chunk]:
        topics: tuple[bytes, ...] = ()
        for rows in self._chunks:
            topics += tuple(dict.fromkeys(topic for topic, _, _ in rows if topic not in topics))
            sizes = numpy.array([len(payload) for _, payload, _ in rows], numpy.int32)
            yield Chunk(
                topics,
                numpy.array([topics.index(topic) for topic, _, _ in rows], numpy.int32),
                numpy.array([time for _, _, time in rows], numpy.int64),
                numpy.frombuffer(b"".join(payload for _, payload, _ in rows) or b"\0", numpy.uint8),
                numpy.cumsum(sizes, dtype=numpy.int64) - sizes,
                sizes,
            )
        if self._error is not None:
            raise self._error


NOON = 1_767_614_400 * 10**9
"""2026-01-05 12:00 UTC."""
DAY_NS = 86_400 * 10**9


def told(recording: Recording) -> list[tuple[bytes, bytes, int]]:
    return [(message.topic, message.payload, message.ts_event) for batch in recording.batches() for message in batch]


def test_the_date_is_the_given_one_or_the_source_s_or_that_of_the_first_message_with_a_time(tmp_path: Path) -> None:
    feed = feed_of("raw")
    rows = [(b"A.t", b"1", 0), (b"A.t", b"2", NOON)]
    for number, (source, given, expected) in enumerate([
        (Made(rows), None, "2026-01-05"),
        (Made(rows, date=datetime.date(2026, 1, 6)), None, "2026-01-06"),
        (Made(rows, date=datetime.date(2026, 1, 6)), datetime.date(2026, 1, 7), "2026-01-07"),
    ]):  # fmt: skip
        (day,) = import_days(feed, tmp_path / str(number), [source], date=given)
        assert (str(day.date), day.path.name, str(Recording.open(day.path).date)) == (expected,) * 3
        assert day.outside == (expected != "2026-01-05")
    with pytest.raises(SourceError, match="tells no date .its first messages have no time.: give the date"):
        import_days(feed, tmp_path / "none", [Made(rows[:1])])


def test_a_name_tells_the_date_of_captures(tmp_path: Path) -> None:
    assert Iex("data_feeds_20180127_20180127_IEXTP1_DEEP1.0.pcap.gz").date == datetime.date(2018, 1, 27)
    assert Dbn("glbx-mdp3-20231225.mbo.dbn.zst").date == datetime.date(2023, 12, 25)
    assert Binance("btcusdt_20240808.gz").date == datetime.date(2024, 8, 8)
    assert Dbn("glbx-mdp3-20231225-20231226.dbn").date is None
    assert Iex("DEEP.pcap").date is None


def test_a_directory_of_tape_is_as_many_days_as_its_files_have(shared_data: Path, tmp_path: Path) -> None:
    files = sorted((shared_data / "lean").glob("ibm_*"))
    feed = feed_of("tape", time_zone="America/New_York")
    done = import_days(feed, tmp_path, [Tape(files)])
    assert [str(day.date) for day in done] == ["2013-10-07", "2013-10-08", "2013-10-09"]
    days = [Tape(files, date=day.date) for day in done]
    assert [day.messages for day in done] == [sum(len(c.starts) for c in day.chunks()) for day in days]
    assert [day.outside for day in done] == [0, 0, 0]
    assert recorded_days(tmp_path / feed.name) == [day.path for day in done]


def test_several_days_are_imported_at_a_time(tmp_path: Path) -> None:
    sources = [Synthetic(20_000, date=f"2026-01-{day:02}") for day in (5, 6, 7)]
    told: list[str] = []
    done = import_days(feed_of(), tmp_path, sources, threads=2, imported=lambda day: told.append(str(day.date)))
    assert [(str(day.date), day.messages) for day in done] == [(f"2026-01-{day:02}", 20_000) for day in (5, 6, 7)]
    assert sorted(told) == [str(day.date) for day in done]
    alone = import_days(feed_of(), tmp_path / "alone", sources[1:2])
    assert Recording.open(done[1].path).to_arrow() == Recording.open(alone[0].path).to_arrow()


class Held(Made):
    """A source without an end, whose second chunk comes when another source has failed."""

    def __init__(self, failed: threading.Event, date: datetime.date) -> None:
        super().__init__([(b"A.t", b"1", NOON)], date=date)
        self._failed = failed

    def chunks(self) -> Iterator[Chunk]:
        yield from super().chunks()
        assert self._failed.wait(60)
        while True:
            yield from super().chunks()


class Failing(Made):
    """A source that fails once it was read."""

    def __init__(self, failed: threading.Event, date: datetime.date) -> None:
        super().__init__([(b"A.t", b"1", NOON)], date=date)
        self._failed = failed

    def chunks(self) -> Iterator[Chunk]:
        yield from super().chunks()
        self._failed.set()
        raise SourceError("cannot be read")


def test_a_day_that_fails_ends_those_that_are_not_done_and_leaves_those_that_are(tmp_path: Path) -> None:
    failed = threading.Event()
    done = Made([(b"A.t", b"1", NOON)], date=datetime.date(2026, 1, 5))
    held = Held(failed, datetime.date(2026, 1, 6))
    failing = Failing(failed, datetime.date(2026, 1, 7))
    with pytest.raises(SourceError, match="cannot be read"):
        import_days(feed_of("raw"), tmp_path, [done, held, failing], threads=2)
    assert [day.name for day in recorded_days(tmp_path / "imported")] == ["2026-01-05"]
    assert not (tmp_path / "imported" / "importing").exists()


def test_a_day_that_is_read_again_ends_at_once_when_another_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = threading.Event()
    ended: list[BaseException] = []

    def examine(_: Recording, progress: Callable[[int], object]) -> None:
        checked.set()
        try:
            wait_until(lambda: progress(0) is not None, 60, what="the end of a day that is large")
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
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'feeds'}"}
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    feed = tmp_path / "imported"
    wait_until(lambda: any(path.stat().st_size > 1 << 20 for path in feed.glob("importing/*/new/*/*.journal")), 120)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted 1\n"
    assert recorded_days(feed) == []
    assert not (feed / "importing").exists()


def test_sources_of_one_date_become_one_day_in_one_run(tmp_path: Path) -> None:
    first, second = [(b"A.t", b"1", NOON)], [(b"B.t", b"2", NOON), (b"A.t", b"3", NOON + 1)]
    (day,) = import_days(feed_of("raw", slices=1), tmp_path, [Made(first), Made(second)])
    recording = Recording.open(day.path)
    assert told(recording) == first + second
    assert recording.verify() == []
    assert recording.gaps() == []
    assert len(recording.summary().epochs) == 1


def test_messages_outside_of_the_session_are_kept_counted_and_do_not_move_the_clock(tmp_path: Path) -> None:
    rows = [(b"A.t", b"1", NOON - 3 * DAY_NS), (b"A.t", b"2", NOON), (b"A.t", b"3", NOON + 400 * DAY_NS)]
    (day,) = import_days(feed_of("raw", slices=1), tmp_path, [Made(rows, date=DAY)])
    assert (day.messages, day.outside) == (3, 2)
    recording = Recording.open(day.path)
    assert told(recording) == rows
    assert recording.time_range("ts_out") == (NOON, NOON)


@pytest.mark.parametrize("key_bytes", [0, 3])
def test_a_message_larger_than_a_block_gets_one_of_its_own(tmp_path: Path, key_bytes: int) -> None:
    rows = [(b"AAA.t", bytes([i]) * size, NOON + i) for i, size in enumerate((10, 1 << 20, 10, 3 << 20, 0))]
    (day,) = import_days(feed_of("raw", key_bytes=key_bytes), tmp_path, [Made(rows[:3], rows[3:])], block_bytes=4096)
    recording = Recording.open(day.path)
    assert told(recording) == rows
    assert recording.verify() == []


def test_many_topics_that_come_bit_by_bit_are_all_there(tmp_path: Path) -> None:
    rows = [(b"S%d.t" % (i % 5_000), b"%d" % i, NOON + i) for i in range(9_000)]
    chunks = [rows[start : start + 900] for start in range(0, 9_000, 900)]
    (day,) = import_days(feed_of("raw", slices=3, key_bytes=4), tmp_path, [Made(*chunks)])
    found = sorted(told(Recording.open(day.path)), key=lambda row: row[2])
    assert found == rows


def test_segments_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_writer, "SEGMENT_BYTES", 1 << 20)
    (day,) = import_days(feed_of(slices=1), tmp_path, [Synthetic(400_000)])
    recording = Recording.open(day.path)
    assert len(list(day.path.glob("slice-00000/*.journal"))) > 2
    assert recording.verify() == []
    assert sum(recording.counts().values()) == 400_000


def test_a_day_that_is_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    feed = feed_of("raw", slices=1)
    import_days(feed, tmp_path, [Made([(b"A.t", b"1", NOON)])])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(JournalError, match="2026-01-05 exists, expected a day that is not there yet"):
        import_days(feed, tmp_path, [Made([(b"A.t", b"2", NOON - DAY_NS)]), Made([(b"A.t", b"2", NOON)])])
    assert sorted(tmp_path.rglob("*")) == before
    (day,) = import_days(feed, tmp_path, [Made([(b"A.t", b"2", NOON)])], replace=True)
    assert told(Recording.open(day.path)) == [(b"A.t", b"2", NOON)]
    assert sorted(path.name for path in (tmp_path / feed.name).iterdir()) == [
        "2026-01-05",
        "import.lock",
        "recorder.lock",
    ]


def test_a_source_that_fails_leaves_no_day_and_keeps_the_one_that_was_to_be_replaced(tmp_path: Path) -> None:
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
def test_a_day_without_messages_does_not_end_an_import_of_others(tmp_path: Path, threads: int) -> None:
    sources = [Made([], date=datetime.date(2026, 1, 5)), Made([(b"A.t", b"1", NOON)], date=datetime.date(2026, 1, 6))]
    sources.append(Made([], date=datetime.date(2026, 1, 7)))
    with pytest.raises(SourceError, match=r"2026-01-05 has no message: .*; 2026-01-07 has no message"):
        import_days(feed_of("raw"), tmp_path, sources, threads=threads)
    assert [day.name for day in recorded_days(tmp_path / "imported")] == ["2026-01-06"]


def test_what_was_written_is_read_again_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = ColumnWriter.close

    def spoil(writer: ColumnWriter) -> None:
        close(writer)
        (path,) = tmp_path.rglob("*.journal")
        data = bytearray(path.read_bytes())
        data[data.index(b"payload")] ^= 1
        path.write_bytes(data)

    monkeypatch.setattr(ColumnWriter, "close", spoil)
    with pytest.raises(JournalError, match="1 messages were found in what was written, expected 1: .*checksum"):
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


def test_an_import_that_is_killed_leaves_no_day_and_the_next_one_removes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'feeds'}"}
    process = subprocess.Popen([sys.executable, "-c", IMPORT, str(tmp_path)], env=environment)
    feed = tmp_path / "imported"
    try:
        wait_until(lambda: any(path.stat().st_size > 1 << 20 for path in feed.glob("importing/*/new/*/*.journal")), 120)
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
    assert "removed what was left of an import of 2026-01-05 that was killed" in caplog.text
    assert not (feed / "importing").exists()


def test_a_day_gets_its_name_back_when_its_replacement_was_killed_between_two_names(tmp_path: Path) -> None:
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


def test_a_recorder_may_record_beside_an_import_but_no_day_is_replaced_then(tmp_path: Path) -> None:
    feed = feed_of("raw", slices=1)
    rows = [(b"A.t", b"1", NOON)]
    recorder = Recorder(feed, tmp_path)
    recorder._open()
    try:
        (day,) = import_days(feed, tmp_path, [Made(rows)])
        with pytest.raises(JournalError, match="is being recorded by process"):
            import_days(feed, tmp_path, [Made(rows)], replace=True)
    finally:
        recorder._close()
    assert told(Recording.open(day.path)) == rows


FULL = """
import errno, os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from blackbox import Feed, JournalError
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


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    rows = [(b"A.t", b"1", NOON)]
    with pytest.raises(ConfigError, match="has schema 'raw', expected 'itch50' of feed 'imported'"):
        import_days(feed_of(), tmp_path, [Made(rows)])
    with pytest.raises(ConfigError, match="was given no source"):
        import_days(feed_of(), tmp_path, [])
    with pytest.raises(ValueError, match="compression was 'gzip', expected one of: none, lz4, zstd"):
        import_days(feed_of("raw"), tmp_path, [Made(rows)], compression="gzip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads were 0, expected at least 1"):
        import_days(feed_of("raw"), tmp_path, [Made(rows)], threads=0)
    with pytest.raises(ConfigError, match="topic was empty"):
        import_days(feed_of("raw"), tmp_path, [Made([(b"", b"1", NOON)])])
    assert list(tmp_path.rglob("manifest.json")) == []
