"""`blackbox export`: its report on the file that it writes."""

from __future__ import annotations

import json
from pathlib import Path

from blackbox.cli.ui.status import Status
from blackbox.feed.symbol import SymbolRule
from tests.cli.commands import assert_one_line, invoke
from tests.cli.days import damage
from tests.journals import Day


def test_an_export_reports_uncertain_order(day: Day, tmp_path: Path) -> None:
    ended = invoke("export", day.path, "--out", tmp_path / "day.itch")
    assert ended.status == 0, ended.errors
    assert ended.text("messages") == "40"
    assert (
        "warning: 40 messages of equal times in different slices: their order is not certain; "
        "a feed of one slice keeps it" in ended.errors
    )
    assert (tmp_path / "day.itch").stat().st_size == 40 * 46


def test_an_export_has_the_messages_of_its_symbols(day: Day, tmp_path: Path) -> None:
    topics = [message.topic for message in day.told()]
    expected = sum(SymbolRule().symbol_of(topic) == b"AAPL" for topic in topics)
    assert 0 < expected < len(topics)
    chosen = ["--symbol", "AAPL", "--symbol", "AA"]
    ended = invoke("export", day.path, "--out", tmp_path / "two.itch", *chosen)
    assert (ended.status, ended.text("messages")) == (0, str(expected)), ended.errors
    ended = invoke("export", day.path, "--parquet", "--out", tmp_path / "two", *chosen, "--json")
    assert json.loads(ended.out)["messages"] == expected, ended.errors
    ended = invoke("export", day.path, "--out", tmp_path / "none.itch", "--symbol", "")
    assert_one_line(ended, "symbols had an empty one")


def test_an_export_leaves_out_damaged_messages(day: Day, tmp_path: Path) -> None:
    damage(day)
    ended = invoke("export", day.path, "--out", tmp_path / "day.itch", "--stop", "09:30:10")
    assert ended.status == Status.LOST
    assert ended.text("messages") == "18"
    assert "1 part damaged with 2 messages or more; they are not in" in ended.errors
