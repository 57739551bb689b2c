"""The order of requests at an archive, and the end of readers that do not read. Torture checks its memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from blackbox.archive.serve import turns
from blackbox.archive.serve.protocol import ENCODER, AskBlocks
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.position import Position
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed, recorded
from tests.process_state import linux_only


@linux_only
def test_readers_that_receive_nothing_are_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turns, "STUCK_S", 0.05)
    feed = archived_feed()
    epoch = recorded(tmp_path, feed, 100_000)
    request = ENCODER.encode(AskBlocks(slice_id=0, start=Position(epoch, 0)))
    with (
        ArchiveServer(tmp_path / feed.name, feed.archives) as archive,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as hog,
    ):
        hog.setsockopt(zmq.RCVHWM, 1)
        hog.setsockopt(zmq.RCVBUF, 4_096)
        hog.linger = 0
        hog.connect(feed.archives[0])
        for _ in range(60):
            hog.send_multipart([b"", request])
        wait_until(lambda: archive.statistics().disconnected >= 1, 60)
        wait_until(lambda: "was disconnected: it received nothing for" in caplog.text)


def test_a_reader_that_received_its_answer_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Peer:
        taken = 0

        def look(self) -> bool:
            return True

    peer = Peer()
    monkeypatch.setattr(turns, "_connection_of", lambda _: peer)
    asked = [zmq.Frame(each) for each in (b"reader", b"1", b"blocks")]
    waiting = turns.Turns("archive")
    waiting.take(asked)
    (reader, *_) = waiting.next() or pytest.fail("the first request has its turn")
    reader.note_sent(100)
    peer.taken = 100
    waiting.take(asked)
    assert waiting.next() is not None
    reader.note_sent(100)
    waiting.take(asked)
    assert waiting.next() is None, "it has not received the second answer"


def test_readers_that_read_are_answered_before_others_and_with_larger_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_connection_of", lambda _: None)
    waiting = turns.Turns("archive")

    def take(name: bytes) -> None:
        waiting.take([zmq.Frame(each) for each in (name, b"1", b"blocks")])

    for hog in range(200):
        for _ in range(40):
            take(b"hog%d" % hog)
    pieces = []
    for _ in range(12):
        take(b"honest")
        for turn in range(turns._LATE_TURNS):
            reader, _, most = waiting.next() or pytest.fail("nobody was answered")
            if reader.identity == b"honest":
                pieces.append(most)
                break
            assert (turn, most) == (0, turns.LEAST_PIECE), "one turn in eight is for the others"
    assert len(pieces) == 12
    assert pieces[0] == turns.LEAST_PIECE
    assert pieces == sorted(pieces)
    assert pieces[-1] > 8 * pieces[0]
