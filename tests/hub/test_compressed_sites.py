"""Another site behind a real `ssh -C`: all its messages arrive here in fewer bytes, even if ssh is killed or stalls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import accumulate
from pathlib import Path

import pytest

from bench.processes.ssh_tunnel import SshTunnel
from bench.rivals.servers import Missing
from blackbox import Feed, Hub, HubClient
from blackbox.block.position import Place
from blackbox.services.relay.relay import RelayStatistics
from blackbox.testing import wait_until
from tests.hub.hubs import hub_feed
from tests.hub.test_sites import WAIT_S, got, here

ORDER = b'{"account": "desk-1", "symbol": "AAPL", "side": "%s", "quantity": %d, "price": "187.%02d", "number": %d}'

NOTICE_SILENCE = ("-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=3")


def order(number: int) -> bytes:
    return ORDER % ((b"buy", b"sell")[number % 2], 100 * (number % 7), number % 100, number)


class Sites:
    """London, and Amsterdam, which receives London's feed only through the tunnel."""

    def __init__(self, directory: Path, *options: str) -> None:
        ldn, ams = (hub_feed(name, slices=1) for name in ("ldn", "ams"))
        with ExitStack() as stack:
            self.tunnel = stack.enter_context(SshTunnel(ldn, "-C", *options))
            self.tunnel.start()
            seen: Feed = here(self.tunnel.feed)
            stack.enter_context(Hub(ldn, directory / "ldn"))
            self.hub = stack.enter_context(Hub(ams, directory / "ams", peers=[(self.tunnel.feed, seen)]))
            self.putting = stack.enter_context(HubClient(ldn))
            self.reading = stack.enter_context(HubClient(seen, "reader", directory / "reader"))
            self.reading.subscribe(b"")
            wait_until(self._is_wanted, WAIT_S)
            self.close = stack.pop_all().close

    def _is_wanted(self) -> bool:
        with suppress(TimeoutError):
            self.reading.get(b"", 0.1)  # begins to read if the time suffices
        return all(line.is_confirmed and line.filters_above for line in self.passed_on().lines)

    def passed_on(self) -> RelayStatistics:
        (peer,) = self.hub.peers
        return peer.statistics()


@pytest.fixture
def sites(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sites]:
    try:
        sites = Sites(tmp_path, *getattr(request, "param", ()))
    except Missing as why:
        pytest.skip(str(why))
    yield sites
    sites.close()


def test_messages_through_ssh_arrive_once_in_order_in_fewer_bytes(sites: Sites) -> None:
    put = list[tuple[Place, bytes | None]]()
    before = sites.tunnel.crossed()
    for start in range(0, 5_000, 100):
        orders = [order(number) for number in range(start, start + 100)]
        offsets = [0, *accumulate(map(len, orders))]
        places = sites.putting.put_many([b"A.x"], [0] * len(orders), b"".join(orders), offsets=offsets)
        at = zip(places["slice"].tolist(), places["epoch"].tolist(), places["sequence"].tolist(), strict=True)
        put += zip(map(Place._make, at), orders, strict=True)
    assert got(sites.reading, len(put)) == put
    with pytest.raises(TimeoutError):
        sites.reading.get(b"", 0.1)
    told = sites.passed_on()
    assert told.messages == len(put)
    assert 0 < 3 * (sites.tunnel.crossed() - before) < told.body_bytes


class Putting:
    """A client of London that puts continuously in a `with` block. `put`: places and payloads."""

    def __init__(self, client: HubClient) -> None:
        self.put = list[tuple[Place, bytes | None]]()
        self._client, self._over, self._thread = client, threading.Event(), threading.Thread(target=self._put_all)

    def _put_all(self) -> None:
        while not self._over.is_set():
            payload = order(len(self.put))
            self.put.append((self._client.put(b"A.x", payload, timeout=WAIT_S), payload))

    def wait_for_more(self) -> int:
        """Wait until 100 more messages are put; return their total number."""
        size = len(self.put) + 100
        wait_until(lambda: len(self.put) >= size, WAIT_S)
        return size

    def __enter__(self) -> Putting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def assert_all_came(sites: Sites, putting: Putting, first: list[tuple[Place, bytes | None]]) -> None:
    assert first + got(sites.reading, len(putting.put) - len(first)) == putting.put
    with pytest.raises(TimeoutError):
        sites.reading.get(b"", 0.1)
    assert sites.passed_on().messages < len(putting.put)  # the archive sent the rest, through the next ssh


@pytest.mark.long
def test_a_killed_ssh_causes_no_loss_and_no_duplicates(sites: Sites) -> None:
    with Putting(sites.putting) as putting:
        first = got(sites.reading, 100)
        for _ in range(2):
            sites.tunnel.kill()
            putting.wait_for_more()
            sites.tunnel.start()
            first += got(sites.reading, putting.wait_for_more() - len(first))
    assert_all_came(sites, putting, first)


@pytest.mark.long
@pytest.mark.parametrize("sites", [NOTICE_SILENCE], ids=[""], indirect=True)
def test_an_ssh_with_a_silent_far_end_exits_and_loses_nothing(sites: Sites) -> None:
    with Putting(sites.putting) as putting:
        first = got(sites.reading, 100)
        with sites.tunnel.silent():
            wait_until(sites.tunnel.has_ended, WAIT_S)
        sites.tunnel.start()
        first += got(sites.reading, putting.wait_for_more() - len(first))
    assert_all_came(sites, putting, first)
