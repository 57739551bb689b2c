"""`blackbox replay --serve`: a day in the venue's own protocol, until its end, a command or a signal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from blackbox.cli.ui.status import Status
from blackbox.feed.endpoint import _free_ports
from blackbox.feed.venue_url import Address
from blackbox.replay.control_socket import Pause, Seek, Stop, ask
from tests.cli.commands import Command, assert_one_line, beside, invoke, succeed
from tests.feeds.serving.datagram_client import Client
from tests.feeds.serving.test_moldudp64_server import NOON, is_end, messages_of, recorded
from tests.feeds.serving.test_soupbintcp_server import Client as SoupClient

MESSAGES = messages_of(200)


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as made:
        yield made


def test_a_day_is_served_and_counted(tmp_path: Path, client: Client) -> None:
    day = recorded(tmp_path, MESSAGES).path
    ended = succeed("replay", day, "--serve", f"moldudp64://{client.address}?linger=0")
    packets = client.receive_until(is_end)
    assert [message for packet in packets for message in packet.messages] == MESSAGES
    assert "replayed 200 messages" in ended.out
    assert f"packets {len(packets)}, messages 200, heartbeats " in ended.out
    symbols = invoke("replay", day, "--symbol", "B", "--json", "--serve", f"moldudp64://{client.address}?linger=0")
    found = json.loads(symbols.out)
    assert (found["replay"]["messages"], found["server"]["messages"]) == (0, 0)


def test_ctrl_c_ends_the_session(tmp_path: Path, client: Client) -> None:
    day = recorded(tmp_path, MESSAGES).path
    with Command("replay", day, "--speed", "1e-6", "--serve", f"moldudp64://{client.address}") as command:
        client.receive_until(lambda packet: packet.messages == (MESSAGES[0],))
        ended = command.interrupt()
    assert ended.status == Status.INTERRUPTED
    assert client.receive_until(is_end)[-1].first == 2
    assert "replayed 1 message" in ended.out


def test_the_control_socket_pauses_moves_and_stops_it(tmp_path: Path, client: Client) -> None:
    day = recorded(tmp_path, MESSAGES).path
    endpoint = f"ipc://{tmp_path / 'control'}"

    def control() -> None:
        client.receive_until(lambda packet: packet.messages == (MESSAGES[0],))
        ask(endpoint, Pause())
        ask(endpoint, Seek(NOON + 1_000 * 150))
        ask(endpoint, Stop())

    with beside(control):
        succeed(
            "replay", day, "--speed", "1e-6", "--control", endpoint, "--serve", f"moldudp64://{client.address}?linger=0"
        )
    assert client.receive_until(is_end)[-1].first == 2


def test_clients_of_soupbintcp_are_waited_for(tmp_path: Path) -> None:
    day = recorded(tmp_path, MESSAGES).path
    address = Address("127.0.0.1", *_free_ports(1))
    url = f"soupbintcp://{address}?linger=0"
    ended = invoke("replay", day, "--serve", url, "--timeout", "0")
    assert_one_line(ended, f"0 clients were logged in at {address} after 0 s, expected 1")
    with Command("replay", day, "--serve", url, "--json", "--timeout", "120") as command:
        command.read_error(f"serving {url}")
        client = SoupClient(address)
        client.log_in()
        assert client.rest() == [*((b"S", message) for message in MESSAGES), (b"Z", b"")]
        client.close()
        ended = command.end()
    assert ended.status == Status.OK, ended.errors
    assert json.loads(ended.out)["server"] == {"messages": 200, "clients": 1}
