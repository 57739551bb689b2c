"""Archives for tests: a feed with archives, recorded days, and the contents of answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy
import pytest

from blackbox import Feed, Publisher
from blackbox.archive.record.recorder import Recorder
from blackbox.archive.serve.connection import Answered, Connection, Fetched, SilentArchiveError
from blackbox.archive.serve.piece_reading import Read
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.protocol import AskBlocks, Gone, Piece
from blackbox.archive.serve.server import ArchiveServer
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import RawPublisher, wait_until
from tests.archive.recorders import MIB, ROW_BYTES, feed_of, publish_numbered, wait_recorded

PART = 500


def free_endpoint() -> str:
    return free_endpoints("tcp", "archive", 1, 1)[0][0]


def archived_feed(archives: int = 1, **settings: Any) -> Feed:
    return feed_of(archives=tuple(free_endpoint() for _ in range(archives)), **settings)


def keep_silent(monkeypatch: pytest.MonkeyPatch, endpoints: Collection[str]) -> None:
    """Let archives not answer, as after the timeout, but at once. More endpoints may be added later."""
    answer = Connection.answer

    def answer_of(asking: Connection) -> Answered:
        if asking.endpoint in endpoints:
            raise SilentArchiveError(f"{asking.endpoint} did not answer")
        return answer(asking)

    monkeypatch.setattr(Connection, "answer", answer_of)


def numbers(found: Fetched) -> list[int]:
    """Return the numbers from `numbered` in the requested messages."""
    rows = found.block.payloads[: found.block.count * ROW_BYTES].reshape(-1, ROW_BYTES)
    wanted: list[int] = rows[found.first_row : found.stop_row, :8].copy().view(numpy.int64)[:, 0].tolist()
    return wanted


def all_numbers(found: Iterator[Fetched | Gone]) -> list[int]:
    wanted: list[int] = []
    for each in found:
        assert isinstance(each, Fetched), each
        wanted += numbers(each)
    return wanted


def after(ask: AskBlocks, piece: Piece) -> AskBlocks:
    """Return the request for what follows an answer."""
    return msgspec.structs.replace(ask, cursor=piece.cursor, start=piece.passed)


def answers(archive: Pieces, ask: AskBlocks) -> Iterator[Read]:
    """Yield answers up to the one after which there is no more."""
    while True:
        yield (found := archive.read(ask))
        if found.piece.state != "more":
            return
        ask = after(ask, found.piece)


def publish_parts(publisher: Publisher, first: int, stop: int) -> None:
    for start in range(first, stop, PART):
        publish_numbered(publisher, start, min(PART, stop - start))
        publisher.flush()


def publish_over_segments(publisher: Publisher, recorder: Recorder, count: int = 0) -> int:
    """Publish after `count` messages until there are at least three segments. Return the number of messages."""
    while recorder.statistics().segments < 3 or count == 0:
        publish_parts(publisher, count, count + 10_000)
        count += 10_000
        wait_recorded(recorder, count)
        assert count < 10_000_000
    return count


def recorded(tmp_path: Path, feed: Feed, count: int, **settings: Any) -> int:
    """Record `count` messages of slice 0 in segments of 1 MiB. Return their epoch."""
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, segment_bytes=MIB, **settings) as recorder:
        publish_parts(publisher, 0, count)
        wait_recorded(recorder, count)
        return publisher.epoch


class Sent(NamedTuple):
    """A block of one key: whether it is lost, and a bit for each archive that has it."""

    key: bytes
    messages: int
    is_lost: bool = False
    archives: int = 1


def send_all(publisher: RawPublisher, blocks: list[Sent], which: list[bool] | None = None) -> None:
    """Send chosen blocks, by default those that are not lost."""
    for block, wanted in zip(blocks, which or [not block.is_lost for block in blocks], strict=True):
        encoded = publisher.encode([(block.key + b".x", b"0")] * block.messages)
        if wanted:
            publisher.send(encoded)


@contextmanager
def archive_of(feed: Feed, blocks: list[Sent], place: int = 0) -> Iterator[ArchiveServer]:
    """Serve the blocks of the archive at a place of the feed's list."""
    with TemporaryDirectory() as directory:
        elsewhere = feed_of(key_bytes=feed.key_bytes)
        has = [bool(block.archives >> place & 1) for block in blocks]
        with RawPublisher(elsewhere) as publisher, Recorder(elsewhere, directory) as recorder:
            send_all(publisher, blocks, has)
            wait_recorded(recorder, sum(block.messages for block, is_in in zip(blocks, has, strict=True) if is_in))
            publisher.heartbeat(end=True)
            wait_until(lambda: recorder.is_finished, what="the archive has everything")
        with ArchiveServer(Path(directory) / feed.name, feed.archives[place : place + 1]) as archive:
            yield archive
