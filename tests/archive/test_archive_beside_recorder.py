"""An archive next to its recorder: messages not recorded yet, and the recorder's end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from blackbox import Publisher
from blackbox.archive.recorder import Recorder
from blackbox.archive.serve import piece_reading
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.connection import Fetched
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.server import ArchiveServer
from blackbox.errors import ArchiveError
from blackbox.testing import wait_until
from tests.archive.archives import (
    PART,
    all_numbers,
    archived_feed,
    numbers,
    publish_over_segments,
    publish_parts,
    recorded,
)
from tests.archive.recorders import MIB, wait_recorded
from tests.cli.commands import Command


def test_readers_of_a_busy_recorder_get_their_answers(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 30_000)
    with ArchiveServer(tmp_path / feed.name, feed.archives, lambda: True):
        assert all_numbers(ArchiveClient(feed).blocks(0)) == list(range(30_000))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_reader_next_to_the_recorder_misses_nothing_across_segments(
    tmp_path: Path, compression: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_reading, "PIECE_BYTES", MIB)
    feed = archived_feed()
    found: list[int] = []
    last = [1 << 62]
    with (
        Publisher(feed) as publisher,
        Recorder(feed, tmp_path, segment_bytes=MIB, serve=True, compression=compression) as recorder,
    ):
        asked = ArchiveClient(feed).blocks(0, start=(publisher.epoch, 0), timeout=60)

        def read() -> None:
            while not found or found[-1] < last[0]:
                found.extend(all_numbers(iter([next(asked)])))

        reader = threading.Thread(target=read)
        reader.start()
        count = publish_over_segments(publisher, recorder, least=1 if compression == "zstd" else 3)
        last[0] = count + PART - 1
        publish_parts(publisher, count, count + PART)
        reader.join(60)
        assert recorder.statistics().lost == 0
        assert recorder.archive_statistics is not None
        assert recorder.archive_statistics.answered > 1
    assert found == list(range(count + PART))


def test_a_reader_waits_for_messages_not_recorded_yet(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_parts(publisher, 0, 1_000)
        wait_recorded(recorder, 1_000)
        asked = ArchiveClient(feed).blocks(0, start=(publisher.epoch, 750), stop=(publisher.epoch, 1_250))
        first = next(asked)
        assert isinstance(first, Fetched)
        publish_parts(publisher, 1_000, 2_000)
        assert numbers(first) + all_numbers(asked) == list(range(750, 1_250))
        beyond = ArchiveClient(feed).blocks(
            0, start=(publisher.epoch, 1_999), stop=(publisher.epoch, 9_999), timeout=0.1
        )
        assert numbers(next(beyond)) == [1_999]  # type: ignore[arg-type]
        with pytest.raises(ArchiveError, match=r"nothing more was recorded within 0\.1 s"):
            next(beyond)


def test_a_waiting_reader_learns_of_the_recorders_end(tmp_path: Path) -> None:
    feed = archived_feed()
    found: list[int] = []
    with Publisher(feed) as publisher:
        with Recorder(feed, tmp_path, serve=True) as recorder:
            publish_parts(publisher, 0, 1_000)
            wait_recorded(recorder, 1_000)
            reader = threading.Thread(target=lambda: found.extend(all_numbers(ArchiveClient(feed).blocks(0))))
            reader.start()
            # The first answers have blocks; the following ones are "ask later".
            wait_until(lambda: recorder.archive_statistics.answered >= 12)  # type: ignore[union-attr]
        reader.join(60)
    assert found == list(range(1_000))


def test_a_waiting_reader_continues_at_the_archives_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the archive searches all segments again, and a reader never reaches the live messages."""
    feed, begun, begin = archived_feed(), list[str](), Pieces._begin

    def note(pieces: Pieces, name: str) -> Any:
        begun.append(name)
        return begin(pieces, name)

    monkeypatch.setattr(Pieces, "_begin", note)
    found: list[int] = []
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_parts(publisher, 0, 1_000)
        wait_recorded(recorder, 1_000)
        blocks = ArchiveClient(feed).blocks(0, stop=(publisher.epoch, 2_000))
        reader = threading.Thread(target=lambda: found.extend(all_numbers(blocks)))
        reader.start()
        wait_until(lambda: recorder.archive_statistics.answered >= 12)  # type: ignore[union-attr]
        publish_parts(publisher, 1_000, 2_000)
        reader.join(60)
    assert found == list(range(2_000))
    assert len(begun) <= 2, f"{len(begun)} times in one reading"


def test_the_record_command_serves_its_recording(tmp_path: Path) -> None:
    feed = archived_feed()
    path = tmp_path / "feed.toml"
    path.write_text(
        f'name = "{feed.name}"\narchives = {list(feed.archives)}\n'
        f"[[slices]]\nendpoints = {list(feed.slices[0].endpoints)}\nshare = [0, 1]\n"
    )
    with (
        Publisher(feed) as publisher,
        Command("record", "--feed", path, "--out", tmp_path, "--serve", "--until-end") as recorder,
    ):
        publisher.wait_for_subscribers(timeout=60)
        publish_parts(publisher, 0, 2_000)
        asked = ArchiveClient(feed, timeout=60).blocks(0, start=(publisher.epoch, 0), stop=(publisher.epoch, 2_000))
        assert all_numbers(asked) == list(range(2_000))
        publisher.close()
        assert recorder.end().status == 0


def test_readers_wait_for_a_recorder_without_messages(tmp_path: Path) -> None:
    feed = archived_feed()
    with (
        Publisher(feed),
        Recorder(feed, tmp_path, serve=True),
        pytest.raises(ArchiveError, match=r"nothing more was recorded within 0\.1 s, and its recorder has not"),
    ):
        next(ArchiveClient(feed).blocks(0, timeout=0.1))
