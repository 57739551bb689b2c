"""The order of requests at an archive, and the end of readers that do not read. Torture checks its memory."""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from blackbox.archive.serve import server, turns
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.protocol import ENCODER, AskAbout, AskBlocks
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.position import Position
from blackbox.feed.endpoint import free_endpoints
from blackbox.repeated_log import RepeatedLog
from blackbox.testing import wait_until
from blackbox.transport.server_thread import ServerLife
from tests.archive.archives import all_numbers, archived_feed, recorded
from tests.process_state import linux_only


@linux_only
def test_readers_that_receive_nothing_delay_no_other_and_are_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first has too few waiting requests to be disconnected for their number."""
    monkeypatch.setattr(turns, "STUCK_S", 3_600.0)
    monkeypatch.setattr(turns, "RepeatedLog", partial(RepeatedLog, every_s=0.0))  # each is logged
    feed = archived_feed()
    request = ENCODER.encode(AskBlocks(slice_id=0, start=Position(recorded(tmp_path, feed, 100_000), 0)))
    with ArchiveServer(tmp_path / feed.name, feed.archives) as archive, zmq.Context() as context:
        hogs = [context.socket(zmq.DEALER) for _ in range(2)]
        for hog, requests in zip(hogs, (turns.MOST_WAITING - 4, 1_000), strict=True):
            hog.setsockopt(zmq.RCVHWM, 1)
            hog.setsockopt(zmq.RCVBUF, 4_096)
            hog.linger = 0
            hog.connect(feed.archives[0])
            for _ in range(requests):
                hog.send_multipart([b"", request])
        assert all_numbers(ArchiveClient(feed, timeout=200).blocks(0)) == list(range(100_000))
        monkeypatch.setattr(turns, "STUCK_S", 0.5)
        for why in ("it received nothing for", f"{turns.MOST_WAITING} requests waited and it read no answer"):
            wait_until(lambda why=why: f"was disconnected: {why}" in caplog.text, 60)  # type: ignore[misc]
        assert archive.statistics().disconnected >= 2
        assert archive.statistics().dropped >= turns.MOST_WAITING
        context.destroy()


class Turns(turns.Turns):
    """Turns of an archive whose readers have this connection; None: as on ipc."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, connection: SimpleNamespace | None = None) -> None:
        super().__init__("archive")
        monkeypatch.setattr(turns, "_connection_of", lambda _: connection)

    def ask(self, reader: bytes = b"reader", number: int = 1) -> None:
        self.take([zmq.Frame(each) for each in (reader, b"%d" % number, b"blocks")])


def test_a_reader_that_received_its_answer_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = SimpleNamespace(taken=0, look=lambda: True)
    waiting = Turns(monkeypatch, peer)
    waiting.ask()
    (reader, *_) = waiting.next() or pytest.fail("the first request has its turn")
    reader.note_sent(100)
    peer.taken = 100
    waiting.ask()
    assert waiting.next() is not None
    reader.note_sent(100)
    waiting.ask()
    assert waiting.next() is None, "it has not received the second answer"


def test_another_that_waits_is_answered_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Turns(monkeypatch)
    waiting.ask(b"one")
    waiting.ask(b"two")
    assert waiting.next() is not None
    assert waiting.wait_s() == 0
    assert waiting.next() is not None
    assert waiting.wait_s() == turns._SWEEP_S


def test_requests_of_a_reader_that_left_count_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Turns(monkeypatch, SimpleNamespace(taken=0, look=lambda: False))
    for number in (1, 2):
        waiting.ask(number=number)
    assert waiting.next() is None
    assert waiting.dropped == 2


def test_a_reader_that_cannot_be_disconnected_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On ipc there is no connection to end."""
    waiting = Turns(monkeypatch)
    for number in range(5 * turns.MOST_WAITING):
        waiting.ask(number=number)
    assert (len(waiting._prompt), len(waiting._late)) == (1, 1)


def test_readers_that_read_are_answered_before_others_and_with_larger_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Turns(monkeypatch)
    for hog in range(200):
        for _ in range(40):
            waiting.ask(b"hog%d" % hog)
    pieces = []
    for _ in range(12):
        waiting.ask(b"honest")
        for turn in range(turns._LATE_TURNS):
            reader, _, most, _ = waiting.next() or pytest.fail("nobody was answered")
            if reader.identity == b"honest":
                pieces.append(most)
                break
            assert (turn, most) == (0, turns.LEAST_PIECE), "one turn in eight is for the others"
    assert len(pieces) == 12
    assert pieces[0] == turns.LEAST_PIECE
    assert pieces == sorted(pieces)
    assert pieces[-1] > 8 * pieces[0]


def test_no_request_is_lost_where_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.archive.serve.server._MOST_TAKEN", 2)
    archive, taken = ArchiveServer(tmp_path, free_endpoints("tcp", "turns", 1, 1)[0]), list[bytes]()

    def take(frames: list[zmq.Frame]) -> None:
        taken.append(frames[1].bytes)

    monkeypatch.setattr(archive._turns, "take", take)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as reader:
        router.bind("inproc://archive")
        reader.connect("inproc://archive")
        for number in range(10):
            reader.send_multipart([b"%d" % number, b""])
        for _ in range(5):
            archive._take_all(router, [])
    assert taken == [b"%d" % number for number in range(10)]


def test_a_closing_archive_answers_those_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_GOODBYE_S", 300.0)
    feed = archived_feed()
    recorded(tmp_path, feed, 10)
    archive = ArchiveServer(tmp_path / feed.name, feed.archives)
    turn = archive._turns.next
    monkeypatch.setattr(archive._turns, "next", lambda: turn() if archive._thread.life is ServerLife.ENDING else None)
    with archive, zmq.Context() as context:
        readers = [context.socket(zmq.DEALER) for _ in range(3)]
        for reader in readers:
            reader.linger = 0
            reader.connect(feed.archives[0])
            reader.send_multipart([b"", ENCODER.encode(AskAbout())])
        wait_until(lambda: len(archive._turns._prompt) == 3)
        archive._later_at = math.inf
        closing = threading.Thread(target=archive.close)
        closing.start()
        answered = [bool(reader.poll(60_000)) for reader in readers]
        monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: math.inf, sleep=time.sleep))  # it ends
        closing.join()
        assert all(answered)
        context.destroy()
