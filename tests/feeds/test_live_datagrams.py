"""Clients of MoldUDP64 and IEX-TP on bad networks: each message once and in order, or in a gap with its exact count."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest
from blackbox_feeds.iex.live import IexClient
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.itch50.live_moldudp64 import MoldUdp64Client
from blackbox_feeds.live.datagram_source import DatagramSource
from blackbox_feeds.live.retries import Retries

from blackbox.errors import ConfigError, EndpointError
from blackbox.feed.endpoint import _free_ports
from blackbox.testing import wait_until
from tests.feeds.build import messages_of, mold
from tests.feeds.venue_lines import Answers, Client, Line, Protocol

PROTOCOLS = [Protocol("moldudp64"), Protocol("iextp")]
both = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: each.name)


def source_of(protocol: Protocol, port: int, **options: Any) -> DatagramSource:
    query = "&".join(f"{name}={value}" for name, value in {"stale": 60, **options}.items())
    url = f"//127.0.0.1:{port}?{query}"
    return MoldUdp64Client(url, "2019-12-30") if protocol.is_mold else IexClient(url)


def datagrams_of(protocol: Protocol, messages: list[bytes], seed: int) -> list[tuple[int, int, bytes]]:
    """Return the messages in datagrams of random sizes: first sequence, the one after it, bytes."""
    sizes, found, at = random.Random(seed), [], 0
    while at < len(messages):
        size = min(sizes.randint(0, 9), len(messages) - at)
        found.append((at + 1, at + 1 + size, protocol.datagram(at + 1, messages[at : at + size])))
        at += size
    return found


@both
def test_each_message_arrives_once_in_order_in_spite_of_loss_copies_and_disorder(protocol: Protocol) -> None:
    messages = [protocol.message(number) for number in range(1, 4_001)]
    a, b = _free_ports(2)
    chance = random.Random(7)
    with Answers(protocol, messages, loss=0.1) as server:
        address = f"127.0.0.1:{server.port}"
        source = source_of(protocol, a, b=f"127.0.0.1:{b}", hold=60, **{protocol.server_option: address})
        with Client(source) as client, Line(source, a, b) as line:
            line.send(protocol.datagram(1, []))
            for port, seed in ((a, 1), (b, 2)):
                late: list[bytes] = []
                for _, _, datagram in datagrams_of(protocol, messages, seed):
                    chosen = chance.random()
                    if chosen < 0.04:
                        late.append(datagram)
                    elif chosen > 0.05:
                        line.send(datagram, port)
                    if chosen > 0.98:
                        line.send(datagram, port)
                    if late and chosen > 0.9:
                        line.send(late.pop(), port)
                line.send(protocol.datagram(len(messages) + 1, []), port)
            client.wait_for(len(messages))
        assert client.found == messages
        found = source.statistics()
        assert (found.messages, found.gaps, found.missing, found.malformed) == (len(messages), 0, 0, 0)
        assert found.recovered > 0
        assert found.duplicates > 3_000
        assert server.requests > 0


@both
def test_without_a_server_each_gap_is_reported_with_its_count(protocol: Protocol) -> None:
    messages = [protocol.message(number) for number in range(1, 2_001)]
    port, dead = _free_ports(2)
    chance = random.Random(5)
    expected: list[bytes | int] = []
    source = source_of(protocol, port, hold=0.2, **{protocol.server_option: f"127.0.0.1:{dead}"})
    with Client(source) as client, Line(source, port) as line:
        missing = 0
        line.send(protocol.datagram(1, []))
        for first, end, datagram in datagrams_of(protocol, messages, 3):
            if chance.random() < 0.02:
                missing += end - first
                continue
            line.send(datagram)
            expected += [missing] if missing else []
            missing = 0
            expected += messages[first - 1 : end - 1]
        line.send(protocol.datagram(len(messages) + 6, []))
        expected.append(missing + 5)
        client.wait_for(len(expected))
    assert client.found == expected
    gaps = [each for each in expected if isinstance(each, int)]
    found = source.statistics()
    assert (found.gaps, found.missing, found.recovered) == (len(gaps), sum(gaps), 0)
    assert len(gaps) > 5
    assert f"messages missing in them: {sum(gaps)}" in source.notes


@both
def test_late_start_requests_what_was_sent_before_within_a_bound(protocol: Protocol) -> None:
    messages = [protocol.message(number) for number in range(1, 1_001)]
    with Answers(protocol, messages) as server:
        address = f"127.0.0.1:{server.port}"
        (port,) = _free_ports(1)
        source = source_of(protocol, port, backfill=100, hold=60, **{protocol.server_option: address})
        with Client(source) as client, Line(source, port) as line:
            line.send(protocol.datagram(901, messages[900:910]))
            client.wait_for(1 + 110)
    assert client.found == [800, *messages[800:910]]


def test_end_of_session_ends_the_source_once_its_last_gap_is_filled() -> None:
    protocol = PROTOCOLS[0]
    messages = [protocol.message(number) for number in range(1, 101)]
    with Answers(protocol, messages) as server:
        (port,) = _free_ports(1)
        source = source_of(protocol, port, hold=60, rerequest=f"127.0.0.1:{server.port}")
        with Client(source) as client, Line(source, port) as line:
            line.send(protocol.datagram(1, messages[:50]))
            line.send(mold(101, [], count=0xFFFF))
            client.join()
    assert client.found == messages
    assert not source.statistics().connected


@both
def test_other_session_is_skipped_until_the_first_one_is_silent(protocol: Protocol) -> None:
    (port,) = _free_ports(1)
    first, second = ([protocol.message(number + start) for number in range(1, 11)] for start in (0, 50))
    source = source_of(protocol, port, stale=0.3)
    with Client(source) as client, Line(source, port) as line:
        line.send(protocol.datagram(1, first))
        client.wait_for(10)
        line.send(protocol.datagram(1, second, session=2))
        wait_until(lambda: source.statistics().foreign > 0 or source.statistics().stale > 0)
        wait_until(lambda: source.statistics().reconnects > 0)

        def is_adopted() -> bool:
            line.send(protocol.datagram(1, second, session=2))
            return len(client.found) >= 20

        wait_until(is_adopted)
    assert client.payloads()[:20] == first + second
    assert source.statistics().stale > 0


def test_end_of_a_session_that_fell_silent_does_not_end_the_next_one() -> None:
    protocol = PROTOCOLS[0]
    port, dead = _free_ports(2)
    messages = [protocol.message(number) for number in range(1, 41)]
    source = source_of(protocol, port, stale=0.3, hold=60, rerequest=f"127.0.0.1:{dead}")
    with Client(source) as client, Line(source, port) as line:
        line.send(protocol.datagram(1, messages[:10]))
        line.send(mold(15, [], count=0xFFFF))  # 11 to 14 are missing until the session is silent
        wait_until(lambda: source.statistics().reconnects > 0)

        def is_adopted() -> bool:
            line.send(protocol.datagram(1, messages[10:30], session=2))
            return len(client.found) >= 31

        wait_until(is_adopted)
        line.send(protocol.datagram(21, messages[30:], session=2))
        client.wait_for(41)
    assert client.found == [*messages[:10], 4, *messages[10:]]


def test_iex_begins_its_numbers_again() -> None:
    protocol = PROTOCOLS[1]
    (port,) = _free_ports(1)
    messages = [protocol.message(number) for number in range(1, 21)]
    source = source_of(protocol, port)
    with Client(source) as client, Line(source, port) as line:
        line.send(protocol.datagram(1, messages[:10], sent_ns=1))
        line.send(protocol.datagram(1, messages[:10], sent_ns=900_000_000))  # a late copy
        line.send(protocol.datagram(1, messages[10:], sent_ns=2_000_000_000))
        client.wait_for(20)
    assert client.found == messages
    assert source.statistics().duplicates == 10


def is_valid_by_chance(data: bytes) -> bool:
    """Return True if random bytes form a MoldUDP64 datagram: in a million, a few heartbeats of other sessions do."""
    if len(data) < 20:
        return False
    _, first, count = struct.unpack_from(">10sQH", data)
    at = 20
    for _ in range(0 if count == 0xFFFF else count):
        at += 2 + int.from_bytes(data[at : at + 2].ljust(2, b"\xff"), "big")
    return 1 <= first < 1 << 62 and at <= len(data)


def hostile(protocol: Protocol, seed: int, many: int) -> tuple[list[bytes], list[bytes], dict[str, int]]:
    """Return datagrams, some random, cut, repeated or forged; the valid messages; and the expected counts."""
    chance, sent, messages = random.Random(seed), [protocol.datagram(1, [])], list[bytes]()
    counts = {"malformed": 0, "foreign": 0, "duplicates": 0}
    replays: list[tuple[bytes, int]] = []
    for _ in range(many):
        kind = chance.randrange(7)
        first = len(messages) + 1
        new = [protocol.message(first + k) for k in range(chance.randint(1, 5))]
        datagram = protocol.datagram(first, new)
        if kind == 0:
            sent.append(chance.randbytes(chance.choice([0, 1, 19, 20, 39, 40, 100, 1_400])))
            counts["foreign" if protocol.is_mold and is_valid_by_chance(sent[-1]) else "malformed"] += 1
        elif kind == 1:
            sent.append(datagram[: chance.randrange(len(datagram))])
            counts["malformed"] += 1
        elif kind == 2 and replays:
            copy, count = chance.choice(replays)
            sent.append(copy)
            counts["duplicates"] += count
        elif kind == 3:
            sent.append(protocol.datagram(first, new, session=chance.randint(2, 1_000)))
            counts["foreign"] += 1
        elif kind == 4:  # an impossible sequence
            sent.append(protocol.datagram(chance.choice([0, 1 << 62, (1 << 63) - 1]), new))
            counts["malformed"] += 1
        elif kind == 5:  # a message that is too short for its type
            sent.append(protocol.datagram(first, [*new, new[0][:9]]))
            counts["malformed"] += 1
        else:
            sent.append(datagram)
            messages += new
            replays.append((datagram, len(new)))
            if chance.random() < 0.01:  # far ahead of the sequence, which goes on
                sent.append(protocol.datagram(first + (1 << 40) + len(sent) * 1_000, new))
                counts["malformed"] += 1
    return sent, messages, counts


@both
@pytest.mark.parametrize("many", [5_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_hostile_datagrams_are_counted_and_change_nothing(protocol: Protocol, many: int) -> None:
    (port,) = _free_ports(1)
    sent, messages, counts = hostile(protocol, 11, many)
    source = source_of(protocol, port, hold=0.05)
    with Client(source) as client, Line(source, port) as line:
        for datagram in sent:
            line.send(datagram)
        line.send(protocol.datagram(len(messages) + 1, [protocol.message(5)]))
        client.wait_for(len(messages) + 1)
        wait_until(lambda: source.statistics().malformed >= counts["malformed"])
    assert client.found == [*messages, protocol.message(5)]
    found = source.statistics()
    assert {name: getattr(found, name) for name in counts} == counts
    assert (found.gaps, found.missing) == (0, 0)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("127.0.0.1:1?x=1", "URL was"),
        ("//127.0.0.1?b=127.0.0.1:1", "expected HOST:PORT"),
        ("//127.0.0.1:1?rerequests=127.0.0.1:1", "expected one of moldudp64://: .*did you mean 'rerequest'"),
        ("//127.0.0.1:1?hold=soon", "option hold was 'soon'"),
        ("//127.0.0.1:1?stale=0", "option stale was 0.0, expected 0.01 to 86400"),
        ("//127.0.0.1:1?b=nowhere", "option b was 'nowhere', expected HOST:PORT"),
        ("//127.0.0.1:1?hold=1&hold=2", "each name once"),
    ],
)
def test_wrong_url(url: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        MoldUdp64Client(url)


def test_address_that_is_in_use_and_interface_that_does_not_exist() -> None:
    (port,) = _free_ports(1)
    first = source_of(PROTOCOLS[0], port)
    with Client(first), pytest.raises(EndpointError, match=f"127.0.0.1:{port} cannot be bound"):
        list(source_of(PROTOCOLS[0], port).chunks())
    with pytest.raises(ConfigError, match="interface was 'nosuch0', expected an IPv4 address or one of: .*lo"):
        list(MoldUdp64Client(f"//239.255.1.1:{port}?interface=nosuch0").chunks())


def test_interface_that_is_gone_for_a_while_does_not_end_the_source(caplog: pytest.LogCaptureFixture) -> None:
    source = MoldUdp64Client(f"//239.255.1.1:{_free_ports(1)[0]}?interface=nosuch0")
    source._rejoin(Retries(first_s=0.001, longest_s=0.001))
    assert "interface was 'nosuch0'" in caplog.text
    assert (source.statistics().stale, source.statistics().connected) == (1, False)


def test_real_messages_are_as_from_the_file(shared_data: Path) -> None:
    path = shared_data / "itch50" / "runk_locate-13-10k.bin"
    data, messages = path.read_bytes(), list[bytes]()
    while data:
        size = int.from_bytes(data[:2], "big")
        messages.append(data[2 : 2 + size])
        data = data[2 + size :]
    (port,) = _free_ports(1)
    source = MoldUdp64Client(f"//127.0.0.1:{port}?stale=60", "2020-01-30")
    with Client(source) as client, Line(source, port) as line:
        for _, _, datagram in datagrams_of(PROTOCOLS[0], messages, 9):
            line.send(datagram)
        client.wait_for(len(messages))
    assert client.messages == messages_of(Itch50(path, "2020-01-30"))
    assert (len(messages), source.statistics().gaps) == (10_000, 0)
