"""`blackbox inspect`: the content of a day, and its picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pytest

from blackbox import Recording
from blackbox.block.format import FLAG_END
from blackbox.cli.ui.status import Status
from blackbox.report import rate_picture
from tests.archive.written_journals import Journal, block
from tests.cli.commands import invoke
from tests.cli.days import damage, trade
from tests.journals import Day, Put, feed_of


def test_a_day_is_shown(day: Day) -> None:
    ended = invoke("inspect", day.path)
    assert ended.status == 0, ended.errors
    names = ("feed", "date", "schema", "messages", "blocks", "missing", "torn", "damage", "market time", "sent")
    assert [ended.text(name) for name in names] == [
        *("recorded", "2026-11-20", "itch50", "40", "20", "5", "0", "0"),
        *("2026-11-20 09:30:00.000", "2026-11-20 09:30:00.000"),
    ]
    assert re.search(r"│ +1 │ +20 │ +10 │ .* │ 09:30:00\.000 │ 09:30:19\.000 │", ended.out)
    assert re.search(r"│ +1 │ +1 │ +1 │ +1 │ +5 │ +0 │ +0 │", ended.out)
    assert re.search(r"│ AAPL\.P │ +20 │ 50\.0% │", ended.out)
    assert "see `blackbox verify`" in ended.errors


def test_marks_of_recorders_are_shown(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.put(block(3, 2, 1, epoch=7))
    journal.hear({b"": 5}, 7, 2, flags=FLAG_END)
    journal.rest()
    killed, journal = journal, Journal(tmp_path)
    journal.writer.close()
    ended = invoke("inspect", tmp_path)
    assert ended.status == 0, ended.errors
    for row in (
        r"│ 0 +│ epoch begin +│ +7 │ +0 │",
        r"│ 0 +│ epoch end +│ +7 │ +1 │",
        r"│ 0 +│ recorder begin +│ +│ +0 │",
    ):
        assert re.search(row, ended.out), ended.out
    assert ended.text("not heard") == "3"
    assert "published before the first message that is here, of 1 epoch" in ended.out
    killed.writer.refuse()
    killed.writer.close()


def test_times_outside_the_session_date_show_their_date_and_zone(tmp_path: Path) -> None:
    feed = msgspec.structs.replace(feed_of(), time_zone="America/New_York")
    columns = {"topic": ["A"], "ts_event": [1_767_623_400 * 10**9], "payload": [b"x"]}
    ended = invoke("inspect", Recording.create(tmp_path, feed, columns).path)
    assert re.search(r"│ 2026-01-05 00:00:00\.000 │ 0 +│ recorder begin │", ended.out), ended.out
    assert re.search(r"│ 20(?!26-01-05)\d\d-\d\d-\d\d [\d:.]{12} │ 0 +│ recorder end +│", ended.out), (
        "it was written today"
    )
    assert re.search(r"│ 2026-01-05 09:30:00\.000 │ of the first message, America/New_York +│", ended.out)
    assert "what its recorders noted, America/New_York" in ended.out


def test_damage_and_torn_bytes_are_shown(day: Day) -> None:
    damage(day)
    with day.segments[1].path.open("ab") as file:
        file.write(b"torn")
    ended = invoke("inspect", day.path, "--top", 0)
    assert ended.status == 0
    assert (ended.text("torn"), ended.text("damage")) == ("4", "2")
    assert "topics" not in ended.out
    assert ended.errors.count("warning") == 1


def test_top_limits_the_topics(day: Day) -> None:
    assert "2 topics, the busiest 1" in invoke("inspect", day.path, "--top", 1).out


def test_a_feed_is_a_table_of_its_days(day: Day) -> None:
    other = Day(day.path.parent / "2026-11-19", day.feed, date="2026-11-19")
    other.put(0, Put((trade("AAPL", 1),)))
    ended = invoke("inspect", day.path.parent)
    assert ended.status == 0
    assert ended.out.startswith(f"{day.path.parent}: 2 days\n")
    assert re.search(r"│ 2026-11-19 │ +2 │ +1 │(?s:.)*│ 2026-11-20 │ +2 │ +40 │", ended.out)
    assert invoke("inspect", day.path.parent, "--picture", "x.svg").status == Status.USAGE
    assert invoke("inspect", other.path, day.path).out == ended.out  # as `inspect recordings/FEED/*`


def test_an_empty_day_is_shown_and_drawn(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    ended = invoke("inspect", day.path, "--picture", tmp_path / "x.svg")
    assert ended.status == 0, ended.errors
    assert ended.text("messages") == "0"
    ElementTree.parse(tmp_path / "x.svg")


def test_the_picture_has_axes_labels_and_gaps(day: Day, tmp_path: Path) -> None:
    assert invoke("inspect", day.path, "--picture", tmp_path / "day.svg").status == 0
    tree = ElementTree.parse(tmp_path / "day.svg")
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert "recorded, 2026-11-20: 40 messages" in texts
    assert "▼ missing: 5 messages" in texts
    assert "local time, America/New_York" in texts
    assert {"09:30:00", "09:30:10"} < set(texts)
    assert [e.text for e in tree.iter("{http://www.w3.org/2000/svg}title")][1:] == ["5 missing"]


def test_names_in_the_picture_are_escaped(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", msgspec.structs.replace(feed_of(), name="a-b"))
    chart = rate_picture.Chart.of(Recording.open(day.path), [])._replace(title="<&>")
    assert "&lt;&amp;&gt;" in rate_picture.svg(chart)
    ElementTree.fromstring(rate_picture.svg(chart))


def test_a_png_needs_matplotlib(day: Day, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_picture, "find_spec", lambda _: None)
    ended = invoke("inspect", day.path, "--picture", tmp_path / "day.png")
    assert ended.status == Status.ERROR
    assert ended.errors == (
        "error: a PNG needs matplotlib: pip install 'blackbox-md[picture]'; day.svg needs no library\n"
    )


def test_a_png_is_drawn(day: Day, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert invoke("inspect", day.path, "--picture", tmp_path / "day.png").status == 0
    assert (tmp_path / "day.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_another_kind_is_wrong_usage(day: Day) -> None:
    ended = invoke("inspect", day.path, "--picture", "day.jpeg")
    assert ended.status == Status.USAGE
    assert "expected a name that ends in .svg or .png" in " ".join(ended.errors.replace("│", "").split())
