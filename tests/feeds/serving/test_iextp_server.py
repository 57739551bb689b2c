"""Serve a recorded day of IEX by IEX-TP: every message once and unchanged, and again if a client has lost it."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import msgspec
import pytest
from blackbox_feeds.iex.iextp_server import IexTpOptions, IexTpServer
from blackbox_feeds.iex.live import IexClient

from blackbox import Recording
from blackbox.errors import ConfigError
from blackbox.feed.endpoint import _free_ports
from blackbox.feed.venue_url import Address
from blackbox.replay.play.to_venue import VenuePlayer
from blackbox.replay.replay import Replay
from tests.feeds import venue_lines
from tests.feeds.build import DEEP, TOPS, iex
from tests.feeds.serving.datagram_client import Client, Packet, blocks, numbered
from tests.feeds.serving.test_moldudp64_server import free_port, play
from tests.journals import Day, Put, Row, feed_of

NOON = 1_577_725_200_000_000_000
SESSION = 20261120


def segment(data: bytes) -> Packet:
    """Read a segment; its session is the stream, and the stream offset."""
    version, _, protocol, channel, session, size, count, offset, first, _ = struct.unpack_from("<BBHIIHHqqq", data)
    assert (version, size) == (1, len(data) - 40)
    return Packet((protocol, channel, session, offset), first, count, blocks(data[40:], count, "<H"), data)


def recorded(path: Path, messages: list[bytes], schema: str) -> Recording:
    day = Day(path / "2026-11-20", msgspec.structs.replace(feed_of(), schema=schema), date="2026-11-20")
    rows = [Row(b"A.%c" % message[0], message, NOON + 1_000 * at) for at, message in enumerate(messages)]
    day.put(0, *(Put(tuple(rows[at : at + 500]), at) for at in range(0, len(rows), 500)))
    return Recording.open(day.path)


def messages_of(count: int, kinds: str) -> list[bytes]:
    choice = random.Random(count)
    return [iex(choice.choice(kinds), ns=NOON + 1_000 * at) for at in range(count)]


@pytest.mark.parametrize(("protocol", "schema", "kinds"), [(DEEP, "iex_deep10", "85TDS"), (TOPS, "iex_tops16", "QTH")])
def test_every_message_is_sent_once_and_requested_gaps_again(
    tmp_path: Path, protocol: int, schema: str, kinds: str
) -> None:
    messages = messages_of(1_000, kinds)
    recording = recorded(tmp_path, messages, schema)
    address = Address("127.0.0.1", free_port())
    options = IexTpOptions(rerequest=str(address), mtu=600, drop=0.2, linger=0.0, channel=3)
    with Client(segment) as client, Client(segment) as other, Client(segment) as asking:
        options = msgspec.structs.replace(options, b=str(other.address))
        with IexTpServer(client.address, [recording], options) as server:
            Replay(recording, order="sent").run(VenuePlayer(server, [recording]))
            server.end(at_once=False)
            client.receive_until(lambda packet: packet.first == 1_001)
            other.receive_until(lambda packet: packet.first == 1_001)
            packets = client.packets + other.packets
            starts = [0]
            for message in messages:
                starts.append(starts[-1] + 2 + len(message))
            assert {packet.session for packet in packets} == {
                (protocol, 3, SESSION, starts[packet.first - 1]) for packet in packets
            }
            assert max(len(packet.data) for packet in packets) <= 600
            got = numbered(packets)
            assert numbered(client.packets).keys() != numbered(other.packets).keys()  # each loses other packets
            missing = [at for at in range(1, 1_001) if at not in numbered(client.packets)]
            firsts = [at for at in missing if at - 1 not in missing][:20]
            lasts = [at for at in missing if at + 1 not in missing][:20]
            ranges = list(zip(firsts, lasts, strict=True))
            head = struct.pack("<BBHIII", 1, 1, protocol, 3, SESSION, len(ranges))
            asking.ask(address, head + b"".join(struct.pack("<qq", *each) for each in ranges))
            asked = [at for first, last in ranges for at in range(first, last + 1)]
            while len(numbered(asking.packets)) < len(asked):
                asking.receive()
            assert numbered(asking.packets) == {at: messages[at - 1] for at in asked}
            asking.ask(address, struct.pack("<BBHIII", 1, 1, protocol, 3, SESSION, 0))
            assert (asking.receive().many, asking.packets[-1].first) == (0, 1_001)
            asking.ask(address, struct.pack("<BBHIII", 1, 1, protocol, 4, SESSION, 0))
            asking.ask(address, head[:-4])
            asking.ask(address, struct.pack("<BBHIII", 1, 1, protocol, 3, SESSION, 0))
            asking.receive()
            assert server.counts()["refused"] == 2
    for at, message in got.items():
        assert message == messages[at - 1]


def test_our_client_gets_every_message_once_from_lines_with_faults(tmp_path: Path) -> None:
    a, b, requests = (Address("127.0.0.1", port) for port in _free_ports(3))
    messages = messages_of(4_000, "85TDS")
    recording = recorded(tmp_path, messages, "iex_deep10")
    options = IexTpOptions(
        b=str(b), rerequest=str(requests), mtu=500, linger=0.0, drop=0.05, duplicate=0.05, reorder=0.05
    )
    source = IexClient(f"//{a}?b={b}&gapfill={requests}&hold=60&stale=60")
    with venue_lines.Client(source) as client, IexTpServer(a, [recording], options) as server:
        play(server, recording)
        client.wait_for(len(messages))
    assert client.found == messages
    found = source.statistics()
    assert (found.missing, found.malformed, found.foreign) == (0, 0, 0)
    assert found.duplicates > len(messages) / 2


def test_a_wrong_option_is_one_error(tmp_path: Path) -> None:
    recording = recorded(tmp_path, messages_of(1, "Q"), "iex_tops16")
    for options in (IexTpOptions(channel=-1), IexTpOptions(session=1 << 32)):
        with pytest.raises(ConfigError, match=r"(channel|session) was .*, expected 0 to 4294967295"):
            IexTpServer(Address("127.0.0.1", 5), [recording], options)
