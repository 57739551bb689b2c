"""Imports give the same messages as publishing, recording and compacting, by their own dates."""

from __future__ import annotations

import datetime
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
from blackbox_feeds.binance import Binance
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.iex import Iex
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.synthetic import Synthetic
from blackbox_feeds.tape import Tape

from blackbox import Feed, Recorder, Recording, Source
from blackbox.archive.export.source_file import export
from blackbox.archive.files.day import recorded_days, session_date
from blackbox.archive.importing import column_writer
from blackbox.archive.importing.column_writer import ColumnWriter
from blackbox.archive.importing.import_days import import_days
from blackbox.archive.maintain.compact import compact
from blackbox.archive.record.settings import JournalSettings
from blackbox.errors import JournalError, SourceError
from blackbox.feed.source import Chunk
from tests.archive.imports import DAY, DAY_NS, NOON, Made, feed_of, told
from tests.examples import first_of
from tests.feeds import build
from tests.feeds.test_dbn import START as DBN_START
from tests.feeds.test_dbn import metadata_of as dbn_metadata
from tests.feeds.test_dbn import record as dbn_record
from tests.recorded import record

REAL: dict[str, Callable[[Path], Source]] = {
    "itch50": lambda data: Itch50(data / "itch50/runk_locate-13-10k.bin", date="2020-01-30"),
    "iex deep": lambda data: Iex(data / "iex/goiex_DEEP10.pcap.gz"),
    "tape": lambda data: Tape([data / "lean" / name for name in ("ibm_20131007_trade.zip", "ibm_20131007_quote.zip")]),
    "dbn": lambda data: Dbn(next((data / "dbn").glob("esh4-*20231225.mbo.dbn.zst"))),
    "binance": lambda data: Binance(data / "binance/cm_btcusd_perp_20240808.gz"),
}


def messages_of(
    recording: Recording,
) -> dict[tuple[int, bytes], tuple[list[int], list[int], list[bytes], bytes, list[int]]]:
    """Return numbers, times, topics, payloads and their sizes by slice and key, in journal order."""
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


@pytest.mark.parametrize(
    ("name", "key_bytes"), first_of([("itch50", 4), ("binance", 0), ("tape", 0), ("iex deep", 0), ("dbn", 4)], keep=3)
)
def test_an_import_equals_publishing_recording_and_compacting(
    shared_data: Path, tmp_path: Path, name: str, key_bytes: int
) -> None:
    source = REAL[name](shared_data)
    # Binance's capture spans midnight. With sessions from noon to noon it is one day.
    feed = feed_of(
        source.schema.name, "export", key_bytes=key_bytes, day_start="12:00" if name == "binance" else "00:00"
    )
    (day,) = import_days(feed, tmp_path / "imported", [source], compression="zstd")
    recorded = record(tmp_path / "recorded", "export", lambda: REAL[name](shared_data), key_bytes=key_bytes)
    (recorded_day,) = recorded_days(recorded)
    compact(Recording.open(recorded_day), tmp_path / "compacted", compression="zstd")
    imported, compacted = Recording.open(day.path), Recording.open(tmp_path / "compacted")
    assert messages_of(imported) == messages_of(compacted)
    assert (imported.schema, imported.date, imported.verify(), imported.gaps()) == (source.schema, day.date, [], [])
    assert day.messages == sum(compacted.counts().values())
    assert imported.summary().blocks <= compacted.summary().blocks * 1.2 + 4
    if name == "iex deep":
        assert "goiex_DEEP10.pcap.gz" in day.truncated[0]


def test_an_imported_day_marks_the_end_of_its_epoch(tmp_path: Path) -> None:
    (day,) = import_days(feed_of(slices=3), tmp_path, [Synthetic(2_000, symbols=1)])
    recording = Recording.open(day.path)
    for slice_id in range(3):
        found = list(recording.marks([slice_id]))
        assert [mark.kind.name for mark in found] == [
            "SEGMENT_BEGIN", "RECORDER_BEGIN", "EPOCH_BEGIN", "HEARD", "EPOCH_END", "RECORDER_END", "SEGMENT_END",
        ]  # fmt: skip
        assert all(not mark.keys and not mark.flags for mark in found)
        assert {mark.ts for mark in found[:4]} == {found[2].epoch}
    shutil.rmtree(day.path / "slice-00001")
    assert any("slice-00001" in str(each.path) for each in Recording.open(day.path).verify())


def test_a_day_imported_again_has_the_same_sequences_and_times(tmp_path: Path) -> None:
    first, second = (
        Recording.open(import_days(feed_of(), tmp_path / name, [Synthetic(30_000)])[0].path) for name in ("a", "b")
    )
    assert first.to_arrow() == second.to_arrow()
    (low, high), (out_low, out_high) = first.time_range("ts_event"), first.time_range("ts_out")
    assert low <= out_low <= out_high == high
    for batch in first.batches():
        assert batch.block.ts_out >= batch.ts_event.max()
    assert first.time("09:30", "ts_out") == first.time("09:30")


def test_the_date_is_the_source_s_or_that_of_the_messages(tmp_path: Path) -> None:
    feed = feed_of("raw")
    rows = [(b"A.t", b"1", 0), (b"A.t", b"2", NOON)]
    for number, (source, given, expected) in enumerate([
        (Made(rows), None, "2026-01-05"),
        (Made(rows), DAY, "2026-01-05"),
        (Made(rows, date=datetime.date(2026, 1, 6)), None, "2026-01-06"),
        (Made(rows, date=datetime.date(2026, 1, 6)), datetime.date(2026, 1, 6), "2026-01-06"),
    ]):  # fmt: skip
        (day,) = import_days(feed, tmp_path / str(number), [source], date=given)
        assert (str(day.date), day.path.name, str(Recording.open(day.path).date)) == (expected,) * 3
        assert day.outside == (expected != "2026-01-05")
    with pytest.raises(SourceError, match="has no date, and its first messages have no time: give the date"):
        import_days(feed, tmp_path / "none", [Made(rows[:1])])


def days_of(feed: Feed, directory: Path) -> dict[str, list[tuple[bytes, bytes, int]]]:
    """Return the messages of all days by date."""
    return {str(day.name): told(Recording.open(day)) for day in recorded_days(directory / feed.name)}


def by_day(feed: Feed, rows: list[tuple[bytes, bytes, int]]) -> dict[str, list[tuple[bytes, bytes, int]]]:
    """Return messages by the session of their time. One without a time goes with the one before."""
    found: dict[str, list[tuple[bytes, bytes, int]]] = defaultdict(list)
    date = next(str(session_date(feed, time)) for *_, time in rows if time)
    for row in rows:
        date = str(session_date(feed, row[2])) if row[2] else date
        found[date].append(row)
    return found


@pytest.mark.parametrize("settings", [{"time_zone": "America/Chicago", "day_start": "17:00"}, {"key_bytes": 1}])
def test_several_days_in_one_source_become_several_dated_days(tmp_path: Path, settings: dict[str, Any]) -> None:
    chance = random.Random(1)
    rows = [(b"A.t", b"0", 0), (b"A.t", b"1", 0)]
    for hour in range(70):
        ago = chance.choice([0, 0, 0, 5]) * 3_600 * 10**9  # times also go back across midnight
        rows += [(b"AB"[i % 2 :][:1] + b".t", b"%d" % i, NOON + hour * 3_600 * 10**9 + i - ago) for i in range(20)]
        rows += [(b"C.t", b"none", 0)]
    feed = feed_of("raw", slices=1, **settings)
    chunks = [rows[at : at + 97] for at in range(0, len(rows), 97)]
    done = import_days(feed, tmp_path, [Made(*chunks)])
    expected = by_day(feed, rows)
    assert len(expected) >= 4
    found = days_of(feed, tmp_path)
    order = (lambda each: sorted(each, key=lambda row: row[0][:1])) if feed.key_bytes else list
    assert {date: order(each) for date, each in found.items()} == {date: order(e) for date, e in expected.items()}
    assert {str(day.date): (day.messages, day.outside) for day in done} == {d: (len(e), 0) for d, e in expected.items()}
    assert all(Recording.open(day.path).verify() == Recording.open(day.path).gaps() == [] for day in done)


def test_files_that_span_midnight_share_days_in_order(tmp_path: Path) -> None:
    first = [(b"A.t", b"%d" % i, NOON + i * DAY_NS // 4) for i in range(4)]
    second = [(b"A.t", b"%d" % i, NOON + i * DAY_NS // 4) for i in range(3, 7)]
    empty = Made([])
    feed = feed_of("raw", slices=1)
    with pytest.raises(SourceError, match="has no message"):
        import_days(feed, tmp_path, [Made(second), empty, Made(first)], threads=2)
    assert days_of(feed, tmp_path) == by_day(feed, first + second)


@pytest.mark.parametrize("slices", [1, 3])
def test_each_day_of_a_dbn_file_over_midnight_is_a_file_again(tmp_path: Path, slices: int) -> None:
    """The second day, its export, and the export's import have the symbols of the second date."""
    days = [datetime.date(2024, 1, day) for day in (1, 2, 3)]
    head = dbn_metadata(mappings={"ESH4": [(days[0], days[1], "7")], "ESM4": [(days[1], days[2], "7")]})
    times = [DBN_START, DBN_START + 1, DBN_START + DAY_NS - 1, DBN_START + DAY_NS, DBN_START + DAY_NS + 5]
    (tmp_path / "a.dbn").write_bytes(head + b"".join(dbn_record(ts_event=time) for time in times))
    feed = feed_of("dbn", slices=slices)
    expected = build.messages_of(Dbn(tmp_path / "a.dbn"))
    assert [topic for topic, *_ in expected] == [b"#system.metadata", *[b"ESH4.mbo"] * 3, *[b"ESM4.mbo"] * 2]
    done = import_days(feed, tmp_path, [Dbn(tmp_path / "a.dbn")])
    assert [(str(day.date), day.messages) for day in done] == [("2024-01-01", 4), ("2024-01-02", 3)]
    kept = [expected[:4], [(b"#system.metadata", times[3], head), *expected[4:]]]
    for day, messages in zip(done, kept, strict=True):
        export(Recording.open(day.path), tmp_path / f"{day.date}.dbn")
        assert build.messages_of(Dbn(tmp_path / f"{day.date}.dbn")) == messages
        (again,) = import_days(feed, tmp_path / "again", [Dbn(tmp_path / f"{day.date}.dbn")])
        assert (again.date, again.messages) == (day.date, len(messages))


def test_an_existing_later_day_is_rejected_and_no_day_is_left(tmp_path: Path) -> None:
    feed = feed_of("raw", slices=1)
    there = [(b"A.t", b"1", NOON + DAY_NS)]
    import_days(feed, tmp_path, [Made(there)])
    rows = [(b"A.t", b"2", NOON), (b"A.t", b"3", NOON + DAY_NS)]
    with pytest.raises(JournalError, match="2026-01-06 exists, expected a day that is not there yet"):
        import_days(feed, tmp_path, [Made(rows)])
    assert days_of(feed, tmp_path) == {"2026-01-06": there}
    import_days(feed, tmp_path, [Made(rows)], replace=True)
    assert days_of(feed, tmp_path) == {"2026-01-05": rows[:1], "2026-01-06": rows[1:]}


def test_few_of_many_days_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ColumnWriter] = []
    most = 0

    class Counted(ColumnWriter):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            nonlocal most
            super().__init__(*arguments, **settings)
            opened.append(self)
            most = max(most, len(opened))

        def close(self) -> None:
            super().close()
            opened.remove(self)

    monkeypatch.setattr("blackbox.archive.importing.import_days.ColumnWriter", Counted)
    rows = [(b"A.t", b"%d" % i, NOON + i * DAY_NS // 2) for i in range(60)]
    feed = feed_of("raw", slices=1)
    assert len(import_days(feed, tmp_path, [Made(*([row] for row in rows))])) == 31
    assert days_of(feed, tmp_path) == by_day(feed, rows)
    assert most == 4
    back = [*rows[:20], rows[0]]
    with pytest.raises(SourceError, match="messages of 2026-01-05 came after those of 4 other days, expected days in"):
        import_days(feed, tmp_path / "back", [Made(*([row] for row in back))])
    assert recorded_days(tmp_path / "back" / feed.name) == []


def test_a_single_source_is_opened_once_and_many_are_open_one_at_a_time(tmp_path: Path) -> None:
    opened = is_open = most = 0

    class Counted(Made):
        def chunks(self) -> Iterator[Chunk]:
            nonlocal opened, is_open, most
            opened, is_open = opened + 1, is_open + 1
            most = max(most, is_open)
            try:
                yield from super().chunks()
            finally:
                is_open -= 1

    rows = [(b"A.t", b"%d" % i, NOON + i * DAY_NS) for i in range(20)]
    feed = feed_of("raw", slices=1)
    import_days(feed, tmp_path / "one", [Counted(rows[:1], rows[1:2])])
    assert (opened, most, is_open) == (1, 1, 0)
    opened = most = 0
    import_days(feed, tmp_path / "many", [Counted([row]) for row in rows])
    assert (opened, most, is_open) == (40, 1, 0)
    assert days_of(feed, tmp_path / "many") == by_day(feed, rows)


def test_sources_with_and_without_a_date_do_not_share_a_day(tmp_path: Path) -> None:
    rows = [(b"A.t", b"1", NOON)]
    with pytest.raises(SourceError, match="messages of 2026-01-05 are in sources with and without a date"):
        import_days(feed_of("raw"), tmp_path, [Made(rows, date=DAY), Made(rows)])


def test_several_days_are_imported_at_a_time(tmp_path: Path) -> None:
    sources = [Synthetic(20_000, date=f"2026-01-{day:02}") for day in (5, 6, 7)]
    told: list[str] = []
    done = import_days(feed_of(), tmp_path, sources, threads=2, imported=lambda day: told.append(str(day.date)))
    assert [(str(day.date), day.messages) for day in done] == [(f"2026-01-{day:02}", 20_000) for day in (5, 6, 7)]
    assert sorted(told) == [str(day.date) for day in done]
    alone = import_days(feed_of(), tmp_path / "alone", sources[1:2])
    assert Recording.open(done[1].path).to_arrow() == Recording.open(alone[0].path).to_arrow()


def test_sources_of_one_date_become_one_day_of_one_epoch_in_order_of_their_first_times(tmp_path: Path) -> None:
    early, late = ([(b"A.t", b"%d" % i, NOON + i) for i in numbers] for numbers in (range(3), range(3, 6)))
    late = [(b"B.t", b"none", 0), *late]
    (day,) = import_days(feed_of("raw", slices=1), tmp_path, [Made(late), Made(early)])
    recording = Recording.open(day.path)
    assert [payload for _, payload, _ in told(recording)] == [payload for _, payload, _ in [*early, *late]]
    assert recording.verify() == recording.gaps() == []
    assert len(recording.summary().epochs) == 1


def test_messages_outside_the_session_are_kept_and_counted(tmp_path: Path) -> None:
    rows = [(b"A.t", b"1", NOON - 3 * DAY_NS), (b"A.t", b"2", NOON), (b"A.t", b"3", NOON + 400 * DAY_NS)]
    (day,) = import_days(feed_of("raw", slices=1), tmp_path, [Made(rows, date=DAY)])
    assert (day.messages, day.outside) == (3, 2)
    recording = Recording.open(day.path)
    assert told(recording) == rows
    assert recording.time_range("ts_out") == (NOON, NOON)


def test_segments_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_writer, "JournalSettings", partial(JournalSettings, segment_bytes=1 << 20))
    (day,) = import_days(feed_of(slices=1), tmp_path, [Synthetic(400_000)])
    recording = Recording.open(day.path)
    assert len(list(day.path.glob("slice-00000/*.journal"))) > 2
    assert recording.verify() == []
    assert sum(recording.counts().values()) == 400_000


def test_a_recorder_may_run_during_an_import_unless_days_are_replaced(tmp_path: Path) -> None:
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
