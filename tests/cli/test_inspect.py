"""`blackbox inspect` and `blackbox verify`: a day, its gaps and damage, and its picture."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pytest

from blackbox import Recording
from blackbox.analysis.report import rate_picture
from blackbox.block.form.format import FLAG_END
from blackbox.cli.ui.status import Status
from tests.archive.written_journals import Journal, block
from tests.cli.commands import assert_one_line, invoke, succeed
from tests.cli.days import OPEN, SECOND, trade
from tests.damaged import damage_body
from tests.journals import Day, Put, Row, feed_of


def assert_rows(out: str, *rows: str) -> None:
    for row in rows:
        assert re.search(row, out), out


def test_a_day_is_shown(day: Day) -> None:
    ended = succeed("inspect", day.path)
    assert_rows(
        ended.out,
        r"│ market time +│ +2026-11-20 09:30:00\.000 │",
        r"│ +1 │ +20 │ +10 │ .* │ 09:30:00\.000 │ 09:30:19\.000 │",
        r"│ +1 │ +1 │ +1 │ +1 │ +5 │ +0 │ +0 │",
        r"│ AAPL\.P │ +20 │ 50\.0% │",
    )
    assert "see `blackbox verify`" in ended.errors
    found = json.loads(invoke("inspect", day.path, "--json", "--top", 1).out)
    slices, body_bytes = found.pop("slices"), found.pop("body_bytes")
    assert found == {
        "recording": str(day.path),
        "feed": "recorded",
        "date": "2026-11-20",
        "schema": "itch50",
        "time_zone": "America/New_York",
        "messages": 40,
        "blocks": 20,
        "file_bytes": sum(segment.path.stat().st_size for segment in day.segments),
        "first_ts_event": OPEN,
        "last_ts_event": OPEN + 19 * SECOND,
        "first_ts_out": OPEN,
        "last_ts_out": OPEN + 18 * SECOND,
        "epochs": [1],
        "torn_bytes": 0,
        "damage": [],
        "missing": 5,
        "gaps": [
            {"slice": 1, "epoch": 1, "key": "", "sequence": 10, "messages": 5, "ts_out": OPEN + 10 * SECOND},
        ],
        "not_heard": 0,
        "topics": [{"topic": "AAPL.P", "messages": 20}],
    }
    assert [(each["slice"], each["messages"]) for each in slices] == [(0, 20), (1, 20)]
    assert body_bytes == Recording.open(day.path).summary().body_bytes


def test_marks_of_recorders_are_shown(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.put(block(3, 2, 1, epoch=7))
    journal.hear({b"": 5}, 7, 2, flags=FLAG_END)
    journal.rest()
    killed, journal = journal, Journal(tmp_path)
    journal.writer.close()
    ended = succeed("inspect", tmp_path)
    assert_rows(
        ended.out,
        r"│ 0 +│ epoch begin +│ +7 │ +0 │",
        r"│ 0 +│ epoch end +│ +7 │ +1 │",
        r"│ 0 +│ recorder begin +│ +│ +0 │",
        "published before the first message that is here, of 1 epoch",
    )
    assert ended.text("not heard") == "3"
    killed.writer.refuse()
    killed.writer.close()


def test_times_outside_the_session_date_show_their_date_and_zone(tmp_path: Path) -> None:
    feed = msgspec.structs.replace(feed_of(), time_zone="America/New_York")
    columns = {"topic": ["A"], "ts_event": [1_767_623_400 * 10**9], "payload": [b"x"]}
    assert_rows(
        invoke("inspect", Recording.create(tmp_path, feed, columns).path).out,
        r"│ 2026-01-05 00:00:00\.000 │ 0 +│ recorder begin │",
        r"│ 2026-01-05 00:00:00\.000 │ 0 +│ epoch begin +│",  # not at the end of the first block
        r"│ 20(?!26-01-05)\d\d-\d\d-\d\d [\d:.]{12} │ 0 +│ recorder end +│",  # it was written today
        r"│ 2026-01-05 09:30:00\.000 │ of the first message, America/New_York +│",
        "what its recorders noted, America/New_York",
    )


def test_a_feed_is_a_table_of_its_days(day: Day) -> None:
    other = Day(day.path.parent / "2026-11-19", day.feed, date="2026-11-19")
    other.put(0, Put((trade("AAPL", 1),)))
    ended = invoke("inspect", day.path.parent)
    assert ended.out.startswith(f"{day.path.parent}: 2 days\n")
    assert_rows(ended.out, r"│ 2026-11-19 │ +2 │ +1 │(?s:.)*│ 2026-11-20 │ +2 │ +40 │")
    assert invoke("inspect", other.path, day.path).out == ended.out  # as `inspect recordings/FEED/*`
    found = json.loads(invoke("inspect", day.path.parent, "--json").out)
    assert [(each["date"], each["messages"]) for each in found] == [("2026-11-19", 1), ("2026-11-20", 40)]


def test_an_empty_day_is_shown_and_drawn(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", msgspec.structs.replace(feed_of(), name="a-b"))
    ended = invoke("inspect", day.path, "--picture", tmp_path / "x.svg")
    assert (ended.status, ended.text("messages")) == (0, "0"), ended.errors
    ElementTree.parse(tmp_path / "x.svg")
    found = json.loads(invoke("inspect", day.path, "--json").out)
    assert (found["messages"], found["first_ts_event"], found["topics"]) == (0, None, [])
    chart = rate_picture.Chart.of(Recording.open(day.path), [])._replace(title="<&>")
    assert "&lt;&amp;&gt;" in rate_picture.svg(chart)
    ElementTree.fromstring(rate_picture.svg(chart))


def test_the_picture_has_axes_labels_and_gaps(day: Day, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    succeed("inspect", day.path, "--picture", tmp_path / "day.svg")
    tree = ElementTree.parse(tmp_path / "day.svg")
    texts = {element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")}
    assert {"recorded, 2026-11-20: 40 messages", "▼ missing: 5 messages", "local time, America/New_York"} < texts
    assert {"09:30:00", "09:30:10"} < texts
    assert [e.text for e in tree.iter("{http://www.w3.org/2000/svg}title")][1:] == ["5 missing"]
    monkeypatch.setattr(rate_picture, "find_spec", lambda _: None)
    refused = invoke("inspect", day.path, "--picture", tmp_path / "day.png")
    assert_one_line(refused, r"a PNG needs matplotlib: pip install 'blackbox-md\[picture\]'; day.svg needs no library")


def test_a_png_is_drawn(day: Day, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    succeed("inspect", day.path, "--picture", tmp_path / "day.png")
    assert (tmp_path / "day.png").read_bytes().startswith(b"\x89PNG")


def test_damage_is_shown_by_file_offset_bytes_and_messages(day: Day) -> None:
    damage_body(day.segments[0], 3)
    start, stop = day.segments[0].places[3]
    ended = invoke("verify", day.path)
    assert ended.status == Status.LOST
    row = rf"│ slice-00000/000000\.journal │ +{start:,} │ +{stop - start} │ +2 │ body checksum did not match"
    assert_rows(ended.out, row, r"│ +1 │ 1 + │ - +│ +10 │ +5 │ 09:30:10\.000 │")
    assert "1 part damaged with 2 messages or more; 7 messages missing in 2 gaps" in ended.errors
    assert "warning" not in ended.errors

    ended = invoke("verify", day.path, "--json")
    found = json.loads(ended.out)
    (broken,) = found["damage"]
    assert "body checksum did not match" in broken.pop("what")
    assert broken == {"file": "slice-00000/000000.journal", "offset": start, "bytes": stop - start, "messages": 2}
    assert found["missing"] == sum(gap["messages"] for gap in found["gaps"]) == 7
    assert ended.status == Status.LOST
    assert ended.errors.endswith("7 messages missing in 2 gaps\n")

    with day.segments[1].path.open("ab") as file:
        file.write(b"torn")
    ended = invoke("inspect", day.path, "--top", 0)
    assert (ended.status, ended.text("torn"), ended.text("damage")) == (0, "4", "2")
    assert "topics" not in ended.out
    assert ended.errors.count("warning") == 1


def test_verify_of_a_complete_day_and_of_one_with_many_gaps(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put((Row(b"A", b"a", 1),)))
    ended = invoke("verify", day.path)
    assert (ended.status, ended.out) == (0, "")
    assert ended.errors.endswith("nothing is damaged, nothing is missing\n")
    found = json.loads(invoke("verify", day.path, "--json").out)
    assert (found["missing"], found["damage"], found["gaps"]) == (0, [], [])

    day = Day(tmp_path / "gaps", feed_of())
    day.put(0, *(Put((Row(b"A", b"a", 1),), sequence=3 * i) for i in range(50)))
    ended = invoke("verify", day.path)
    assert ended.status == Status.LOST
    assert "the largest 20 of 49" in ended.out
    assert ended.errors.endswith(f"lost: {day.path}: 98 messages missing in 49 gaps\n")
    found = json.loads(invoke("verify", day.path, "--json").out)
    assert [(gap["sequence"], gap["messages"]) for gap in found["gaps"]] == [(3 * i + 1, 2) for i in range(49)]
