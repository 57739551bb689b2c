"""`blackbox record`: its files, its output, and its end."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from blackbox import Feed, Publisher
from blackbox.archive.recorder import Recorder
from blackbox.block.format import HEARTBEAT_KEY
from blackbox.cli.ui import progress
from blackbox.cli.ui.status import Status
from blackbox.testing import RawPublisher, wait_until
from tests.cli.commands import Command, Place, assert_one_line, beside, invoke, write_feed
from tests.examples import first_of
from tests.journals import stored

MESSAGES = 5_000


def on_disk(directory: Path) -> int:
    """Return the number of messages in all segments below a directory."""
    found = [record for path in directory.glob("*/*/slice-*/*.journal") for record in stored(path)[0]]
    return sum(record.fields.count - record.first_row for record in found)


def test_record_until_the_publisher_ends(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "recordings"
    with (
        Command("record", "--feed", place.path, "--out", out, "--until-end") as recorder,
    ):
        assert invoke("publish", f"synthetic:{MESSAGES}", "--feed", place.path).status == Status.OK
        ended = recorder.end()
    assert ended.status == Status.OK
    assert ended.value("recorded") == ended.value("received") == on_disk(out) > 0
    assert ended.value("lost") == ended.value("gaps") == 0
    assert f"recording to {out / 'cli'}" in ended.errors


@pytest.mark.parametrize(
    ("number", "status"), first_of([(signal.SIGINT, Status.INTERRUPTED), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
)
def test_a_signal_ends_it_with_all_recorded_and_the_totals(
    place: Place, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with (
        Command("record", "--feed", place.path, "--out", tmp_path, "--compression", "lz4") as recorder,
        Publisher(place.feed, when_full="wait") as publisher,
    ):
        recorder.read_error("recording to")
        for count in range(MESSAGES):
            publisher.publish(b"S%d.t" % (count % 50), bytes(60))
        publisher.flush()
        wait_until(lambda: on_disk(tmp_path) == MESSAGES)
        ended = recorder.interrupt(number)
    assert ended.status == status
    assert ended.value("recorded") == MESSAGES
    assert "Traceback" not in ended.errors


def test_gaps_are_status_4_when_it_should_run_until_the_end(tmp_path: Path) -> None:
    feed = msgspec.structs.replace(Feed.local("cli", slices=1), heartbeat_ns=50_000_000)
    path = write_feed(feed, tmp_path / "feed.toml")
    with RawPublisher(feed) as publisher:

        def publish() -> None:
            wait_until(lambda: {b"", HEARTBEAT_KEY} <= publisher.subscriptions(0), 60, "the subscription")
            publisher.send(publisher.encode([(b"T", b"")]))
            publisher.encode([(b"T", b"")] * 3)
            publisher.send(publisher.encode([(b"T", b"")]))
            publisher.heartbeat(end=True)

        with beside(publish):
            ended = invoke("record", "--feed", path, "--out", tmp_path, "--until-end")
    assert ended.status == Status.LOST
    assert "lost: 3 messages were lost" in ended.errors
    assert ended.value("gaps") == 3
    assert ended.value("recorded") == on_disk(tmp_path) == 2


def test_progress_is_printed_as_lines_without_a_terminal(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with Publisher(place.feed) as publisher:

        def close() -> None:
            publisher.wait_for_subscribers(timeout=60)
            publisher.close()

        with beside(close):
            ended = invoke("record", "--feed", place.path, "--out", tmp_path, "--fsync", "block", "--until-end")
    assert ended.status == Status.OK
    assert re.search(
        r"^recorded 0 messages, 0.00/s, 0 B/s, lost 0, gaps 0, not heard 0, lag ", ended.errors, re.MULTILINE
    )


def test_on_a_terminal_it_draws_tables(place: Place, tmp_path: Path, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    with (
        Publisher(place.feed),
        Command("record", "--feed", place.path, "--out", tmp_path, stdout=theirs) as recorder,
    ):
        drawn = b""
        while b"segments" not in drawn:
            drawn += os.read(ours, 4_096)
        assert b"duplicated" in drawn
        recorder.process.send_signal(signal.SIGINT)
        while b"cut" not in drawn:
            drawn += os.read(ours, 4_096)
        assert recorder.end().status == Status.INTERRUPTED


def test_without_a_publisher_it_fails(place: Place, tmp_path: Path) -> None:
    ended = invoke("record", "--feed", place.path, "--out", tmp_path / "out", "--timeout", "0.2")
    assert ended.status == Status.ERROR
    assert_one_line(ended, "no publisher at")
    assert on_disk(tmp_path / "out") == 0


def test_a_second_recorder_is_refused(place: Place, tmp_path: Path) -> None:
    with Publisher(place.feed), Recorder(place.feed, tmp_path):
        ended = invoke("record", "--feed", place.path, "--out", tmp_path)
    assert ended.status == Status.ERROR
    assert_one_line(ended, f"is being recorded by process {os.getpid()}")


def test_a_removed_directory_is_an_error_that_names_the_file(place: Place, tmp_path: Path) -> None:
    with Publisher(place.feed) as publisher:

        def remove() -> None:
            publisher.wait_for_subscribers(timeout=60)
            for path in (tmp_path / "cli").glob("*/slice-*/*"):
                path.unlink()

        with beside(remove):
            ended = invoke("record", "--feed", place.path, "--out", tmp_path)
    assert ended.status == Status.ERROR
    assert "000000.journal was removed or replaced during recording" in ended.errors
    assert "Traceback" not in ended.errors


def test_a_missing_library_is_named(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    ended = invoke("record", "--feed", place.path, "--out", tmp_path, "--compression", "zstd")
    assert ended.status == Status.ERROR
    assert_one_line(ended, "needs zstandard, which is not installed")


@pytest.mark.parametrize(
    "words", [["--fsync", "often"], ["--compression", "rar"], ["--segment-mib", "0"], ["--timeout", "-1"]]
)
def test_a_wrong_option_is_wrong_usage(words: list[str]) -> None:
    assert invoke("record", *words).status == Status.USAGE
