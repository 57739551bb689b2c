"""A local gateway that speaks Databento's live protocol: a challenge, the login, subscriptions, then a DBN stream."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy
from blackbox_feeds.dbn.records import SCHEMA, TYPED

from tests.feeds.test_dbn import START, metadata_of

KEY = "db-0123456789abcdefghijklmnopqrs"
CHALLENGE = "t7kNhwj4xqR0QYjzFKtBEG2ec2pXJ4FK"

Session = Callable[["Peer"], None]


def record(kind: str, **fields: Any) -> bytes:
    """A record of a type, zeroed but for its head and these fields."""
    made = numpy.zeros(1, SCHEMA.dtype(kind))
    made["length"], made["rtype"] = made.dtype.itemsize // 4, TYPED[kind][0]
    for name, value in fields.items():
        made[name] = value
    return made.tobytes()


def mapping(symbol: str, instrument: int, ts: int) -> bytes:
    return record(
        "symbol-mapping",
        instrument_id=instrument,
        ts_event=ts,
        stype_in_symbol=symbol.encode(),
        stype_out_symbol=symbol.encode(),
        start_ts=(1 << 64) - 1,
        end_ts=(1 << 64) - 1,
    )


def trade(number: int, instrument: int = 7) -> bytes:
    """Ten trades have the same time; every third one has an equal twin before it."""
    ts = START + 10_000_000 * (number // 10)
    return record(
        "trades", instrument_id=instrument, ts_event=ts, ts_recv=ts + 50, price=10**9 * (number - (number % 3 == 1)),
        sequence=number - (number % 3 == 1), action=b"T",
    )  # fmt: skip


def ts_of(content: bytes) -> int:
    return int.from_bytes(content[8:16], "little")


class Peer:
    """One connection after its login."""

    def __init__(self, connection: socket.socket, login: dict[str, str], requests: list[dict[str, str]]) -> None:
        self.connection, self.login, self.requests = connection, login, requests

    @property
    def start(self) -> int | None:
        text = self.requests[0].get("start")
        return None if text is None else int(text)

    def send(self, *contents: bytes) -> None:
        self.connection.sendall(b"".join(contents))

    def begin(self) -> None:
        """Send the metadata and the mapping of the one instrument."""
        self.send(metadata_of(schema=None, start=START), mapping("ESH4", 7, START + 3_600 * 10**9))

    def wait_for_close(self) -> None:
        while self.connection.recv(4_096):
            pass


class Gateway:
    """Runs one session after the other, the last one again for later connections."""

    def __init__(self, *sessions: Session) -> None:
        self.sessions = sessions
        self.peers: list[Peer] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self.connections:
            each.close()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections.append(connection)
                with suppress(OSError), connection:
                    self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        lines = connection.makefile("rb")
        connection.sendall(b"lsg_version=0.6.0\ncram=%b\n" % CHALLENGE.encode())
        login = _parsed(lines.readline())
        digest = hashlib.sha256(f"{CHALLENGE}|{KEY}".encode()).hexdigest()
        if login.get("auth") != f"{digest}-{KEY[-5:]}":
            connection.sendall(b"success=0|error=User authentication failed\n")
            return
        connection.sendall(b"success=1|session_id=5\n")
        requests: list[dict[str, str]] = []
        while "start_session" not in (asked := _parsed(lines.readline())):
            if not asked:
                return
            requests.append(asked)
        peer = Peer(connection, login, requests)
        self.peers.append(peer)
        self.sessions[min(len(self.peers), len(self.sessions)) - 1](peer)


def _parsed(line: bytes) -> dict[str, str]:
    pairs = (part.partition("=") for part in line.decode().strip().split("|") if part)
    return {name: value for name, _, value in pairs}
