"""Serve a recorded day by MoldUDP64: every message once and unchanged, and again if a client has lost it."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blackbox_feeds.itch50.moldudp64_server import MoldOptions, MoldUdp64Server
from blackbox_feeds.serving import datagram_server

from blackbox import Recording
from blackbox.errors import ConfigError, EndpointError
from blackbox.feed.endpoint import _free_ports
from blackbox.feed.venue_url import Address
from blackbox.replay.controls import Controls
from blackbox.replay.play.to_venue import VenuePlayer, order_for_venue
from blackbox.replay.play.venue_server import VenueServer
from blackbox.replay.replay import Replay
from blackbox.testing import wait_until
from tests.feeds.build import ITCH_LENGTHS, itch
from tests.feeds.serving.datagram_client import Client, Packet, numbered
from tests.journals import Day, Put, Row, feed_of

NOON = 1_577_725_200_000_000_000
SESSION = b"2026112001"
END = 0xFFFF


def messages_of(count: int) -> list[bytes]:
    choice = random.Random(count)
    kinds = list(ITCH_LENGTHS)
    return [itch(choice.choice(kinds), locate=at % 100, ns=at, fill=b"%c" % (at % 251)) for at in range(count)]


def recorded(path: Path, messages: list[bytes]) -> Recording:
    """Return a day with these messages, one each microsecond."""
    day = Day(path / "2026-11-20", msgspec.structs.replace(feed_of(), schema="itch50"), date="2026-11-20")
    rows = [Row(b"A.%c" % message[0], message, NOON + 1_000 * at) for at, message in enumerate(messages)]
    day.put(0, *(Put(tuple(rows[at : at + 500]), at) for at in range(0, len(rows), 500)))
    return Recording.open(day.path)


def serve(client: Client, recording: Recording, controls: Controls | None = None, **options: Any) -> MoldUdp64Server:
    """Serve a whole recording; the server is closed."""
    server = MoldUdp64Server(client.address, [recording], MoldOptions(linger=0.0, **options))
    with server:
        play(server, recording, controls)
        server.end(at_once=False)
    return server


def play(server: VenueServer, recording: Recording, controls: Controls | None = None) -> None:
    Replay(recording, order=order_for_venue([recording]), controls=controls).run(VenuePlayer(server, [recording]))


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as made:
        yield made


def is_end(packet: Packet) -> bool:
    return packet.many == END


def test_both_groups_get_every_message_once_in_full_packets(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datagram_server, "HEARTBEAT_S", 600.0)  # none between the packets, and one end
    messages = messages_of(2_000)
    with Client() as other:
        server = serve(client, recorded(tmp_path, messages), b=str(other.address), mtu=1_000)
        packets = client.receive_until(is_end)
        assert [packet.data for packet in other.receive_until(is_end)] == [packet.data for packet in packets]
    assert (packets[0].first, packets[0].many, packets[-1].first) == (1, 0, 2_001)  # a heartbeat, and the end
    data = packets[1:-1]
    assert {packet.session for packet in packets} == {SESSION}
    sequence = 1
    for packet in data:
        assert packet.first == sequence
        assert 0 < len(packet.data) <= 1_000
        sequence += packet.many
    assert [message for packet in data for message in packet.messages] == messages
    fits = [len(a.data) + 2 + len(b.messages[0]) > 1_000 for a, b in zip(data, data[1:], strict=False)]
    assert fits.count(False) <= 4  # a batch of the replay ends there
    counts = server.counts()
    assert (counts["packets"], counts["messages"]) == (2 * len(packets), 2_000)
    assert (counts["requests"], counts["answers"], counts["refused"]) == (0, 0, 0)


def test_a_client_on_a_bad_path_gets_everything_by_requests(tmp_path: Path, client: Client) -> None:
    """Packets are lost, doubled and swapped; what is missing in the end is requested, range by range."""
    messages = messages_of(3_000)
    recording = recorded(tmp_path, messages)
    with Client() as asking:
        address = Address("127.0.0.1", free_port())
        options = MoldOptions(
            rerequest=str(address), mtu=500, drop=0.3, duplicate=0.2, reorder=0.2, seed=7, linger=0.0, keep_mib=1
        )
        with MoldUdp64Server(client.address, [recording], options) as server:
            play(server, recording)
            server.end(at_once=True)
            packets = client.receive_until(is_end)
            order = [packet.first for packet in packets if packet.messages]
            assert order != sorted(order)
            assert len(order) > len(set(order))
            got = numbered(packets)
            assert 100 < len(got) < 3_000
            while missing := [sequence for sequence in range(1, 3_001) if sequence not in got]:
                count = next((n for n in range(len(missing)) if missing[n] != missing[0] + n), len(missing))
                asking.ask(address, struct.pack(">10sQH", SESSION, missing[0], count))
                while missing[0] not in got:  # an answer may have several packets
                    got |= numbered([asking.receive()])
            counts = server.counts()
    assert [got[sequence] for sequence in range(1, 3_001)] == messages
    assert min(counts[name] for name in ("dropped", "duplicated", "reordered", "answers")) > 0


def test_requests_that_break_a_rule_or_ask_for_unknown_messages_are_refused(tmp_path: Path, client: Client) -> None:
    messages = messages_of(10)
    recording = recorded(tmp_path, messages)
    with Client() as asking:
        address = Address("127.0.0.1", free_port())
        options = MoldOptions(rerequest=str(address), linger=0.0)
        with MoldUdp64Server(client.address, [recording], options) as server:
            play(server, recording)
            for session, first, count in ((b"x" * 10, 1, 1), (SESSION, 0, 1), (SESSION, 11, 1), (SESSION, 1, 0)):
                asking.ask(address, struct.pack(">10sQH", session, first, count))
            asking.ask(address, b"short")
            asking.ask(address, struct.pack(">10sQH", SESSION, 9, 65_534))
            answer = asking.receive()  # requests are answered in order
            assert (answer.first, answer.messages) == (9, tuple(messages[8:]))
            names = ("requests", "answers", "refused")
            wait_until(lambda: [server.counts()[name] for name in names] == [6, 1, 5])  # counted once sent


def test_sequences_go_on_after_a_seek_back_and_idle_time_has_heartbeats(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datagram_server, "HEARTBEAT_S", 0.1)
    messages = messages_of(6)
    recording = recorded(tmp_path, messages)
    controls = Controls()
    with MoldUdp64Server(client.address, [recording], MoldOptions(linger=0.0)) as server:
        play(server, recording, controls)
        while not (packet := client.receive()).many:
            pass
        assert packet.first == 1
        assert client.receive().many == 0  # the next heartbeat
        play(server, recording)
        while not (packet := client.receive()).many:
            pass
        assert (packet.first, packet.messages) == (7, tuple(messages))


def test_only_the_newest_messages_are_kept(tmp_path: Path, client: Client) -> None:
    messages = [itch("A", ns=at) for at in range(5_000)]
    recording = recorded(tmp_path, messages)
    with Client() as asking:
        address = Address("127.0.0.1", free_port())
        options = MoldOptions(rerequest=str(address), linger=0.0, keep_mib=1, store=str(tmp_path))
        with MoldUdp64Server(client.address, [recording], options) as server:
            for _ in range(12):
                play(server, recording)
            assert list(tmp_path.iterdir()) == [recording.path]  # its files have no names
            first = server.stream.first
            assert 1 < first < 50_000
            for sequence in (1, first - 1, first):
                asking.ask(address, struct.pack(">10sQH", SESSION, sequence, 1))
            packet = asking.receive()
            assert (packet.first, packet.messages) == (first, (messages[(first - 1) % 5_000],))


def free_port() -> int:
    (port,) = _free_ports(1)
    return port


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"session": "short"}, ConfigError, "session was 'short', expected 10 printable ASCII characters"),
        ({"mtu": 22}, ConfigError, "mtu was 22, expected 23 to 65507"),
        ({"linger": -1.0}, ConfigError, "linger was -1.0, expected 0 or more seconds"),
        ({"linger": math.nan}, ConfigError, "linger was nan, expected 0 or more seconds"),
        ({"drop": 1.5}, ConfigError, "drop was 1.5, expected a fraction from 0 to 1"),
        ({"ttl": 300}, ConfigError, "ttl was 300, expected 0 to 255"),
        ({"interface": "127.0.0.1"}, ConfigError, "interface was '127.0.0.1' with the unicast address 127.0.0.1"),
        ({"b": "nowhere.invalid:5"}, EndpointError, "host of nowhere.invalid:5 is not known as an IPv4 address"),
        ({"b": "127.0.0.1:0"}, ConfigError, "expected a port from 1 to 65535"),
        ({"rerequest": "127.0.0.1"}, ConfigError, "rerequest was '127.0.0.1', expected HOST:PORT"),
        ({"store": "/nowhere"}, ConfigError, "store was '/nowhere', which is not a directory"),
        ({"keep_mib": 0}, ConfigError, "keep_mib was 0, expected 1 or more"),
    ],
)
def test_a_wrong_option_is_one_error(
    tmp_path: Path, client: Client, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    recording = recorded(tmp_path, messages_of(1))
    with pytest.raises(error, match=text), MoldUdp64Server(client.address, [recording], MoldOptions(**options)):
        pass


@pytest.mark.parametrize("interface", ["eth0", "192.0.2.1"])
def test_an_interface_of_another_machine_is_one_error(tmp_path: Path, interface: str) -> None:
    options = MoldOptions(interface=interface)
    with (
        pytest.raises(EndpointError, match=f"interface was '{interface}', expected an IPv4 address of this machine"),
        MoldUdp64Server(Address("239.1.1.1", 5), [recorded(tmp_path, messages_of(1))], options),
    ):
        pass


def test_an_address_in_use_is_one_error(tmp_path: Path, client: Client) -> None:
    recording = recorded(tmp_path, messages_of(1))
    options = MoldOptions(rerequest=str(client.address))
    with (
        pytest.raises(EndpointError, match=f"address of rerequest {client.address} is in use"),
        MoldUdp64Server(client.address, [recording], options),
    ):
        pass


def test_a_message_longer_than_a_packet_is_one_error(tmp_path: Path, client: Client) -> None:
    recording = recorded(tmp_path, [b"S" * 65_500])
    with pytest.raises(ConfigError, match="a packet had 65522 bytes, expected at most 65507"):
        serve(client, recording)
