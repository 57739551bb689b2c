"""SoupBinTCP's client: each message once in spite of disconnects, or in a gap; bad servers; hostile bytes."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Self

import pytest
from blackbox_feeds.itch50 import live_soupbintcp
from blackbox_feeds.itch50.live_soupbintcp import PASSWORD_VARIABLE, SoupBinTcpClient
from blackbox_feeds.itch50.soupbintcp import (
    DEBUG,
    END_OF_SESSION,
    LOGIN_REJECTED,
    SEQUENCED,
    SERVER_HEARTBEAT,
    Accepted,
    Login,
    packet,
)
from blackbox_feeds.itch50.soupbintcp_client import Frames, SoupBinTcpSession
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.errors import ConfigError, SourceError
from blackbox.testing import wait_until
from tests.examples import examples
from tests.feeds.build import itch, payloads_and_gaps_of
from tests.feeds.reader import Reader

MESSAGES = [itch("AEDU"[number % 4], number % 5, number, f"S{number % 5}") for number in range(1, 301)]


class Server(threading.Thread):
    """Answers each connection by a function of its login, which returns the bytes to send; then disconnects."""

    def __init__(self, answer: Callable[[Login, int], bytes]) -> None:
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.logins: list[Login] = []
        self._answer = answer

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.join()

    def run(self) -> None:
        while True:
            try:
                connected, _ = self.socket.accept()
            except OSError:
                return
            with connected:
                request = connected.recv(49, socket.MSG_WAITALL)
                if len(request) < 49:
                    continue
                self.logins.append(Login.of(request[3:]))
                connected.sendall(self._answer(self.logins[-1], len(self.logins)))
                connected.shutdown(socket.SHUT_WR)


def client_of(port: int, query: str = "") -> SoupBinTcpClient:
    return SoupBinTcpClient(f"//bob@127.0.0.1:{port}?retry=0.001{query}", "2019-12-30")


def found_by(server: Server) -> tuple[SoupBinTcpClient, list[bytes | int]]:
    """Run a client until its end; return it, and its messages and gaps."""
    source = client_of(server.port)
    return source, payloads_and_gaps_of(source)


def sequenced(first: int, end: int) -> bytes:
    return b"".join(packet(SEQUENCED, message) for message in MESSAGES[first - 1 : end - 1])


def test_each_message_arrives_once_in_spite_of_disconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    chance = random.Random(1)

    def answer(login: Login, _number: int) -> bytes:
        assert (login.user, login.password) == ("bob", "secret")
        data = packet(DEBUG, b"hello") + Accepted("S1", login.sequence).pack()
        end = min(login.sequence + 40, len(MESSAGES) + 1)
        data += sequenced(login.sequence, end) + packet(SERVER_HEARTBEAT)
        if end == len(MESSAGES) + 1:
            return data + packet(END_OF_SESSION)
        return data[: len(data) - chance.randrange(400)]  # in the middle of a packet

    with Server(answer) as server:
        source, found = found_by(server)
    assert found == MESSAGES
    assert [login.session for login in server.logins] == ["", *["S1"] * (len(server.logins) - 1)]
    assert source.statistics().reconnects == len(server.logins) - 1 > 5
    assert (source.statistics().missing, source.statistics().malformed) == (0, 0)


@pytest.mark.parametrize(("code", "error"), [(b"A", "user and password"), (b"S", "does not have this session")])
def test_rejected_login(code: bytes, error: str) -> None:
    reject = packet(LOGIN_REJECTED, code)
    with Server(lambda _login, _number: reject) as server, pytest.raises(SourceError, match=error):
        found_by(server)


@pytest.mark.parametrize(
    "bad",
    [
        sequenced(1, 2),  # before the login
        Accepted("S2", 5).pack(),  # another session
        Accepted("S1", 4).pack(),  # messages would come again
        Accepted("S1", 10**20 - 1).pack(),  # no sequence
        packet(b"A", b"x" * 30),
        packet(b"?"),
        b"\0\0",
    ],
)
def test_faulty_server_is_tried_again_and_counted(bad: bytes) -> None:
    def answer(login: Login, number: int) -> bytes:
        if number == 1:
            return Accepted("S1", 1).pack() + sequenced(1, 5)
        return bad if number == 2 else Accepted("S1", 5).pack() + sequenced(5, 10) + packet(END_OF_SESSION)

    with Server(answer) as server:
        source, found = found_by(server)
    assert found == MESSAGES[:9]
    assert (source.statistics().malformed, len(server.logins)) == (1, 3)


def test_attempts_before_the_first_connection_are_logged_and_are_no_reconnects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(lambda _login, _number: Accepted("S1", 1).pack() + sequenced(1, 5) + packet(END_OF_SESSION))
    server.socket.close()
    server.socket = socket.socket()
    server.socket.bind(("127.0.0.1", 0))
    server.port = server.socket.getsockname()[1]
    with Reader(client_of(server.port)) as reader:
        wait_until(lambda: caplog.text.count(f"connection to 127.0.0.1:{server.port}: Connection refused") > 2)
        server.socket.listen()
        with server:
            reader.join()
    assert (reader.found, reader.error, reader.source.statistics().reconnects) == (MESSAGES[:4], None, 0)


def test_silent_server_is_noticed_and_heartbeats_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    late_s = 0.0
    monkeypatch.setattr(live_soupbintcp, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late_s))
    accepted = Accepted("S1", 1).pack()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Reader(client_of(listener.getsockname()[1], "&stale=60")) as reader,
    ):
        connected, _ = listener.accept()
        with connected:
            connected.recv(49, socket.MSG_WAITALL)
            connected.sendall(accepted)
            wait_until(lambda: reader.source.statistics().connected)
            late_s = 2.0
            assert connected.recv(3, socket.MSG_WAITALL) == packet(b"R")
            late_s = 100.0
            wait_until(lambda: reader.source.statistics().stale == 1)
        connected, _ = listener.accept()
        with connected:
            connected.recv(49, socket.MSG_WAITALL)
            connected.sendall(accepted + sequenced(1, 3) + packet(END_OF_SESSION))
            reader.join()
    assert (reader.found, reader.error) == (MESSAGES[:2], None)


def frames_of(found: Frames) -> list[bytes | int]:
    """Return the messages and gaps of frames."""
    out: list[bytes | int] = []
    gaps = list(found.gaps)
    for run, (start, end) in enumerate(zip(found.starts.tolist(), found.ends.tolist(), strict=True)):
        out += [missing for place, missing in gaps if place == run]
        data = found.data[start:end].tobytes()
        while data:
            size = int.from_bytes(data[:2], "big")
            out.append(data[2 : 2 + size])
            data = data[2 + size :]
    return out + [missing for place, missing in gaps if place == len(found.starts)]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 6), max_size=30), st.lists(st.integers(1, 200), max_size=30))
def test_packets_in_any_pieces_give_the_same_messages(kinds: list[int], pieces: list[int]) -> None:
    data, expected = Accepted("S1", 4).pack(), list[bytes | int]([3])
    for number, kind in enumerate(kinds):
        if kind == 0:
            data += packet(SERVER_HEARTBEAT)
        elif kind == 1:
            data += packet(DEBUG, b"x" * number)
        elif kind == 2:
            data += packet(SEQUENCED, b"D")
            expected.append(1)
        else:
            data += packet(SEQUENCED, MESSAGES[number])
            expected.append(MESSAGES[number])
    session = SoupBinTcpSession(Login("bob", ""), 15.0)
    session.begin(0.0)
    found: list[bytes | int] = []
    for size in [*pieces, len(data)]:
        found += frames_of(session.received(data[:size], 1.0))
        data = data[size:]
    assert found == expected
    session.begin(1.0)
    assert Login.of((session.due(1.0) or b"")[3:]).sequence == 4 + len(expected) - 1
    assert session.malformed == kinds.count(2)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("//127.0.0.1:1", "URL had user '', expected soupbintcp://USER@HOST:PORT"),
        ("//bob:secret@127.0.0.1:1", "with the password in BLACKBOX_SOUPBINTCP_PASSWORD"),
        ("//longname@127.0.0.1:1", "user had 8 bytes, expected at most 6"),
        ("//bob@127.0.0.1:1?password_file=/nowhere", "option password_file was '/nowhere'"),
        ("//bob@127.0.0.1:1?password_file=/no@where", "option password_file was '/no@where'"),
        ("//127.0.0.1:1?password_file=/no@where", "URL had user ''"),
        ("//bob@127.0.0.1:0", "address was 127.0.0.1:0, expected a port from 1 to 65535"),
        ("//bob@127.0.0.1:1?sequence=-1", "option sequence was -1"),
        ("//bob@127.0.0.1:1?resume=1", "expected one of soupbintcp://: session, sequence"),
    ],
)
def test_wrong_url(url: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        SoupBinTcpClient(url)
