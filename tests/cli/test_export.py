"""`blackbox export`: what it says of the file that it writes."""

from __future__ import annotations

from pathlib import Path

from blackbox.cli.ui.status import Status
from tests.cli.commands import invoke
from tests.cli.days import damage
from tests.journals import Day


def test_an_export_tells_what_is_not_certain(day: Day, tmp_path: Path) -> None:
    ended = invoke("export", day.path, "--out", tmp_path / "day.itch")
    assert ended.status == 0, ended.errors
    assert ended.text("messages") == "40"
    assert (
        "warning: 40 messages of equal times in different slices: their order is not certain; "
        "a feed of one slice keeps it" in ended.errors
    )
    assert (tmp_path / "day.itch").stat().st_size == 40 * 46


def test_an_export_lacks_what_is_damaged(day: Day, tmp_path: Path) -> None:
    damage(day)
    ended = invoke("export", day.path, "--out", tmp_path / "day.itch", "--stop", "09:30:10")
    assert ended.status == Status.LOST
    assert ended.text("messages") == "18"
    assert "1 part damaged with 2 messages or more; they are not in" in ended.errors
