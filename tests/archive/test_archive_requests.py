"""Invalid requests to an archive, and readers that misbehave."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy
import pytest
import zmq

from blackbox import ConfigError, Publisher
from blackbox.archive.recorder import Recorder
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.protocol import ANSWERS, ENCODER, AskAbout, AskBlocks, Piece, Refusal
from blackbox.archive.serve.server import ArchiveServer, ArchiveStatistics
from blackbox.block.position import Position
from blackbox.errors import ArchiveError, EndpointError
from blackbox.testing import wait_until
from tests.archive.archives import (
    all_numbers,
    archived_feed,
    publish_parts,
    recorded,
)
from tests.archive.recorders import MIB, feed_of, wait_recorded


def test_an_error_hides_the_location_of_the_files(tmp_path: Path) -> None:
    feed = archived_feed()
    with (
        ArchiveServer(tmp_path / feed.name, feed.archives),
        pytest.raises(ArchiveError, match="tape had no recorded day") as refused,
    ):
        ArchiveClient(feed).about()
    assert str(tmp_path) not in str(refused.value)


def test_an_error_names_a_path_that_is_not_utf_8(tmp_path: Path) -> None:
    feed = archived_feed()
    directory = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))
    with (
        ArchiveServer(directory, feed.archives),
        pytest.raises(ArchiveError, match=r"caf\\udce9 had no recorded day"),
    ):
        ArchiveClient(feed).about()


def archive_of(recorder: Recorder) -> ArchiveStatistics:
    statistics = recorder.archive_statistics
    assert statistics is not None
    return statistics


def test_a_reader_that_does_not_read_delays_no_other_reader(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, segment_bytes=MIB, serve=True) as recorder:
        publish_parts(publisher, 0, 30_000)
        wait_recorded(recorder, 30_000)
        with zmq.Context() as context, context.socket(zmq.DEALER) as hung:
            hung.setsockopt(zmq.RCVHWM, 1)
            hung.setsockopt(zmq.RCVBUF, 4_096)
            hung.linger = 0
            hung.connect(feed.archives[0])
            request = ENCODER.encode(AskBlocks(slice_id=0, start=Position(publisher.epoch, 0)))
            for _ in range(1_000):
                hung.send_multipart([b"", request])
            publish_parts(publisher, 30_000, 40_000)
            asked = ArchiveClient(feed).blocks(0, start=(publisher.epoch, 0), stop=(publisher.epoch, 40_000))
            assert all_numbers(asked) == list(range(40_000))
            wait_until(lambda: archive_of(recorder).disconnected >= 1, 60, "it was disconnected")
            assert archive_of(recorder).dropped >= 64
        assert recorder.statistics().lost == 0


def test_invalid_requests_are_rejected_or_dropped(tmp_path: Path) -> None:
    feed = archived_feed()
    epoch = recorded(tmp_path, feed, 100)
    good = ENCODER.encode(AskBlocks(slice_id=0, start=Position(epoch, 0)))
    random = numpy.random.default_rng(7)
    with (
        ArchiveServer(tmp_path / feed.name, feed.archives) as archive,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as reader,
    ):
        reader.linger = 0
        reader.connect(feed.archives[0])
        for number in range(300):
            text = bytearray(good if number % 2 else random.bytes(int(random.integers(0, 40))))
            for place in random.integers(0, max(1, len(text)), 2):
                text[place : place + 1] = random.bytes(1)
            reader.send_multipart([b"%d" % number, bytes(text)])
            assert reader.poll(60_000), bytes(text)
            answer, *_ = frames = reader.recv_multipart()
            assert answer == b"%d" % number
            assert isinstance(ANSWERS.decode(frames[1]), Refusal | Piece)
        for frames in ([b""], [b"", b"", b""], [os.urandom(10)]):
            reader.send_multipart(frames)
        wait_until(lambda: archive.statistics().dropped == 3, 60, "requests were dropped")
        assert archive.statistics().refused > 100
        assert all_numbers(ArchiveClient(feed).blocks(0)) == list(range(100))


@pytest.mark.parametrize("place", [(0, 65), (0, 1 << 62), (999_999, 64), (0, 0)])
def test_an_invalid_cursor_does_no_harm(tmp_path: Path, place: tuple[int, int]) -> None:
    feed = archived_feed()
    ask = AskBlocks(slice_id=0, start=Position(recorded(tmp_path, feed, 100), 0))
    archive = Pieces(tmp_path / feed.name)
    cursor = archive.read(ask).piece.cursor
    wrong = msgspec.structs.replace(cursor, segment=place[0], offset=place[1])
    assert archive.read(msgspec.structs.replace(ask, cursor=wrong)).piece.state in ("more", "later", "done")


def test_an_error_names_the_missing_slice_day_or_feed(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 10)
    wide = msgspec.structs.replace(feed, slices=feed_of(slices=2).slices)
    other = msgspec.structs.replace(feed, name="other")
    with ArchiveServer(tmp_path / feed.name, feed.archives):
        with pytest.raises(ArchiveError, match="slice was 1, expected 0 to 0"):
            next(ArchiveClient(wide).blocks(1))
        with pytest.raises(ArchiveError, match="day was '../x', expected one of"):
            ArchiveClient(feed).about("../x")
        with pytest.raises(ArchiveError, match="archive was of feed 'tape', key_bytes = 0, expected feed 'other'"):
            next(ArchiveClient(other).blocks(0))
        with pytest.raises(EndpointError, match="is in use"):
            ArchiveServer(tmp_path, feed.archives).open()
    with pytest.raises(ArchiveError, match=r"no archive of feed 'tape' answered: .* did not answer within 0\.1 s"):
        ArchiveClient(feed, timeout=0.1).about()


def test_invalid_settings_are_rejected_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"archive was 'inproc://x', expected tcp:// or ipc://"):
        feed_of(archives=("inproc://x",))
    with pytest.raises(ConfigError, match="was named twice"):
        feed_of(archives=("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="had no archives"):
        Recorder(feed_of(), tmp_path, serve=True)
    with pytest.raises(ConfigError, match="had no archives"):
        ArchiveClient(feed_of())
    with pytest.raises(ConfigError, match="and start_ns 5, expected one of them"):
        ArchiveClient(archived_feed()).blocks(0, start=(1, 1), start_ns=5)
    with pytest.raises(ConfigError, match="prefixes were 257, expected at most 256"):
        ArchiveClient(archived_feed()).blocks(0, [b"%03d" % number for number in range(257)])
    with pytest.raises(ArchiveError, match="had no recorded day"):
        Pieces(tmp_path).about(AskAbout().day)
