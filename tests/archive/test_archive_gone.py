"""Gaps that an archive reports: messages damaged, missing, or never recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox import Publisher
from blackbox.archive.format import RECORD_HEAD_BYTES
from blackbox.archive.recorder import Recorder
from blackbox.archive.serve import piece_reading
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.connection import Fetched
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.protocol import AskBlocks, Gone
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.position import Position
from tests.archive.archives import (
    PART,
    archived_feed,
    numbers,
    publish_over_segments,
    recorded,
)
from tests.archive.recorders import MIB, segments


def test_a_missing_segment_is_reported_with_its_sequences(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, segment_bytes=MIB) as recorder:
        epoch, count = publisher.epoch, publish_over_segments(publisher, recorder)
    lost = segments(tmp_path, feed)[1]
    lost.unlink()
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        found = list(ArchiveClient(feed).blocks(0, start=(epoch, 0), stop=(epoch, count)))
    (gone,) = [each for each in found if isinstance(each, Gone)]
    came = [n for each in found if isinstance(each, Fetched) for n in numbers(each)]
    assert came == [n for n in range(count) if not gone.first <= n < gone.stop]
    assert gone.epoch == epoch
    assert gone.stop > gone.first
    assert lost.name in gone.why


@pytest.mark.parametrize("place", [0.1, 0.2, 0.35, 0.5, 0.7])
def test_a_damaged_record_is_reported_with_its_sequences(tmp_path: Path, place: float) -> None:
    """At any position in the pieces of the answer. The first pieces are small."""
    feed = archived_feed()
    epoch = recorded(tmp_path, feed, 10_000)
    path = segments(tmp_path, feed)[0]
    data = bytearray(path.read_bytes())
    record = data.rindex(b"BREC", 0, int(len(data) * place))
    data[record + RECORD_HEAD_BYTES] ^= 0xFF  # not in a mark, nor between records
    path.write_bytes(data)
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        found = list(ArchiveClient(feed).blocks(0, start=(epoch, 0), stop=(epoch, 10_000)))
    (gone,) = [each for each in found if isinstance(each, Gone)]
    came = [n for each in found if isinstance(each, Fetched) for n in numbers(each)]
    assert came == [n for n in range(10_000) if not gone.first <= n < gone.stop]
    assert (gone.epoch, gone.stop > gone.first, path.name in gone.why) == (epoch, True, True)


def test_each_damaged_place_is_reported(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 10_000)
    path = segments(tmp_path, feed)[0]
    data = bytearray(path.read_bytes())
    for part in (1, 2):
        data[part * len(data) // 3] ^= 0xFF
    path.write_bytes(data)
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        found = list(ArchiveClient(feed).blocks(0))
    gone = [each for each in found if isinstance(each, Gone)]
    assert len(gone) == 2
    assert all(path.name in each.why for each in gone)
    came = [n for each in found if isinstance(each, Fetched) for n in numbers(each)]
    assert len(came) + sum(each.stop - each.first for each in gone) == 10_000


def test_damage_is_reported_once_and_in_order_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = archived_feed()
    epoch = recorded(tmp_path, feed, 10_000)
    path = segments(tmp_path, feed)[0]
    data = bytearray(path.read_bytes())
    for part in (1, 2):
        data[part * len(data) // 3] ^= 0xFF
    path.write_bytes(data)
    for blocks in (1, 3, 1_000):
        monkeypatch.setattr(piece_reading, "PIECE_BLOCKS", blocks)
        archive, cursor, start, state = Pieces(tmp_path / feed.name), None, Position(epoch, 0), "more"
        told: list[int | None] = []
        while state == "more":
            piece, found = archive.read(AskBlocks(slice_id=0, cursor=cursor, start=start))
            gone = dict(piece.gone)
            for place in range(len(found) + 1):
                told += [None] * (place in gone)
                told += [int(found[place].sequences[0])] if place < len(found) else []
            cursor, start, state = piece.cursor, piece.passed, piece.state
        assert told.count(None) == 2
        places = [place for place, number in enumerate(told) if number is None]
        before_and_after = [(told[place - 1], told[place + 1]) for place in places]
        assert all(a is not None and b is not None and b - a > PART for a, b in before_and_after), before_and_after


def test_an_empty_segment_is_reported_as_gone(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, segment_bytes=MIB) as recorder:
        epoch, count = publisher.epoch, publish_over_segments(publisher, recorder)
    lost = segments(tmp_path, feed)[1]
    lost.write_bytes(b"")
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        found = list(ArchiveClient(feed).blocks(0, start=(epoch, 0), stop=(epoch, count)))
    (gone,) = [each for each in found if isinstance(each, Gone)]
    came = [n for each in found if isinstance(each, Fetched) for n in numbers(each)]
    assert came == [n for n in range(count) if not gone.first <= n < gone.stop]
    assert lost.name in gone.why


def test_messages_never_recorded_are_reported_as_gone_at_the_end(tmp_path: Path) -> None:
    feed = archived_feed()
    epoch = recorded(tmp_path, feed, 1_000)
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        found = list(ArchiveClient(feed).blocks(0, start=(epoch, 999), stop=(epoch, 1_005)))
    assert found[1:] == [Gone(epoch, 1_000, 1_005, "not recorded")]
