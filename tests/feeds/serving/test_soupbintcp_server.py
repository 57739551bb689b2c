"""Serve a recorded day by SoupBinTCP: each client gets the messages from its sequence on, in order."""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy
import pytest
from blackbox_feeds.itch50 import soupbintcp, soupbintcp_server
from blackbox_feeds.itch50.soupbintcp import Accepted, Login, packet
from blackbox_feeds.itch50.soupbintcp_connection import Connection, ConnectionLife, Lost
from blackbox_feeds.itch50.soupbintcp_server import PASSWORD_VARIABLE, SoupBinTcpServer, SoupOptions
from blackbox_feeds.serving.sent_stream import Framing, SentStream

from blackbox import Recording
from blackbox.errors import BlackBoxError, ConfigError, EndpointError, NoSubscriberError
from blackbox.feed.endpoint import _free_ports
from blackbox.feed.venue_url import Address
from blackbox.replay.play.venue_server import VenueMessages
from blackbox.testing import wait_until
from blackbox.transport.wakeup import readable
from tests.feeds.serving.test_moldudp64_server import messages_of, play, recorded

SESSION = "2026112001"
_PATIENCE_S = 120.0


class Client:
    """A client in plain Python, from the specification."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(_PATIENCE_S)
        self.socket.connect((address.host, address.port))
        self._file = self.socket.makefile("rb")

    def log_in(self, sequence: int = 1, user: str = "", password: str = "", session: str = "") -> tuple[bytes, bytes]:
        """Return type and payload of the answer."""
        payload = f"{user:6}{password:10}{session:>10}{sequence:>20}".encode()
        self.send(b"L" + payload)
        return self.packet()

    def send(self, packet: bytes) -> None:
        self.socket.sendall(struct.pack(">H", len(packet)) + packet)

    def packet(self) -> tuple[bytes, bytes]:
        """Return type and payload of the next packet; empty at the end of the connection."""
        head = self._file.read(2)
        packet = self._file.read(*struct.unpack(">H", head)) if head else b""
        return packet[:1], packet[1:]

    def messages(self, count: int) -> list[bytes]:
        """Return the next messages."""
        found: list[bytes] = []
        while len(found) < count:
            kind, payload = self.packet()
            assert kind in (b"S", b"H")
            found += [payload] if kind == b"S" else []
        return found

    def rest(self) -> list[tuple[bytes, bytes]]:
        """Return the packets until the end of the connection, without heartbeats."""
        found = []
        while (packet := self.packet())[0]:
            found += [packet] if packet[0] != b"H" else []
        return found

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def served(recording: Recording, **options: Any) -> Iterator[tuple[SoupBinTcpServer, Address]]:
    (port,) = _free_ports(1)
    address = Address("127.0.0.1", port)
    with SoupBinTcpServer(address, [recording], SoupOptions(**{"linger": 0.0} | options)) as server:
        yield server, address


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A recording of one message."""
    return recorded(tmp_path_factory.mktemp("one"), messages_of(1))


def test_clients_get_all_messages_from_their_sequence_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soupbintcp, "SILENCE_S", 600.0)  # the clients send no heartbeats, and `play` may compile
    messages = messages_of(1_000)
    recording = recorded(tmp_path, messages)
    with served(recording) as (server, address):
        first = Client(address)
        assert first.log_in() == (b"A", f"{SESSION}{1:>20}".encode())
        server.wait_for(1, timeout=_PATIENCE_S)
        play(server, recording)
        assert first.messages(1_000) == messages
        late, newest = Client(address), Client(address)
        assert late.log_in(501, session=SESSION) == (b"A", f"{SESSION}{501:>20}".encode())
        assert newest.log_in(0) == (b"A", f"{SESSION}{1_001:>20}".encode())
        play(server, recording)
        assert late.messages(1_500) == messages[500:] + messages
        assert newest.messages(1_000) == messages
        first.send(b"O")
        assert first.rest() == [(b"S", message) for message in messages]
        ending = threading.Thread(target=server.end, kwargs={"at_once": False})
        ending.start()
        assert late.rest() == newest.rest() == [(b"Z", b"")]
        for client in (first, late, newest):
            client.close()
        ending.join()
        assert server.counts() == {"messages": 2_000, "clients": 3}


def test_a_client_that_connects_after_the_end_catches_up(tmp_path: Path) -> None:
    messages = messages_of(100)
    recording = recorded(tmp_path, messages)
    with served(recording, linger=_PATIENCE_S) as (server, address):
        play(server, recording)
        ending = threading.Thread(target=server.end, kwargs={"at_once": False}, daemon=True)
        ending.start()
        wait_until(lambda: server._has_ended, _PATIENCE_S, "the session ends")
        with Client(address) as client:
            assert client.log_in()[0] == b"A"
            assert client.rest() == [*((b"S", message) for message in messages), (b"Z", b"")]


def test_an_idle_session_has_heartbeats(one: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soupbintcp, "HEARTBEAT_S", 0.1)
    with served(one) as (_, address), Client(address) as client:
        client.log_in()
        assert client.packet() == (b"H", b"")


@pytest.mark.parametrize(
    ("login", "code"),
    [
        ({"user": "other", "password": "secret"}, b"A"),
        ({"user": "bob", "password": "wrong"}, b"A"),
        ({"user": "bob", "password": "secret", "session": "2026112002"}, b"S"),
        ({"user": "bob", "password": "secret", "sequence": 2}, b"S"),
    ],
)
def test_a_wrong_login_is_rejected(
    one: Recording, login: dict[str, Any], code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    with served(one, user="bob") as (server, address), Client(address) as wrong, Client(address) as right:
        assert wrong.log_in(**login) == (b"J", code)
        assert wrong.packet() == (b"", b"")
        assert right.log_in(user="bob", password="secret")[0] == b"A"
        assert server.counts() == {"messages": 0, "clients": 1, "rejected": 1}


@pytest.mark.parametrize("packet", [b"L" + b" " * 45, b"L" + b"x" * 46, b"?", b"", b"Udata"])
def test_a_client_that_breaks_the_protocol_is_disconnected(one: Recording, packet: bytes) -> None:
    with served(one) as (server, address), Client(address) as client:
        client.send(packet)
        assert client.packet() == (b"", b"")
        assert server.counts() == {"messages": 0, "clients": 0, "malformed": 1}


def test_a_failed_thread_is_an_error_of_each_call(one: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    with served(one) as (server, address):
        monkeypatch.setattr(Connection, "read", fail)
        client = Client(address)
        client.send(b"R")
        error = r"the venue server failed: MemoryError\('no room'\)"
        with pytest.raises(BlackBoxError, match=error):
            server.wait_for(1, _PATIENCE_S)
        with pytest.raises(BlackBoxError, match=error):
            play(server, one)
        with pytest.raises(BlackBoxError, match=error):
            server.end(at_once=False)
    with suppress(ConnectionResetError):
        assert client.packet() == (b"", b"")  # its socket is closed
    client.close()


def test_without_free_descriptors_the_server_waits_before_it_accepts_again(
    one: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, is_full = socket.socket.accept, threading.Event()
    is_full.set()

    def accept_unless_full(self: socket.socket) -> tuple[socket.socket, Any]:
        if is_full.is_set():
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    with served(one) as (server, address):
        monkeypatch.setattr(socket.socket, "accept", accept_unless_full)
        began = time.monotonic()
        client = Client(address)
        wait_until(lambda: server.counts().get("accept_failed", 0) >= 3, _PATIENCE_S, "three attempts fail")
        attempts = server.counts()["accept_failed"]
        assert attempts <= 1 + (time.monotonic() - began) / soupbintcp_server._STEP_S
        is_full.clear()
        assert client.log_in()[0] == b"A"
        client.close()
    assert caplog.text.count("cannot be accepted now: Too many open files") == 1


LOGIN = Login("", "").pack()


@contextmanager
def connected(message: bytes, login: bytes = LOGIN, now: float = 0.0) -> Iterator[tuple[socket.socket, Connection]]:
    """Yield a client's end with a small buffer, and a connection to a stream of 20 messages, logged in at time 1."""
    stream = SentStream(Framing(is_big_endian=True, type=ord("S")), None, 64)
    data = numpy.frombuffer(message, numpy.uint8)
    addresses, lengths = numpy.full(20, data.ctypes.data), numpy.full(20, len(message), numpy.int32)
    stream.append(VenueMessages(addresses, addresses, lengths, lengths, ()))
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(listener.getsockname())
        made, _ = listener.accept()
        with made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            connection = Connection(made, stream, lambda login: Accepted(SESSION, login.sequence), now=now)

            def is_streaming() -> bool:
                connection.read(1.0)
                return connection.life is ConnectionLife.STREAMING

            if login:
                client.sendall(login)
                wait_until(is_streaming, _PATIENCE_S, "the login is read")  # it may arrive in parts
            yield client, connection
    stream.close()


def is_lost_at_16(connection: Connection, lost: Lost) -> bool:
    connection.check(15.9)
    assert connection.lost is None
    connection.check(16.0)
    return connection.lost is lost


def test_a_client_that_takes_nothing_for_15_seconds_is_slow() -> None:
    """The connection is given the time, so the test does not wait."""
    with connected(b"S" * 60_000) as (_, connection):
        connection.write(1.0, has_ended=False)  # as much as fits
        assert connection.is_blocked
        assert is_lost_at_16(connection, Lost.SLOW)


def test_a_client_that_takes_everything_but_sends_nothing_is_silent() -> None:
    with connected(b"S") as (client, connection):
        for now in (1.0, 1.9, 2.0, 2.9, 3.0, 15.0):
            connection.write(now, has_ended=False)
        accepted = Accepted(SESSION, 1).pack()
        assert client.recv(65_536) == accepted + b"\0\2SS" * 20 + b"\0\1H" * 3  # at 2, 3 and 15 seconds
        assert is_lost_at_16(connection, Lost.SILENT)


@pytest.mark.parametrize("login", [b"", LOGIN])
def test_heartbeats_do_not_keep_a_connection_without_login_or_after_the_end(login: bytes) -> None:
    with connected(b"S", login, now=1.0) as (client, connection):
        if login:
            connection.write(1.0, has_ended=True)
        for now in (5.0, 10.0, 15.0):
            client.sendall(packet(b"R"))
            readable(connection.socket.fileno(), timeout=200)
            connection.read(now)
        assert is_lost_at_16(connection, Lost.SILENT)


def test_a_login_that_needs_messages_which_are_not_kept_is_rejected(tmp_path: Path) -> None:
    recording = recorded(tmp_path, messages_of(6_000))
    with served(recording, keep_mib=1, store=str(tmp_path)) as (server, address), Client(address) as client:
        for _ in range(12):
            play(server, recording)
        assert client.log_in() == (b"J", b"S")


def test_wait_for_clients_has_a_limit(one: Recording) -> None:
    with (
        served(one) as (server, _),
        pytest.raises(NoSubscriberError, match=r"0 clients were logged in at .* after 0.01 s, expected 2"),
    ):
        server.wait_for(2, timeout=0.01)


@pytest.mark.parametrize(
    ("options", "password", "text"),
    [
        ({"user": "toolong"}, None, "user had 7 bytes, expected at most 6"),
        ({"password_file": "x"}, None, "password_file was given without a user, expected user= too"),
        ({"user": "bob", "password_file": "/nowhere"}, None, "password_file '/nowhere' cannot be read: "),
        # Otherwise a server that seems protected would send to everyone.
        ({}, "secret", f"{PASSWORD_VARIABLE} was given without a user"),
        ({}, "", f"{PASSWORD_VARIABLE} was given without a user"),
    ],
)
def test_a_wrong_option_is_one_error(
    one: Recording, options: dict[str, Any], password: str | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if password is not None:
        monkeypatch.setenv(PASSWORD_VARIABLE, password)
    with pytest.raises(ConfigError, match=text), served(one, **options):
        pass


@pytest.mark.parametrize(("user", "password"), [("bob", "fromfile"), (" bob ", " fromfile ")])
def test_the_password_of_a_file_is_used(one: Recording, tmp_path: Path, user: str, password: str) -> None:
    """A login is padded with blanks, so those around a user or a password do not count."""
    (tmp_path / "password").write_text(f"{password}\n")
    options = {"user": user, "password_file": str(tmp_path / "password")}
    with served(one, **options) as (_, address), Client(address) as client:
        assert client.log_in(user=user, password=password)[0] == b"A"


def test_an_address_in_use_is_one_error(one: Recording) -> None:
    with (
        served(one) as (_, address),
        pytest.raises(EndpointError, match=f"address of soupbintcp:// {address} is in use"),
        SoupBinTcpServer(address, [one], SoupOptions()),
    ):
        pass
