"""`blackbox record` and `blackbox serve`: files, output, and their end."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from blackbox import Publisher
from blackbox.archive.record.recorder import Recorder
from blackbox.block.form.format import ACCEPT_KEY
from blackbox.cli.ui import progress
from blackbox.cli.ui.status import Status
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import RawPublisher, wait_until
from tests.cli.commands import Command, Place, Screen, assert_one_line, beside, invoke, succeed
from tests.journals import stored

MESSAGES = 5_000


def on_disk(directory: Path) -> int:
    """Return the number of messages in all segments below a directory."""
    found = [record for path in directory.glob("*/*/slice-*/*.journal") for record in stored(path)[0]]
    return sum(record.fields.count - record.first_row for record in found)


def accepts(filters: frozenset[bytes]) -> bool:
    """Return True if a subscriber has its confirmation, which it accepts some microseconds later."""
    return any(prefix.startswith(ACCEPT_KEY) for prefix in filters)


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
            ended = succeed("record", *words)
    assert json.loads(ended.out)["statistics"]["received"]["messages"] == on_disk(tmp_path) == MESSAGES
    assert f"recording to {tmp_path / 'cli'}" in ended.errors
    line = r"^recorded [\d,]+ messages?, .*/s, .*B/s, lost 0, gaps 0, not heard 0, lag "
    assert re.search(line, ended.errors, re.MULTILINE)


def test_ctrl_c_ends_it_with_all_recorded_and_the_totals(place: Place, tmp_path: Path, screen: Screen) -> None:
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
        ended = recorder.interrupt()
        for row in (rf"│ recorded +│ +{MESSAGES:,} ", "│ cut "):
            screen.wait(row)
    assert ended.status == Status.INTERRUPTED


@pytest.mark.parametrize("command", ["subscribe", "record"])
def test_lost_messages_have_their_own_status(command: str, place: Place, tmp_path: Path) -> None:
    where = ["--out", tmp_path] if command == "record" else ["--max-lag", 60]  # not slow, even while compiling
    with RawPublisher(place.feed) as publisher:

        def publish() -> None:
            for slice_id in range(2):
                wait_until(lambda at=slice_id: accepts(publisher.subscriptions(at)), what="the acceptance")  # type: ignore[misc]
            at = place.feed.slice_of(b"AAPL.t")
            for sequence in (0, 5):
                publisher.send(publisher.encode([(b"AAPL.t", b"payload")], slice_id=at, sequence=sequence))
            publisher.heartbeat(end=True)

        with beside(publish):
            ended = invoke(command, "--feed", place.path, "--until-end", *where)
    assert ended.status == Status.LOST, ended.errors
    assert "lost: 4 messages were lost" in ended.errors
    if command == "record":
        assert (ended.value("recorded"), ended.value("gaps"), on_disk(tmp_path)) == (2, 4, 2)
    else:
        assert (ended.value("delivered"), ended.value("lost")) == (2, 4)


def test_errors_at_the_start_are_one_line(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("record", "--feed", place.path, "--out", tmp_path)
    ended = invoke(*words, "--timeout", "0.2")
    assert_one_line(ended, "no publisher at")
    assert on_disk(tmp_path) == 0
    with Publisher(place.feed), Recorder(place.feed, tmp_path):
        ended = invoke(*words)
    assert_one_line(ended, f"is being recorded by process {os.getpid()}")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    ended = invoke(*words, "--compression", "zstd")
    assert_one_line(ended, "needs zstandard, which is not installed")


def test_a_removed_directory_is_an_error_that_names_the_file(place: Place, tmp_path: Path) -> None:
    with Publisher(place.feed) as publisher:

        def remove() -> None:
            publisher.wait_for_subscribers()
            for path in (tmp_path / "cli").glob("*/slice-*/*"):
                path.unlink()

        with beside(remove):
            ended = invoke("record", "--feed", place.path, "--out", tmp_path)
    assert_one_line(ended, "000000.journal was removed or replaced during recording")


@pytest.mark.long
def test_an_archive_prints_its_totals_at_ctrl_c(place: Place, tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()
    ((endpoint,),) = free_endpoints("tcp", "served", 1, 1)
    with Command("serve", tmp_path, "--feed", place.path, "--endpoint", endpoint, "--json") as archive:
        archive.read_error("serving")
        ended = archive.interrupt()
    assert (ended.status, json.loads(ended.out)["answered"]) == (Status.INTERRUPTED, 0)
