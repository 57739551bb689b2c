"""Output that is refused or that a locale lacks, and text from others: shown or reported, without a traceback."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from blackbox import Publisher, Recording
from blackbox.block.gap import Gap
from blackbox.cli.recordings.verify import gaps_table
from blackbox.cli.ui.status import Status
from blackbox.cli.ui.terminal import bad_if, columns_table, stdout, values_table
from tests.cli.commands import ROOT, Command, Ended, Place, assert_one_line, beside, invoke, succeed
from tests.cli.days import recorded_day
from tests.examples import first_of
from tests.journals import Day, Put, Row, feed_of
from tests.process_state import linux_only

TOPICS = (b"A[red]B.x", b"A[/red]B.x", b"[bold]", b"[/]", b"A:smile:.x", b"\\[x]", "caf\u00e9.\u20ac".encode())
RUN_ALL = """
import sys
from blackbox import cli
for words in {lines!r}:
    sys.argv = ['blackbox', *words]
    try:
        cli.main()
    except SystemExit as ended:
        assert not ended.code, words
"""


@pytest.fixture
def day(tmp_path: Path) -> Day:
    made = Day(tmp_path / "recordings" / "2026-11-20", feed_of())
    made.put(0, *(Put((Row(b"A", b"x" * 100, i + 1),), i, i, i) for i in range(2_000)))
    return made


@linux_only
@pytest.mark.parametrize(
    "words", first_of([["dump", "--count", "1"], ["dump"], ["inspect"], ["replay", "--wait-for", "0"]])
)
def test_a_full_disk_is_one_line(day: Day, words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full, Command(*words, day.path, stdout=full.fileno()) as command:
        ended = command.end()
    assert_one_line(ended, r"output: No space left on device$")
    assert "Exception ignored" not in ended.errors


def test_a_closed_pipe_is_not_an_error(day: Day) -> None:
    with Command("dump", day.path) as command:
        assert command.process.stdout is not None
        assert command.process.stdout.readline()
        command.process.stdout.close()
        status = command.process.wait(200)
        assert command.process.stderr is not None
        assert (status, command.process.stderr.read()) == (Status.OK, "")
        command.process.stdout = None


def ended_with_closed_output(*words: object) -> Ended:
    """Run a command with a pipe without a reader as its stdout."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with Command(*words, stdout=writer) as command:
            return command.end()
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    ("words", "status"),
    first_of([(["verify"], Status.LOST), (["verify", "--json"], Status.LOST), (["inspect"], Status.OK)]),
)
def test_a_closed_pipe_does_not_change_the_status(tmp_path: Path, words: list[str], status: Status) -> None:
    ended = ended_with_closed_output(*words, recorded_day(tmp_path / "2026-11-20").path)
    assert (ended.status, re.findall("^error: |Traceback|Exception", ended.errors)) == (status, []), ended.errors


def test_a_subscription_whose_output_is_closed_receives_to_the_end(place: Place) -> None:
    def publish() -> None:
        with Publisher(place.feed, when_full="wait") as publisher:
            publisher.wait_for_subscribers()
            for number in range(2_000):
                publisher.publish(b"A", b"%d" % number)

    with beside(publish):
        ended = ended_with_closed_output("subscribe", "--feed", place.path, "--until-end", "--show", 2_000)
    assert ended.status == Status.OK, ended.errors


@pytest.mark.parametrize("words", first_of([[], ["--json"]]))
def test_a_command_that_prints_until_it_is_stopped_ends_when_its_output_is_closed(
    place: Place, words: list[str]
) -> None:
    with Publisher(place.feed):
        ended = ended_with_closed_output("stat", "--feed", place.path, *words)
    assert ended.status == Status.OK, ended.errors


def test_control_characters_of_others_are_escaped(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    topic = b"\x1b[2J\xc2\x9b.x"
    day.put(0, Put((Row(topic, b"x", 1),)))
    shown = [invoke(*words, day.path) for words in (["inspect", "--top", 1], ["dump"])]
    console = Console(file=io.StringIO(), width=200)
    console.print(gaps_table(Recording.open(day.path), [Gap(0, 1, topic, 1, 1, 1)]))
    for text in (*(each.out for each in shown), console.file.getvalue()):  # type: ignore[attr-defined]
        assert r"\x1b[2J\x9b" in text
        assert not {"\x1b", "\x9b"} & set(text)


def test_topics_that_look_like_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, *(Put((Row(topic, b"x", i + 1),), i, i, i) for i, topic in enumerate(TOPICS)))
    shown = succeed("inspect", day.path, "--top", len(TOPICS))
    for topic in TOPICS:
        assert topic.decode() in shown.out
    table = columns_table(("[b]name[/b]", "value"))
    table.add_row("[/x]", bad_if(True, "[/y]"))
    console = Console(file=sys.stdout, width=60, markup=stdout._markup, emoji=stdout._emoji)
    with console.capture() as captured:
        console.print(table)
        console.print(values_table([("[/x]", bad_if(True, "[red]"), ":smile:")]))
    for text in ("[b]name[/b]", "[/x]", "[/y]", "[red]", ":smile:"):
        assert text in captured.get()


@pytest.mark.parametrize(
    ("encoding", "shown"), first_of([("ascii", "caf\\xe9.\\u20ac"), ("iso-8859-1", "caf\u00e9.\\u20ac")])
)
def test_characters_missing_in_the_locale_are_escaped(tmp_path: Path, encoding: str, shown: str) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put((Row(TOPICS[-1], b"x", 1),)))
    lines = [["inspect", str(day.path)], ["replay", "--help"], ["bridge", "--help"]]
    ran = subprocess.run(
        [sys.executable, "-c", RUN_ALL.format(lines=lines)],
        capture_output=True,
        encoding=encoding,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/feeds", "PYTHONIOENCODING": encoding, "COLUMNS": "200"},
    )
    assert ran.returncode == 0, ran.stderr
    assert shown in ran.stdout
    assert ran.stdout.count("Usage: ") == 2
