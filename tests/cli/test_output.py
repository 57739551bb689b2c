"""A refused output is reported in one line without a traceback by all commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox.cli.ui.status import Status
from tests.cli.commands import Command, assert_one_line, invoke
from tests.examples import first_of
from tests.journals import Day, Put, Row, feed_of
from tests.process_state import linux_only

pytestmark = linux_only


@pytest.fixture
def day(tmp_path: Path) -> Day:
    made = Day(tmp_path / "recordings" / "2026-11-20", feed_of())
    made.put(0, *(Put((Row(b"A", b"x" * 100, i + 1),), i, i, i) for i in range(2_000)))
    return made


@pytest.mark.parametrize(
    "words",
    first_of(
        [
            ["dump", "DAY"],
            ["dump", "DAY", "--count", "1"],
            ["inspect", "DAY"],
            ["replay", "DAY", "--wait-for", "0"],
        ]
    ),
)
def test_a_full_disk_is_one_line(day: Day, words: list[str]) -> None:
    given = [str(day.path) if word == "DAY" else word for word in words]
    with Path("/dev/full").open("wb") as full, Command(*given, stdout=full.fileno()) as command:
        ended = command.end()
    assert ended.status == Status.ERROR, ended.errors
    assert_one_line(ended, r"output: No space left on device$")
    assert "Exception ignored" not in ended.errors


def test_a_closed_pipe_is_not_an_error(day: Day) -> None:
    with Command("dump", day.path) as command:
        assert command.process.stdout is not None
        command.process.stdout.close()
        status = command.process.wait(60)
        assert command.process.stderr is not None
        assert (status, command.process.stderr.read()) == (Status.OK, "")
        command.process.stdout = None


def test_a_feed_that_holds_one_day_says_so(day: Day) -> None:
    ended = invoke("dump", day.path.parent)
    assert ended.status == Status.ERROR
    assert_one_line(ended, "holds 1 day, expected one of them")
