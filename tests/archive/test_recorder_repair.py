"""A recorder that repairs: what it missed while it was away, or on its lines, comes from another recorder's archive."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import Feed, Publisher, Recorder, Recording
from blackbox.archive.files.day import Manifest
from blackbox.archive.record import resumption
from blackbox.block.form.format import FLAG_RECORDED
from blackbox.block.position import Position
from blackbox.errors import ConfigError
from blackbox.feed.endpoint import free_endpoints
from blackbox.receive.slices.catching_up import Since
from blackbox.testing import RawPublisher
from tests.archive.recorders import days, feed_of, records, wait_recorded
from tests.archive.written_journals import Journal

SLICES = 2


def two_archives(slices: int = SLICES) -> tuple[Feed, Feed]:
    """Return a feed as each of its two recorders has it: its own archive is the first."""
    ((first, second),) = free_endpoints("tcp", "twice", 1, 2)
    feed = feed_of(slices)
    one, other = ((first, second), (second, first))
    return msgspec.structs.replace(feed, archives=one), msgspec.structs.replace(feed, archives=other)


def recorder_of(feed: Feed, directory: Path) -> Recorder:
    return Recorder(feed, directory, serve=True, on_gap="repair")


def contents(directory: Path, feed: Feed, slice_id: int) -> list[tuple[int, bytes]]:
    """Return sequence and payload of each recorded message in the order of the files."""
    found: list[tuple[int, bytes]] = []
    for record in records(directory, feed, slice_id):
        assert not record.fields.flags & FLAG_RECORDED
        numbers = range(record.fields.sequence, record.fields.sequence + record.fields.count)[record.first_row :]
        found += zip(numbers, (payload for _, payload, _ in record.messages()), strict=True)
    return found


def publish(publisher: Publisher, first: int, count: int) -> None:
    """Publish numbers as payloads, spread over both slices."""
    payloads = numpy.arange(first, first + count).view(numpy.uint8).reshape(-1, 8)
    publisher.publish_many((b"A.t", b"B.t", b"C.t", b"D.t"), numpy.arange(count, dtype=numpy.int32) % 4, payloads)


def test_a_restarted_recorder_fetches_what_it_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumption, "_ANSWER_S", 60.0)
    first, second = two_archives()
    with Publisher(first, when_full="wait") as publisher, recorder_of(second, tmp_path / "second") as other:
        with recorder_of(first, tmp_path / "first") as recorder:
            publish(publisher, 0, 3_000)
            wait_recorded(recorder, 3_000)
        publish(publisher, 3_000, 4_000)
        wait_recorded(other, 7_000)
        with recorder_of(first, tmp_path / "first") as recorder:
            publish(publisher, 7_000, 1_000)
            wait_recorded(recorder, 5_000)
            wait_recorded(other, 8_000)
            assert recorder.statistics().received.repaired >= 4_000
            assert recorder.statistics().received.gaps == 0
    found = [contents(tmp_path / "first", first, each) for each in range(SLICES)]
    assert found == [contents(tmp_path / "second", second, each) for each in range(SLICES)]
    for messages in found:
        assert [sequence for sequence, _ in messages] == list(range(len(messages)))
    numbers = [int.from_bytes(payload, "little") for messages in found for _, payload in messages]
    assert sorted(numbers) == list(range(8_000))
    (day,) = days(tmp_path / "first", first)
    assert (Recording.open(day).gaps(), Recording.open(day).verify()) == ([], [])


def test_a_recorder_begins_live_if_no_other_archive_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, _ = two_archives(slices=1)
    with Publisher(first, when_full="wait") as publisher:
        with recorder_of(first, tmp_path) as recorder:
            publish(publisher, 0, 1_000)
            wait_recorded(recorder, 1_000)
        publish(publisher, 1_000, 1_000)
        publisher.flush()
        with recorder_of(first, tmp_path) as recorder:
            publish(publisher, 2_000, 1_000)
            wait_recorded(recorder, 1_000)
    assert "no other archive answers" in caplog.text
    sequences = [sequence for sequence, _ in contents(tmp_path, first, 0)]
    assert sequences == [*range(1_000), *range(2_000, 3_000)]


def test_a_slice_begins_live_if_its_end_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The day before had one slice; the end of a damaged day is not that of the day before it."""
    monkeypatch.setattr(resumption, "_RECENT_NS", 1 << 62)
    one, two = Feed.local("day", 1), Feed.local("day", 2)
    topics, times = [b"%c.t" % (65 + each) for each in range(16)], numpy.full(16, 1_767_625_200 * 10**9)
    columns = {"topic": topics, "ts_event": times, "payload": [b"x"] * 16}
    other: Any = SimpleNamespace(feed=two, answers=lambda: True)
    Recording.create(tmp_path, one, columns, date="2026-01-05")
    begin = resumption.resumption(tmp_path / "day", other)
    assert begin is not None
    assert [begin(each) is not None for each in range(2)] == [True, False]
    day = Recording.create(tmp_path, two, columns, date="2026-01-06").path
    begin = resumption.resumption(tmp_path / "day", other)
    assert begin is not None
    assert [begin(each) is not None for each in range(2)] == [True, True]
    index = day / "slice-00001" / "000000.index"
    index.write_bytes(b"?" + index.read_bytes()[1:])
    assert resumption.resumption(tmp_path / "day", other) is None
    assert f"{day} is damaged" in caplog.text
    monkeypatch.setattr(resumption, "_RECENT_NS", 0)
    day = Recording.create(tmp_path, two, columns, date="2026-01-07").path
    assert resumption.resumption(tmp_path / "day", other) is None
    assert f"{day} ended more than 24 hours ago: messages of slices 0, 1 since then are not fetched" in caplog.text


def test_a_silent_day_does_not_hide_the_end_of_the_day_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumption, "_RECENT_NS", 1 << 62)
    feed, other = Feed.local("day", 1), tmp_path / "day" / "2026-01-06"
    columns = {"topic": [b"A.t"] * 16, "ts_event": [1_767_625_200 * 10**9] * 16, "payload": [b"x"] * 16}
    first = Recording.create(tmp_path, feed, columns, date="2026-01-05")
    (epoch,) = first.summary().epochs
    other.mkdir()
    Manifest.new(feed, datetime.date(2026, 1, 6), 0).write(other)
    with Journal(other) as journal:
        journal.hear({b"": 16}, epoch + 1, 10**9)
    archives: Any = SimpleNamespace(feed=feed, answers=lambda: True)
    begin = resumption.resumption(tmp_path / "day", archives)
    assert begin is not None
    assert begin(0) == Since(Position(epoch, 16))


def test_a_damaged_earlier_day_does_not_prevent_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    feed = Feed.local("day", 1)
    columns = {"topic": [b"A.t"], "ts_event": [1_767_625_200 * 10**9], "payload": [b"x"]}
    (Recording.create(tmp_path, feed, columns, date="2026-01-05").path / "manifest.json").write_bytes(b"{")
    archives: Any = SimpleNamespace(feed=feed, answers=lambda: True)
    assert resumption.resumption(tmp_path / "day", archives) is None
    assert "2026-01-05 is damaged: messages of slices 0 since the last recorded ones are missing" in caplog.text


def test_a_gap_of_its_line_is_repaired_in_order(tmp_path: Path) -> None:
    """Blocks 3 and 4 are sent to the other recorder's feed only."""
    first, second = two_archives(slices=1)
    apart = msgspec.structs.replace(second, slices=feed_of().slices)
    with (
        RawPublisher(first) as publisher,
        RawPublisher(apart) as sure,
        recorder_of(apart, tmp_path / "second") as other,
        recorder_of(first, tmp_path / "first") as recorder,
    ):
        for number in range(8):
            block = publisher.encode([(b"T", b"%d" % number)])
            sure.send(block)
            if number not in (3, 4):
                publisher.send(block)
        wait_recorded(other, 8)
        wait_recorded(recorder, 8)
        assert recorder.statistics().received.repaired == 2
    assert [payload for _, payload in contents(tmp_path / "first", first, 0)] == [b"%d" % each for each in range(8)]


def test_a_recorder_cannot_repair_from_itself(tmp_path: Path) -> None:
    first, _ = two_archives()
    alone = msgspec.structs.replace(first, archives=first.archives[:1])
    with pytest.raises(ConfigError, match="expected another recorder's to repair from"):
        recorder_of(alone, tmp_path)
    Recorder(alone, tmp_path, on_gap="repair")  # it serves no archive: that one is another recorder's
