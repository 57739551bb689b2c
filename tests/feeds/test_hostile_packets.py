"""Hostile packets of MoldUDP64, IEX-TP and SoupBinTCP: the messages and counts of plain models, and no crash."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby, islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy
import pytest
from blackbox_feeds.itch50 import live_soupbintcp
from blackbox_feeds.itch50.soupbintcp import DEBUG, SEQUENCED, SERVER_HEARTBEAT, UNSEQUENCED, Accepted, packet
from blackbox_feeds.live import datagram_source
from blackbox_feeds.live.gap_holder import Limits
from blackbox_feeds.live.receiver import SLOT_BYTES, TRUNCATED

from blackbox.feed.live_source import LiveSource
from tests.feeds.build import DEEP, IEX_LENGTHS, ITCH_LENGTHS, ITCH_STOCK_AT, iex_tp, mold, payloads_and_gaps_of
from tests.feeds.hostile import Enemy
from tests.feeds.test_gap_holder import Model as Holder
from tests.feeds.test_gap_holder import Packet
from tests.feeds.test_live_datagrams import DEAD, source_of
from tests.feeds.venue_lines import Protocol

HELD = 100
LIMITS = Limits(50_000_000)
MS = 1_000_000
COUNTS = ("packets", "malformed", "foreign", "duplicates", "recovered", "gaps", "missing", "messages", "reconnects")


class Layout(NamedTuple):
    """Lengths of messages, and offsets of their symbols, by type."""

    lengths: dict[str, int]
    symbols: dict[str, int]


ITCH = Layout(ITCH_LENGTHS, ITCH_STOCK_AT)
IEX_DEEP = Layout({kind: size for kind, size in IEX_LENGTHS.items() if kind != "Q"}, dict.fromkeys("DHIOPTXBAE85", 10))


class Outcome(NamedTuple):
    """The result of a client or a model."""

    found: list[bytes | int]
    """Messages, and numbers of missing ones at their positions."""
    counts: dict[str, int]


def outcome_of(source: LiveSource) -> Outcome:
    """Run a client to its end."""
    found = together(payloads_and_gaps_of(source))
    now = source.statistics()
    return Outcome(found, {name: getattr(now, name) for name in COUNTS})


def together(found: Iterable[bytes | int]) -> list[bytes | int]:
    """Return the same with one number for each place at which messages are missing."""
    out: list[bytes | int] = []
    for is_gap, run in groupby(found, lambda each: isinstance(each, int)):
        alike = list(run)
        out += [sum(each for each in alike if isinstance(each, int))] if is_gap else alike
    return out


def kept(message: bytes, layout: Layout) -> list[bytes]:
    """Return a message as it is delivered: without what a newer version adds; none of an unknown type or symbol."""
    kind = chr(message[0]) if message else ""
    symbol = message[layout.symbols[kind] :][:8].rstrip(b"\0 ") if kind in layout.symbols else b""
    is_known = kind in layout.lengths and symbol[:1] != b"#" and all(0x20 <= letter <= 0x7E for letter in symbol)
    return [message[: layout.lengths[kind]]] if is_known else []


class Datagrams(Enemy):
    """Makes the datagrams of a session."""

    def __init__(self, protocol: Protocol, seed: int) -> None:
        super().__init__(seed)
        self.protocol = protocol
        self.next = 1
        self.late: list[bytes] = []

    def new(self) -> bytes:
        while True:
            if self.late and self.random.random() < 0.1:
                return self.late.pop()
            many, again = self.random.randint(0, 5), min(self.next - 1, self.random.choice([0] * 20 + [1, 3]))
            first = self.next - again
            datagram = self.protocol.datagram(first, [self.protocol.message(first + k) for k in range(again + many)])
            self.next += many
            fate = self.random.random()
            if fate < 0.03:
                self.late.append(datagram)
            elif fate > 0.04:  # else it is lost
                return datagram

    def hostile(self) -> bytes:
        protocol, first = self.protocol, self.next
        new = [protocol.message(first + k) for k in range(self.random.randint(1, 5))]
        kind = self.random.randrange(10)
        if kind == 0:
            return protocol.datagram(first, new, session=self.random.randint(2, 1_000))
        if kind == 1:
            return protocol.datagram(self.random.choice([0, 1 << 62, (1 << 63) - 1]), new)
        if kind == 2:
            return protocol.datagram(first + (1 << 40) + 1_000 * self.random.randrange(1 << 20), new)
        if kind == 3:  # a message that is too short for its type
            return protocol.datagram(first, [*new, new[0][:9]])
        if kind == 4:
            return bytes(SLOT_BYTES + 1)
        if kind == 5:  # the end of another session; another protocol
            return mold(first, [], b"another   ", 0xFFFF) if protocol.is_mold else iex_tp(first, new, 0, 0x8003, 1)
        # Not in the low bytes of a sequence: a datagram a little ahead is believed. Nor in the send time of IEX.
        return self.damaged([*range(15), *range(18, 22)] if protocol.is_mold else [*range(24), *range(27, 32), 40, 41])


def read(protocol: Protocol, data: bytes) -> str | tuple[int, list[bytes]]:
    """Return the first sequence and the messages of a datagram; or why it is skipped. From the specifications."""
    head, size_of = (20, ">H") if protocol.is_mold else (40, "<H")
    lengths = ITCH_LENGTHS if protocol.is_mold else IEX_DEEP.lengths
    if not head <= len(data) <= SLOT_BYTES:
        return "malformed"
    if protocol.is_mold:
        session, first, count = struct.unpack_from(">10sQH", data)
        is_foreign, is_known = session != b"0000000001", True
        count = 0 if count == 0xFFFF else count
    else:
        version, _, kind, channel, number, size, count, _, first, _ = struct.unpack_from("<BBHIIHHqqq", data)
        is_foreign, is_known = (channel, number) != (1, 1), kind == DEEP
        if version != 1 or head + size != len(data):
            return "malformed"
    if not 1 <= first < 1 << 62:
        return "malformed"
    if not is_known:
        return "foreign"
    messages: list[bytes] = []
    for _ in range(count):
        if head + 2 > len(data):
            return "malformed"
        (size,) = struct.unpack_from(size_of, data, head)
        messages.append(data[head + 2 : head + 2 + size])
        head += 2 + size
        if head > len(data) or (size and size < lengths.get(chr(messages[-1][0]), 0)):
            return "malformed"
    if not protocol.is_mold and head != len(data):
        return "malformed"
    return "foreign" if is_foreign else (first, messages)


class DatagramModel(Holder):
    """The rules of a client of datagrams, one datagram at a time."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(1, HELD, LIMITS)
        self.protocol = protocol
        self.layout = ITCH if protocol.is_mold else IEX_DEEP
        self.found: list[bytes | int] = []
        self.counts = dict.fromkeys(COUNTS, 0)
        self.after = 1
        """Sequence after the last message found, or missing."""

    def release(self, packet: Packet) -> None:
        first = max(self.expected, packet.first)
        if first > self.after:
            self.found.append(first - self.after)
            self.counts["gaps"] += 1
            self.counts["missing"] += first - self.after
        for message in packet.messages[first - packet.first :]:
            self.found += kept(message, self.layout)
        self.after = packet.end
        super().release(packet)
        self.released.clear()

    def receive(self, batch: list[bytes], now: int, *, is_line: bool) -> None:
        self.check_time(now)
        for data in batch:
            self.counts["packets"] += 1
            content = read(self.protocol, data)
            if isinstance(content, str):
                self.counts[content] += 1
            else:
                first, messages = content
                self.take(Packet(first, first + len(messages), now, is_line, messages))
        self.check_time(now)

    def outcome(self) -> Outcome:
        self.check_time(1 << 62)
        self.counts["malformed"] += self.implausible
        self.counts |= {"duplicates": self.duplicates, "recovered": self.recovered}
        self.counts["messages"] = sum(isinstance(each, bytes) for each in self.found)
        return Outcome(together(self.found), self.counts)


def datagrams(protocol: Protocol, count: int, patch: pytest.MonkeyPatch) -> tuple[Outcome, Outcome]:
    """Give a client the datagrams in batches, at times of our own, instead of from sockets."""
    enemy, model, now = Datagrams(protocol, count), DatagramModel(protocol), 0
    options: dict[str, Any] = {protocol.server_option: DEAD, "backfill": 0, "held": HELD, "hold": LIMITS.hold_ns / 1e9}
    source = source_of(protocol, 1, **options)
    sockets, receiver = source._sockets, source._sockets.receiver
    made = (datagram for datagram, _ in enemy.packets(count - 1))
    waiting: list[bytes] = []

    def wait(_stop_fd: int, _timeout_s: float) -> list[tuple[int, bool]]:
        nonlocal now
        now += enemy.random.choice([0, MS // 10, MS, 20 * MS])
        # The first datagram begins the session.
        is_first = not waiting
        waiting[:] = [protocol.datagram(1, [])] if is_first else islice(made, enemy.random.randint(1, 30))
        if not waiting:
            source.stop()
            return []
        is_line = is_first or enemy.random.random() < 0.9
        model.receive(waiting, now, is_line=is_line)
        return [(0, is_line)]

    def receive(fd: int) -> int:
        if fd < 0:  # to compile
            return 0
        for row, datagram in enumerate(waiting):
            start = row * receiver.slot_bytes
            receiver.lengths[row] = len(datagram) if len(datagram) <= receiver.slot_bytes else TRUNCATED
            part = numpy.frombuffer(datagram[: receiver.slot_bytes], numpy.uint8)
            receiver.data[start : start + len(part)] = part
        receiver.packets += len(waiting)
        return len(waiting)

    for name, function in {"wait": wait, "open": lambda _: None, "request": lambda _: None}.items():
        patch.setattr(sockets, name, function)
    patch.setattr(receiver, "receive", receive)
    patch.setattr(datagram_source, "time", SimpleNamespace(monotonic_ns=lambda: now))
    ours = outcome_of(source)
    return ours, model.outcome()


class SoupPackets(Enemy):
    """Makes the packets of a SoupBinTCP server after the login."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.protocol, self.sent = Protocol("moldudp64"), 0

    def new(self) -> bytes:
        kind = self.random.randrange(20)
        if kind < 3:
            return (packet(SERVER_HEARTBEAT), packet(DEBUG, b"hello"), packet(UNSEQUENCED, b"other"))[kind]
        self.sent += 1
        return packet(SEQUENCED, self.protocol.message(self.sent % 10_000))

    def hostile(self) -> bytes:
        kind = self.random.randrange(8)
        if kind < 4:  # messages that are too short, empty, unknown, or longer
            message = self.protocol.message(self.sent)
            return packet(SEQUENCED, (message[:9], b"", b"?" + message, message + b"more")[kind])
        if kind == 4:
            return packet(self.random.choice([b"?", b"A", b"R"]), self.random.randbytes(self.random.randrange(40)))
        if kind == 5:
            return Accepted("S1", 1).pack()
        return self.damaged(range(3))


class SoupModel:
    """The rules of a SoupBinTCP client, one connection after the other."""

    def __init__(self) -> None:
        self.expected, self.session = 1, ""
        self.found: list[bytes | int] = []
        self.counts = dict.fromkeys(COUNTS, 0)

    def miss(self, count: int) -> None:
        self.found += [count] if count else []
        self.counts["gaps"] += count > 0
        self.counts["missing"] += count
        self.expected += count

    def connect(self, data: bytes) -> None:
        """Read what the server sends on a connection, up to a fault."""
        is_logged_in = False
        while len(data) >= 2 and len(data) >= 2 + (size := int.from_bytes(data[:2], "big")):
            kind, payload, data = data[2:3][:size], data[3 : 2 + size], data[2 + size :]
            self.counts["packets"] += 1
            if kind == b"S" and is_logged_in:
                if payload and len(payload) < ITCH_LENGTHS.get(chr(payload[0]), 0):
                    self.counts["malformed"] += 1
                    self.miss(1)
                else:
                    self.found += kept(payload, ITCH)
                    self.expected += 1
            elif kind == b"A" and not is_logged_in and self.accepts(payload):
                is_logged_in = True
            elif kind == b"Z":
                return
            elif kind == b"U":
                self.counts["foreign"] += 1
            elif kind not in (b"H", b"+"):
                self.counts["malformed"] += 1
                return

    def accepts(self, payload: bytes) -> bool:
        session, digits = payload[:10].decode("latin-1").strip(" "), payload[10:].strip(b" ")
        if len(payload) != 30 or not payload[:10].isascii() or not digits.isdigit():
            return False
        if (self.session and session != self.session) or not self.expected <= int(digits) <= 1 << 62:
            return False
        self.session = session
        self.miss(int(digits) - self.expected)
        return True

    def outcome(self) -> Outcome:
        self.counts["messages"] = sum(isinstance(each, bytes) for each in self.found)
        return Outcome(together(self.found), self.counts)


def soupbintcp(count: int, patch: pytest.MonkeyPatch) -> tuple[Outcome, Outcome]:
    """Give clients connections to the end of their packets. A packet may end a client: then another one follows."""
    enemy = SoupPackets(count)
    packets = (each for each, _ in enemy.packets(count))
    both: tuple[list[Outcome], list[Outcome]] = ([], [])
    patch.setattr(live_soupbintcp, "readable", lambda *_, timeout: [])  # connects again at once
    patch.setattr(live_soupbintcp, "_READ_BYTES", 997)
    while (first := next(packets, None)) is not None:
        for outcomes, outcome in zip(both, _of_one_client(chain([first], packets), enemy, patch), strict=True):
            outcomes.append(outcome)
    ours, model = (
        Outcome(
            [each for outcome in outcomes for each in outcome.found],
            {name: sum(outcome.counts[name] for outcome in outcomes) for name in COUNTS},
        )
        for outcomes in both
    )
    return ours, model


def _of_one_client(packets: Iterator[bytes], enemy: SoupPackets, patch: pytest.MonkeyPatch) -> tuple[Outcome, Outcome]:
    model = SoupModel()
    peers: list[socket.socket] = []
    source = live_soupbintcp.SoupBinTcpClient("//bob@127.0.0.1:1", "2019-12-30")

    def connect() -> socket.socket | None:
        chance = enemy.random
        data = b"".join(islice(packets, 15))
        for peer in peers:
            peer.close()
        if not data:
            source.stop()
            return None
        login = Accepted("S1", model.expected + chance.choice([0, 0, 0, 0, 5])).pack()
        if model.session and chance.random() < 0.1:
            early = packet(SEQUENCED, enemy.protocol.message(1))
            login = chance.choice([early, Accepted("S2", model.expected).pack(), Accepted("S1", 0).pack()])
        data = login + data[: max(0, len(data) - chance.randrange(30))]
        model.counts["reconnects"] += model.counts["packets"] > 0
        model.connect(data)
        ours, theirs = socket.socketpair()
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        peers[:] = [theirs]
        return ours

    patch.setattr(source, "_connect", connect)
    ours = outcome_of(source)
    for peer in peers:
        peer.close()
    return ours, model.outcome()


VENUES: dict[str, Callable[[int, pytest.MonkeyPatch], tuple[Outcome, Outcome]]] = {
    "moldudp64": lambda count, patch: datagrams(Protocol("moldudp64"), count, patch),
    "iextp": lambda count, patch: datagrams(Protocol("iextp"), count, patch),
    "soupbintcp": soupbintcp,
}


@pytest.mark.parametrize("count", [5_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("venue", VENUES)
def test_hostile_packets_are_counted_as_by_a_plain_model(
    venue: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, model = VENUES[venue](count, monkeypatch)
    assert ours.counts == model.counts
    assert ours.found == model.found
    assert count / 5 < ours.counts["messages"]
    never = {"reconnects"} if venue != "soupbintcp" else {"duplicates", "recovered"}
    assert {name for name, number in ours.counts.items() if not number} == never
