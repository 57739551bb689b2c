"""`blackbox record` and `blackbox serve`: files, output, and their end."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from blackbox import Feed, Publisher
from blackbox.archive.record.recorder import Recorder
from blackbox.cli.ui import progress
from blackbox.cli.ui.status import Status
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import RawPublisher, wait_until
from tests.cli.commands import Command, Place, Screen, assert_one_line, beside, invoke, write_feed
from tests.cli.test_subscribe import accepts
from tests.examples import first_of
from tests.journals import stored

MESSAGES = 5_000


def on_disk(directory: Path) -> int:
    """Return the number of messages in all segments below a directory."""
    found = [record for path in directory.glob("*/*/slice-*/*.journal") for record in stored(path)[0]]
    return sum(record.fields.count - record.first_row for record in found)


def publish(publisher: Publisher) -> None:
    for count in range(MESSAGES):
        publisher.publish(b"S%d.t" % (count % 50), bytes(60))
    publisher.flush()


def test_a_feed_is_recorded_until_its_end(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with Publisher(place.feed, when_full="wait") as publisher:

        def publish_and_close() -> None:
            publisher.wait_for_subscribers()
            publish(publisher)
            publisher.close()

        with beside(publish_and_close):
            words = ("--feed", place.path, "--out", tmp_path, "--fsync", "block", "--until-end", "--json")
            ended = invoke("record", *words)
    assert ended.status == Status.OK, ended.errors
    assert json.loads(ended.out)["statistics"]["received"]["messages"] == on_disk(tmp_path) == MESSAGES
    assert f"recording to {tmp_path / 'cli'}" in ended.errors
    line = r"^recorded [\d,]+ messages?, .*/s, .*B/s, lost 0, gaps 0, not heard 0, lag "
    assert re.search(line, ended.errors, re.MULTILINE)


@pytest.mark.parametrize(
    ("number", "status"), first_of([(signal.SIGINT, Status.INTERRUPTED), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
)
def test_a_signal_ends_it_with_all_recorded_and_the_totals(
    place: Place, tmp_path: Path, screen: Screen, number: signal.Signals, status: int
) -> None:
    words = ("record", "--feed", place.path, "--out", tmp_path, "--compression", "lz4")
    with (
        Command(*words, stdout=screen.program) as recorder,
        Publisher(place.feed, when_full="wait") as publisher,
    ):
        recorder.read_error("recording to")
        publish(publisher)
        wait_until(lambda: on_disk(tmp_path) == MESSAGES)
        for heading in ("duplicated", "segments"):
            screen.wait(heading)
        ended = recorder.interrupt(number)
        for row in (rf"│ recorded +│ +{MESSAGES:,} ", "│ cut "):
            screen.wait(row)
    assert ended.status == status
    assert "Traceback" not in ended.errors


def test_gaps_are_status_4_when_it_should_run_until_the_end(tmp_path: Path) -> None:
    feed = msgspec.structs.replace(Feed.local("cli", slices=1), heartbeat_ns=50_000_000)
    path = write_feed(feed, tmp_path / "feed.toml")
    with RawPublisher(feed) as publisher:

        def publish() -> None:
            wait_until(lambda: accepts(publisher.subscriptions(0)), 60, "the acceptance")
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


def test_errors_at_the_start_are_one_line(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("record", "--feed", place.path, "--out", tmp_path)
    ended = invoke(*words, "--timeout", "0.2")
    assert ended.status == Status.ERROR
    assert_one_line(ended, "no publisher at")
    assert on_disk(tmp_path) == 0
    with Publisher(place.feed), Recorder(place.feed, tmp_path):
        ended = invoke(*words)
    assert ended.status == Status.ERROR
    assert_one_line(ended, f"is being recorded by process {os.getpid()}")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    ended = invoke(*words, "--compression", "zstd")
    assert ended.status == Status.ERROR
    assert_one_line(ended, "needs zstandard, which is not installed")


def test_a_removed_directory_is_an_error_that_names_the_file(place: Place, tmp_path: Path) -> None:
    with Publisher(place.feed) as publisher:

        def remove() -> None:
            publisher.wait_for_subscribers()
            for path in (tmp_path / "cli").glob("*/slice-*/*"):
                path.unlink()

        with beside(remove):
            ended = invoke("record", "--feed", place.path, "--out", tmp_path)
    assert ended.status == Status.ERROR
    assert_one_line(ended, "000000.journal was removed or replaced during recording")


@pytest.mark.long
def test_an_archive_prints_its_totals_at_ctrl_c(place: Place, tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()
    ((endpoint,),) = free_endpoints("tcp", "served", 1, 1)
    with Command("serve", tmp_path, "--feed", place.path, "--endpoint", endpoint, "--json") as archive:
        archive.read_error("serving")
        ended = archive.interrupt()
    assert (ended.status, json.loads(ended.out)["answered"]) == (Status.INTERRUPTED, 0)
    assert "Traceback" not in ended.errors
