"""Clients of MoldUDP64 and IEX-TP on bad networks: each message once and in order, or in a gap with its exact count."""

from __future__ import annotations

import errno
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from blackbox_feeds.iex.live import IexClient
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.itch50.live_moldudp64 import MoldUdp64Client
from blackbox_feeds.live import datagram_source
from blackbox_feeds.live.datagram_source import DatagramSource
from blackbox_feeds.live.retries import Retries

from blackbox.errors import ConfigError, EndpointError
from blackbox.feed.endpoint import _free_ports
from blackbox.testing import wait_until
from tests.feeds.build import messages_in, messages_of, mold
from tests.feeds.serving.datagram_client import blocks
from tests.feeds.venue_lines import Answers, Client, Line, Protocol

MOLD, IEX_TP = Protocol("moldudp64"), Protocol("iextp")
DEAD = "127.0.0.1:9"
"""A server that does not answer."""
both = pytest.mark.parametrize("protocol", [MOLD, IEX_TP], ids=lambda each: each.name)


def source_of(protocol: Protocol, port: int, date: str = "2019-12-30", **options: Any) -> DatagramSource:
    query = "&".join(f"{name}={value}" for name, value in {"stale": 60, **options}.items())
    url = f"//127.0.0.1:{port}?{query}"
    return MoldUdp64Client(url, date) if protocol.is_mold else IexClient(url)


@contextmanager
def joined(protocol: Protocol, **options: Any) -> Iterator[tuple[Client, Line]]:
    """Yield a client of a line, and a sender to the line."""
    (port,) = _free_ports(1)
    source = source_of(protocol, port, **options)
    with Client(source) as client, Line(source, port) as line:
        yield client, line


def datagrams_of(protocol: Protocol, messages: Sequence[bytes], seed: int) -> list[tuple[int, int, bytes]]:
    """Return the messages in datagrams of random sizes: first sequence, the one after it, bytes."""
    sizes, found, at = random.Random(seed), [], 0
    while at < len(messages):
        size = min(sizes.randint(0, 9), len(messages) - at)
        found.append((at + 1, at + 1 + size, protocol.datagram(at + 1, messages[at : at + size])))
        at += size
    return found


@both
def test_each_message_arrives_once_in_order_in_spite_of_loss_copies_and_disorder(protocol: Protocol) -> None:
    messages = protocol.messages(4_000)
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
def test_late_start_requests_what_was_sent_before_within_a_bound(protocol: Protocol) -> None:
    messages = protocol.messages(1_000)
    with Answers(protocol, messages) as server:
        options: dict[str, Any] = {protocol.server_option: f"127.0.0.1:{server.port}"}
        with joined(protocol, backfill=100, hold=60, **options) as (client, line):
            line.send(protocol.datagram(901, messages[900:910]))
            client.wait_for(1 + 110)
    assert client.found == [800, *messages[800:910]]


def test_late_start_far_after_the_first_message_is_a_gap_if_the_server_does_not_answer() -> None:
    with joined(MOLD, hold=0.05, backfill=66_000, rerequest=DEAD) as (client, line):
        line.send(MOLD.datagram(200_001, [MOLD.message(1)]))
        client.wait_for(2)
    assert client.found == [200_000, MOLD.message(1)]
    assert client.source.statistics().malformed == 0


def test_end_of_session_ends_the_source_once_its_last_gap_is_filled() -> None:
    messages = MOLD.messages(100)
    with (
        Answers(MOLD, messages) as server,
        joined(MOLD, hold=60, rerequest=f"127.0.0.1:{server.port}") as (client, line),
    ):
        line.send(MOLD.datagram(1, messages[:50]))
        line.send(mold(101, [], count=0xFFFF))
        client.join()
    assert client.found == messages
    assert not client.source.statistics().connected


@both
def test_other_session_is_skipped_until_the_first_one_is_silent(protocol: Protocol) -> None:
    first, second = ([protocol.message(number + start) for number in range(1, 11)] for start in (0, 50))
    with joined(protocol, stale=0.3) as (client, line):
        statistics = client.source.statistics
        line.send(protocol.datagram(1, first))
        client.wait_for(10)
        line.send(protocol.datagram(1, second, session=2))
        wait_until(lambda: statistics().foreign > 0 or statistics().stale > 0)
        wait_until(lambda: statistics().reconnects > 0)

        def is_adopted() -> bool:
            line.send_uncounted(protocol.datagram(1, second, session=2))
            return len(client.found) >= 20

        wait_until(is_adopted)
    assert [each for each in client.found if isinstance(each, bytes)][:20] == first + second
    assert statistics().stale > 0


def test_lines_stay_open_while_the_client_waits_to_join_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lasted: list[float] = []

    class Slow(Retries):
        def ended(self, lasted_s: float) -> None:
            lasted.append(lasted_s)

        def delay_s(self) -> float:
            # Short only after the first silence that follows a datagram.
            return 0.01 if lasted[-1] > 0 and min(lasted) >= 0 else 600.0

    monkeypatch.setattr(datagram_source, "Retries", Slow)
    messages = MOLD.messages(20)
    with joined(MOLD, stale=0.2) as (client, line):
        line.send(MOLD.datagram(1, messages[:10]))
        client.wait_for(10)
        wait_until(lambda: bool(lasted) and lasted[-1] < 0)  # nothing was heard after the second join
        line.send(MOLD.datagram(11, messages[10:]))
        client.wait_for(20)
    assert client.found == messages
    assert client.source.statistics().reconnects == 1


def test_time_of_a_slow_reader_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    late_ns = 0
    monkeypatch.setattr(datagram_source, "time", SimpleNamespace(monotonic_ns=lambda: time.monotonic_ns() + late_ns))
    protocol = MOLD
    own, other = ([protocol.message(number + start) for number in range(1, 21)] for start in (0, 50))
    (port,) = _free_ports(1)
    source = source_of(protocol, port)
    source.compile()
    has_begun = threading.Event()

    def begin() -> None:
        while not has_begun.wait(0.01):
            line.send_uncounted(protocol.datagram(1, own[:10]))  # also before it listens

    with Line(source, port) as line:
        thread = threading.Thread(target=begin)
        thread.start()
        chunks = source.chunks()
        try:
            found = [payload for _, _, payload in messages_in(next(chunks))]
        finally:
            has_begun.set()
            thread.join()
        line.send(protocol.datagram(1, other, session=2))
        line.send(protocol.datagram(11, own[10:]))
        late_ns = 100 * 10**9
        found += [payload for _, _, payload in messages_in(next(chunks))]
        source.stop()
        assert list(chunks) == []
    assert found == own
    assert (source.statistics().foreign, source.statistics().stale) == (1, 0)


def test_end_of_a_session_that_fell_silent_does_not_end_the_next_one() -> None:
    messages = MOLD.messages(40)
    with joined(MOLD, stale=2, hold=60, rerequest=DEAD) as (client, line):
        line.send(MOLD.datagram(1, messages[:10]))
        line.send(mold(15, [], count=0xFFFF))  # 11 to 14 are missing until the session is silent
        wait_until(lambda: client.source.statistics().reconnects > 0)

        def is_adopted() -> bool:
            line.send_uncounted(MOLD.datagram(1, messages[10:30], session=2))
            return len(client.found) >= 31

        wait_until(is_adopted)
        line.send(MOLD.datagram(21, messages[30:], session=2))
        client.wait_for(41)
    assert client.found == [*messages[:10], 4, *messages[10:]]


def test_iex_begins_its_numbers_again() -> None:
    messages = IEX_TP.messages(20)
    with joined(IEX_TP) as (client, line):
        line.send(IEX_TP.datagram(1, messages[:10], sent_ns=1))
        line.send(IEX_TP.datagram(11, messages[:1], sent_ns=(1 << 63) - 1))  # forged
        line.send(IEX_TP.datagram(1, messages[:10], sent_ns=900_000_000))  # a late copy
        line.send(IEX_TP.datagram(1, messages[10:], sent_ns=2_000_000_000))
        client.wait_for(20)
    assert client.found == messages
    now = client.source.statistics()
    assert (now.duplicates, now.malformed) == (10, 1)


def test_forged_datagram_far_ahead_does_not_begin_the_numbers_of_iex_again() -> None:
    messages = IEX_TP.messages(20)
    with (
        Answers(IEX_TP, messages[:10]) as server,
        joined(IEX_TP, hold=0.05, gapfill=f"127.0.0.1:{server.port}") as (client, line),
    ):
        line.send(IEX_TP.datagram(1, messages[:10], sent_ns=1))
        client.wait_for(10)
        line.send(IEX_TP.datagram(1 << 40, messages[:1], sent_ns=2))
        line.send(IEX_TP.datagram(11, messages[10:], sent_ns=5_000_000_000))
        wait_until(lambda: client.source.statistics().malformed == 1)
        client.wait_for(20)
    assert client.found == messages
    now = client.source.statistics()
    assert (now.duplicates, now.recovered) == (0, 0)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("//127.0.0.1:1?rerequests=127.0.0.1:1", "expected one of moldudp64://: .*did you mean 'rerequest'"),
        ("//127.0.0.1:1?stale=0", "option stale was 0.0, expected 0.01 to 86400"),
        ("//127.0.0.1:1?b=nowhere", "option b was 'nowhere', expected HOST:PORT"),
        ("//127.0.0.1:0", "address was 127.0.0.1:0, expected a port from 1 to 65535"),
        ("//127.0.0.1:1?b=127.0.0.1:0", "address was 127.0.0.1:0, expected a port from 1 to 65535"),
        ("//127.0.0.1:1?rerequest=127.0.0.1:0", "address was 127.0.0.1:0, expected a port from 1 to 65535"),
    ],
)
def test_wrong_url(url: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        MoldUdp64Client(url)


def test_address_that_is_in_use_and_interface_that_does_not_exist() -> None:
    (port,) = _free_ports(1)
    first = source_of(MOLD, port)
    with Client(first), pytest.raises(EndpointError, match=f"127.0.0.1:{port} cannot be bound"):
        list(source_of(MOLD, port).chunks())
    with pytest.raises(ConfigError, match="interface was 'nosuch0', expected an IPv4 address or one of: .*lo"):
        list(MoldUdp64Client(f"//239.255.1.1:{port}?interface=nosuch0").chunks())


def test_interface_that_is_gone_for_a_while_does_not_end_the_source(caplog: pytest.LogCaptureFixture) -> None:
    source = MoldUdp64Client(f"//239.255.1.1:{_free_ports(1)[0]}?interface=nosuch0")
    source._rejoin()
    assert "interface was 'nosuch0'" in caplog.text


def test_without_free_descriptors_the_source_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    (port,) = _free_ports(1)
    source = source_of(MOLD, port)
    monkeypatch.setattr(socket, "socket", fail)
    source._rejoin()
    assert f"no socket can be opened for 127.0.0.1:{port}: Too many open files" in caplog.text


def test_real_messages_are_as_from_the_file(shared_data: Path) -> None:
    path = shared_data / "itch50" / "runk_locate-13-10k.bin"
    messages = blocks(path.read_bytes(), 10_000, ">H")
    with joined(MOLD, date="2020-01-30") as (client, line):
        for _, _, datagram in datagrams_of(MOLD, messages, 9):
            line.send(datagram)
        client.wait_for(len(messages))
    assert client.messages == messages_of(Itch50(path, "2020-01-30"))
    assert client.gaps == []
