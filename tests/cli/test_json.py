"""The output of `--json` matches the content of the recording."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from blackbox import Recording
from blackbox.archive.consumer_positions import PositionFile
from blackbox.block.position import Position
from blackbox.cli.ui.status import Status
from tests.cli.commands import invoke
from tests.cli.days import OPEN, SECOND, damage, trade
from tests.journals import Day, Put, Row, feed_of

EPOCH = 0x18EAD45481153800


def test_inspect_reports_the_content_of_the_day(day: Day) -> None:
    ended = invoke("inspect", day.path, "--json", "--top", 1)
    assert ended.status == 0
    found = json.loads(ended.out)
    assert found == {
        "recording": str(day.path),
        "feed": "recorded",
        "date": "2026-11-20",
        "schema": "itch50",
        "time_zone": "America/New_York",
        "messages": 40,
        "blocks": 20,
        "body_bytes": found["body_bytes"],
        "file_bytes": sum(segment.path.stat().st_size for segment in day.segments),
        "first_ts_event": OPEN,
        "last_ts_event": OPEN + 19 * SECOND,
        "first_ts_out": OPEN,
        "last_ts_out": OPEN + 18 * SECOND,
        "epochs": [1],
        "torn_bytes": 0,
        "damage": [],
        "slices": found["slices"],
        "missing": 5,
        "gaps": [
            {"slice": 1, "epoch": 1, "key": "", "sequence": 10, "messages": 5, "ts_out": OPEN + 10 * SECOND},
        ],
        "not_heard": 0,
        "topics": [{"topic": "AAPL.P", "messages": 20}],
    }
    assert [(each["slice"], each["messages"]) for each in found["slices"]] == [(0, 20), (1, 20)]
    summary = msgspec.structs.asdict(Recording.open(day.path).summary())
    assert {name: found[name] for name in ("body_bytes", "file_bytes")} == {
        name: summary[name] for name in ("body_bytes", "file_bytes")
    }


def test_inspect_of_a_feed_is_an_array_of_its_days(day: Day) -> None:
    other = Day(day.path.parent / "2026-11-19", day.feed, date="2026-11-19")
    other.put(0, Put((trade("AAPL", 1),)))
    found = json.loads(invoke("inspect", day.path.parent, "--json").out)
    assert [(each["date"], each["messages"]) for each in found] == [("2026-11-19", 1), ("2026-11-20", 40)]


def test_inspect_of_an_empty_day_has_no_times(tmp_path: Path) -> None:
    found = json.loads(invoke("inspect", Day(tmp_path / "day", feed_of()).path, "--json").out)
    assert (found["messages"], found["first_ts_event"], found["topics"]) == (0, None, [])


def test_verify_names_each_damaged_part_and_gap_and_keeps_its_status(day: Day) -> None:
    damage(day)
    start, stop = day.segments[0].places[3]
    ended = invoke("verify", day.path, "--json")
    assert ended.status == Status.LOST
    found = json.loads(ended.out)
    (broken,) = found["damage"]
    assert "body checksum did not match" in broken.pop("what")
    assert broken == {"file": "slice-00000/000000.journal", "offset": start, "bytes": stop - start, "messages": 2}
    assert found["missing"] == sum(gap["messages"] for gap in found["gaps"]) == 7
    assert ended.errors.endswith("7 messages missing in 2 gaps\n")


def test_verify_lists_every_gap_however_many(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, *(Put((Row(b"A", b"a", 1),), sequence=3 * i) for i in range(50)))
    found = json.loads(invoke("verify", day.path, "--json").out)
    assert [(gap["sequence"], gap["messages"]) for gap in found["gaps"]] == [(3 * i + 1, 2) for i in range(49)]


def test_verify_of_a_complete_day_is_an_object_too(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put((Row(b"A", b"a", 1),)))
    ended = invoke("verify", day.path, "--json")
    found = json.loads(ended.out)
    assert (ended.status, found["missing"], found["damage"], found["gaps"]) == (0, 0, [], [])


def test_positions_are_those_of_each_consumer(tmp_path: Path) -> None:
    for name, epoch in (("one", EPOCH), ("other", EPOCH + 7)):
        file = PositionFile(tmp_path, name)
        file.own(0)
        file.keep("tape", {0: Position(epoch, 1_234), 1: Position(epoch + 1, 5)})
        file.close()
    found = {each["consumer"]: each for each in json.loads(invoke("positions", tmp_path, "--json").out)}
    for name, epoch in (("one", EPOCH), ("other", EPOCH + 7)):
        assert found[name]["slices"] == [
            {"slice": 0, "epoch": epoch, "sequence": 1_234},
            {"slice": 1, "epoch": epoch + 1, "sequence": 5},
        ]
        kept = PositionFile(tmp_path, name).read()
        assert kept is not None
        assert (found[name]["feed"], found[name]["kept_ns"]) == ("tape", kept.kept_ns)


def test_no_consumer_is_an_empty_array(tmp_path: Path) -> None:
    assert json.loads(invoke("positions", tmp_path, "--json").out) == []
