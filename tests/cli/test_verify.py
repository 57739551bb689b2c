"""`blackbox verify`: gaps, damage, and the exit status."""

from __future__ import annotations

import re
from pathlib import Path

from blackbox.cli.ui.status import Status
from tests.cli.commands import invoke
from tests.cli.days import damage
from tests.journals import Day, Put, Row, feed_of


def test_a_complete_day_has_status_0(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put((Row(b"A", b"a", 1),)))
    ended = invoke("verify", day.path)
    assert (ended.status, ended.out) == (0, "")
    assert ended.errors.endswith("nothing is damaged, nothing is missing\n")


def test_gaps_have_status_4(day: Day) -> None:
    ended = invoke("verify", day.path)
    assert ended.status == Status.LOST
    assert re.search(r"│ +1 │ 1 + │ - +│ +10 │ +5 │ 09:30:10\.000 │", ended.out)
    assert ended.errors.endswith(f"lost: {day.path}: 5 messages missing in 1 gap\n")


def test_each_damage_is_reported_by_file_offset_bytes_and_messages(day: Day) -> None:
    damage(day)
    start, stop = day.segments[0].places[3]
    ended = invoke("verify", day.path)
    assert ended.status == Status.LOST
    row = rf"│ slice-00000/000000\.journal │ +{start:,} │ +{stop - start} │ +2 │ body checksum did not match"
    assert re.search(row, ended.out)
    assert "1 part damaged with 2 messages or more; 7 messages missing in 2 gaps" in ended.errors
    assert "warning" not in ended.errors


def test_many_gaps_are_summarized(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, *(Put((Row(b"A", b"a", 1),), sequence=3 * i) for i in range(50)))
    ended = invoke("verify", day.path)
    assert "the largest 20 of 49" in ended.out
    assert "98 messages missing in 49 gaps" in ended.errors
