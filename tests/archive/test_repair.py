"""A day whose manifest is damaged or missing is whole again after a repair, as far as anything says what was there."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from blackbox import Feed, JournalError, Recording
from blackbox.archive.day import Manifest
from blackbox.archive.repair import repair
from tests.archive.written_days import told
from tests.cli.commands import assert_one_line, invoke, write_feed
from tests.journals import Day, Put, Row, Totals, feed_of
from tests.recorded import record


class Numbers:
    """Some messages of many symbols."""

    def __init__(self) -> None:
        from blackbox.feed.schema import RAW

        self.schema = RAW

    def publish(self, publisher: object) -> None:
        for number in range(500):
            publisher.publish(b"%c%c.t" % (65 + number % 26, 65 + number % 7), b"%d" % number)  # type: ignore[attr-defined]


def recorded_day(directory: Path, slices: int = 2, key_bytes: int = 1) -> Path:
    """A day that a recorder has written."""
    feed = record(directory, "tape", Numbers, slices, key_bytes=key_bytes)  # type: ignore[arg-type]
    (path,) = feed.glob("*/manifest.json")
    return path.parent


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["a bit", "emptied", "missing"])
def test_a_day_is_repaired_with_the_feeds_file(tmp_path: Path, damage: str) -> None:
    day = recorded_day(tmp_path)
    before, recording = Manifest.read(day), Recording.open(day)
    messages = told(recording.batches())
    path = day / "manifest.json"
    choice = random.Random(1)
    for _ in range(8 if damage == "a bit" else 1):
        whole = path.read_bytes()
        if damage == "a bit":
            flip(path, choice.randrange(len(whole)))
        elif damage == "emptied":
            path.write_bytes(b"")
        else:
            path.unlink()
        done = repair(day, before.feed)
        assert (done.messages, done.unknown) == (len(messages), ())
        assert Manifest.read(day) == before
        again = Recording.open(day)
        assert again.verify() == again.gaps() == []
        assert told(again.batches()) == messages
        if done.kept is not None:
            assert done.kept.name == "manifest.json.damaged"


def test_a_feed_of_one_slice_is_repaired_from_its_segments_alone(tmp_path: Path) -> None:
    day = recorded_day(tmp_path, slices=1, key_bytes=2)
    before, messages = Manifest.read(day), told(Recording.open(day).batches())
    (day / "manifest.json").unlink()
    done = repair(day)
    assert len(done.unknown) == 1
    assert "endpoints" in done.unknown[0]
    made = Manifest.read(day)
    assert (made.feed.name, made.feed.key_bytes, made.date) == ("tape", 2, before.date)
    assert made.created_ns == before.created_ns
    assert told(Recording.open(day).batches()) == messages
    assert Recording.open(day).verify() == []


def test_a_feed_of_several_slices_needs_its_file_or_another_day(tmp_path: Path) -> None:
    day = recorded_day(tmp_path)
    before = Manifest.read(day)
    (day / "manifest.json").unlink()
    with pytest.raises(JournalError, match="which topics fall into which is not in them: expected the feed's file"):
        repair(day)
    other = msgspec.structs.replace(before, date=before.date.replace(year=2020), created_ns=7)
    (day.parent / str(other.date)).mkdir()
    other.write(day.parent / str(other.date))
    done = repair(day)
    assert (done.source, done.unknown) == (f"the day {other.date}", ())
    assert Manifest.read(day) == before


def test_a_feed_that_does_not_fit_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    day = recorded_day(tmp_path)
    feed = Manifest.read(day).feed
    path = day / "manifest.json"
    with pytest.raises(JournalError, match="is sound, expected one that is damaged"):
        repair(day, feed)
    flip(path, 40)
    damaged = path.read_bytes()
    swapped = msgspec.structs.replace(feed, slices=feed.slices[::-1])
    for wrong, what in (
        (msgspec.structs.replace(feed, key_bytes=3), "has key_bytes 1 in its segments, and feed 'tape' has 3"),
        (Feed.local("tape", 3, key_bytes=1), "has slices 2 in its segments, and feed 'tape' has 3"),
        (swapped, "expected the feed that was recorded"),
    ):
        with pytest.raises(JournalError, match=what):
            repair(day, wrong)
        assert path.read_bytes() == damaged
    assert not path.with_name("manifest.json.damaged").exists()


def test_what_is_no_day_is_refused(tmp_path: Path) -> None:
    for day in (tmp_path, tmp_path / "not there"):
        with pytest.raises(JournalError, match="has no segment with a record|was not found|cannot be repaired"):
            repair(day)


@pytest.mark.parametrize("begun", ["in the damaged file", "unknown"])
def test_when_a_day_was_begun_long_before_its_first_segment_is_in_the_damaged_manifest_or_not_known(
    tmp_path: Path, begun: str
) -> None:
    created_ns = 1_700_000_000_000_000_001
    day = Day(tmp_path / "tape" / "2026-11-20", feed_of())
    path = day.path / "manifest.json"
    before = msgspec.structs.replace(Manifest.read(day.path), created_ns=created_ns)
    before.write(day.path)
    day.totals[0] = Totals.of_slice(0, created_ns)
    segment = day.segment()
    segment.append(Put((Row(b"A", b"x"),)))
    segment.close()
    assert Recording.open(day.path).verify() == []
    path.write_bytes(path.read_bytes()[:-20] if begun == "in the damaged file" else b"{")
    unknown = repair(day.path, feed_of()).unknown
    if begun == "in the damaged file":
        assert unknown == ()
        assert Recording.open(day.path).verify() == []
    else:
        assert len(unknown) == 1
        assert "when the day was begun" in unknown[0]
        assert told(Recording.open(day.path).batches()) == day.told()


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    day = recorded_day(tmp_path)
    feed = Manifest.read(day).feed
    path = write_feed(feed, tmp_path / "feed.toml")
    path.write_text(f"key_bytes = 1\n{path.read_text()}")
    (day / "manifest.json").write_bytes(b"[" * 1000)
    assert_one_line(invoke("repair", day), "expected the feed's file")
    ended = invoke("repair", day, "--feed", path)
    assert ended.status == 0
    assert "manifest.json was made anew for 500 messages, settings from the feed that was given" in ended.errors
    assert "the damaged one is manifest.json.damaged" in ended.errors
    assert invoke("verify", day).status == 0
    assert_one_line(invoke("repair", day), "is sound, expected one that is damaged or missing")
