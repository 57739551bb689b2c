"""Real files of ITCH and IEX, imported and served: the packets have the messages of the capture."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import dpkt
import pytest
from blackbox_feeds.iex.iextp_server import IexTpOptions, IexTpServer
from blackbox_feeds.itch50.moldudp64_server import MoldOptions, MoldUdp64Server

from blackbox import Recording
from blackbox.feed.venue_url import Address
from blackbox.replay.play.venue_server import VenueServer
from tests.cli.commands import invoke
from tests.feeds.serving.datagram_client import Client, blocks, numbered
from tests.feeds.serving.test_iextp_server import segment
from tests.feeds.serving.test_moldudp64_server import free_port, play


def imported(tmp_path: Path, schema: str, *words: object) -> Recording:
    feed = tmp_path / "venue.toml"
    for line in (
        ["feed", "new", feed, "--schema", schema, "--slices", "1"],
        ["import", *words, "--feed", feed, "--out", tmp_path],
    ):
        ended = invoke(*line)
        assert ended.status in (0, 4), ended.errors  # 4: the capture's last record is cut off
    (day,) = tmp_path.glob("*/*/manifest.json")
    return Recording.open(day.parent)


def check(
    client: Client, asking: Client, server: VenueServer, recording: Recording, request: Callable[[int, int], bytes]
) -> list[bytes]:
    """Serve a recording; request what was lost, because a buffer overflowed. Return all messages."""
    with server:
        play(server, recording)
        many = server.counts()["messages"]
        server.end(at_once=True)
        client.socket.settimeout(0.2)
        try:
            while True:
                client.receive()
        except TimeoutError:
            got = numbered(client.packets)
        assert got
        for sequence in range(1, many + 1):
            while sequence not in got:
                asking.socket.sendto(request(sequence, min(64, many + 1 - sequence)), server_address(server))
                got |= numbered([asking.receive()])
    return [got[sequence] for sequence in range(1, many + 1)]


def server_address(server: VenueServer) -> tuple[str, int]:
    address = getattr(server, "_rerequest")  # noqa: B009 - of both servers
    return address.host, address.port


def test_a_file_of_itch_is_served_unchanged(tmp_path: Path, shared_data: Path) -> None:
    file = shared_data / "itch50/runk_locate-13-10k.bin"
    recording = imported(tmp_path, "itch50", f"itch50:{file}", "--date", "2020-01-30")
    options = MoldOptions(rerequest=str(Address("127.0.0.1", free_port())), linger=0.0)
    with Client() as client, Client() as asking:
        server = MoldUdp64Server(client.address, [recording], options)
        found = check(
            client, asking, server, recording, lambda first, n: struct.pack(">10sQH", b"2020013001", first, n)
        )
    assert found == list(blocks(file.read_bytes(), 10_000, ">H"))


@pytest.mark.long
def test_a_capture_of_iex_is_served_unchanged(tmp_path: Path, shared_data: Path) -> None:
    file = shared_data / "iex/goiex_TOPS16.pcapng.gz"
    expected: dict[int, bytes] = {}
    with gzip.open(file) as opened:
        for _, data in dpkt.pcap.UniversalReader(opened):
            packet = segment(bytes(dpkt.ethernet.Ethernet(data).data.data.data))
            for place, message in enumerate(packet.messages):
                expected.setdefault(packet.first + place, message)
    recording = imported(tmp_path, "iex_tops16", f"iex:{file}")
    options = IexTpOptions(rerequest=str(Address("127.0.0.1", free_port())), linger=0.0)
    head = struct.pack("<BBHIII", 1, 1, 0x8003, 1, int(f"{recording.date:%Y%m%d}"), 1)
    with Client(segment) as client, Client(segment) as asking:
        server = IexTpServer(client.address, [recording], options)
        found = check(
            client, asking, server, recording, lambda first, n: head + struct.pack("<qq", first, first + n - 1)
        )
    assert found == [expected[sequence] for sequence in sorted(expected)]
