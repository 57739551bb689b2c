"""The order of requests at an archive, and bounded memory for any number of readers that do not read."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from blackbox.archive.serve import turns
from blackbox.archive.serve.protocol import ANSWERS, ENCODER, AskBlocks, Piece
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.position import Position
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed, recorded
from tests.process_state import linux_only, resident_bytes
from tests.support import Script

HOGS = 200
REQUESTS = 40
MIB = 1 << 20


@linux_only
def test_memory_does_not_grow_with_connections_that_do_not_read(tmp_path: Path) -> None:
    """200 connections request 40 pieces each and read none; an honest reader waits for at most one of each."""
    feed = archived_feed()
    epoch = recorded(tmp_path, feed, 100_000)
    code = f"""
        from pathlib import Path
        from blackbox.archive.serve.server import ArchiveServer
        with ArchiveServer(Path({str(tmp_path / feed.name)!r}), feed.archives) as archive:
            say("serves")
            while input() != "end":
                say(archive.statistics().answered)
    """
    request = ENCODER.encode(AskBlocks(slice_id=0, start=Position(epoch, 0)))
    with Script(code, feed) as script, zmq.Context() as context, context.socket(zmq.DEALER) as honest:
        script.expect("serves")
        honest.linger = 0
        honest.connect(feed.archives[0])

        def ask(number: int) -> Piece:
            honest.send_multipart([b"%d" % number, request])
            assert honest.poll(300_000)  # one turn per hog, in a low-priority thread
            frames = honest.recv_multipart()
            assert frames[0] == b"%d" % number
            piece = ANSWERS.decode(frames[1])
            assert isinstance(piece, Piece)
            return piece

        first = ask(0)
        for number in range(1, 12):
            largest = ask(number)
        assert len(largest.blocks) > len(first.blocks)  # a reader that reads gets larger pieces
        before = resident_bytes(script.process.pid)
        hogs = []
        for _ in range(HOGS):
            hog = context.socket(zmq.DEALER)
            hog.setsockopt(zmq.RCVHWM, 1)
            hog.setsockopt(zmq.RCVBUF, 4_096)
            hog.linger = 0
            hog.connect(feed.archives[0])
            for _ in range(REQUESTS):
                hog.send_multipart([b"", request])
            hogs.append(hog)
        most = 0
        for number in range(20):
            script.tell("count")
            earlier = int(script.read())
            ask(number)
            script.tell("count")
            assert int(script.read()) - earlier <= HOGS + turns._LATE_TURNS  # no hog has two turns before it
            most = max(most, resident_bytes(script.process.pid))
        for hog in hogs:
            hog.close()
    assert most - before < turns.MOST_IN_FLIGHT + 32 * MIB


@linux_only
@pytest.mark.parametrize("stuck_s", [0.05])
def test_readers_that_receive_nothing_are_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stuck_s: float
) -> None:
    monkeypatch.setattr(turns, "STUCK_S", stuck_s)
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
