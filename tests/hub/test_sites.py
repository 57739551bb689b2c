"""Hubs of several sites: each forwards the wanted parts of the other feeds, straight from their origin."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from blackbox import ConfigError, Feed, Hub, HubClient, Relay
from blackbox.block.position import Place
from blackbox.errors import EndpointError, RelayError
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import wait_until
from tests.hub.hubs import hub_feed

WAIT_S = 60.0
SITES = ("ams", "ldn", "nyc", "tyo")


def here(feed: Feed) -> Feed:
    """Return the same feed with other endpoints."""
    slices = tuple(
        msgspec.structs.replace(each, endpoints=endpoints)
        for each, endpoints in zip(feed.slices, free_endpoints("tcp", feed.name, len(feed.slices), 1), strict=True)
    )
    return msgspec.structs.replace(feed, slices=slices)


class Mesh:
    """Each site's feed, and the local feeds through which the site offers the other sites."""

    def __init__(self, sites: tuple[str, ...] = SITES) -> None:
        self.feeds = {site: hub_feed(site, slices=1) for site in sites}
        self.here = {site: {other: here(feed) for other, feed in self.feeds.items() if other != site} for site in sites}

    def hub(self, site: str, directory: Path) -> Hub:
        peers = [(self.feeds[other], there) for other, there in self.here[site].items()]
        return Hub(self.feeds[site], directory / site, peers=peers)

    def seen_from(self, site: str) -> dict[str, Feed]:
        return self.here[site] | {site: self.feeds[site]}


def passes_on(peer: Relay) -> bool:
    """Return True if messages put at a site are forwarded here from now on."""
    return all(line.filters_above and line.is_confirmed for line in peer.statistics().lines)


def got(client: HubClient, count: int, prefix: bytes = b"") -> list[tuple[Place, bytes | None]]:
    found = []
    for _ in range(count):
        message = client.get(prefix, WAIT_S)
        found.append((Place(message.slice_id, message.epoch, message.sequence), message.payload))
    return found


def test_in_a_mesh_of_four_each_reader_receives_all_once_in_order(tmp_path: Path) -> None:
    """Two sites have readers; the other two receive no messages."""
    mesh, count, readers = Mesh(), 300, SITES[:2]
    put: dict[str, list[tuple[Place, bytes | None]]] = {site: [] for site in SITES}
    with ExitStack() as stack:
        hubs = {site: stack.enter_context(mesh.hub(site, tmp_path)) for site in SITES}
        clients = {
            (site, origin): stack.enter_context(HubClient(feed, f"{site}-reader", tmp_path / f"{site}-{origin}"))
            for site in readers
            for origin, feed in mesh.seen_from(site).items()
        }
        for client in clients.values():
            client.subscribe(b"")
            with pytest.raises(TimeoutError):
                client.get(b"", 0.01)
        wait_until(lambda: all(passes_on(peer) for site in readers for peer in hubs[site].peers), WAIT_S)

        def put_all(site: str) -> None:
            with HubClient(mesh.feeds[site]) as client:
                for number in range(count):
                    payload = b"%s %d" % (site.encode(), number)
                    put[site].append((client.put(b"A.x", payload), payload))

        putting = [threading.Thread(target=put_all, args=(site,)) for site in SITES]
        for thread in putting:
            thread.start()
        for thread in putting:
            thread.join()
        for (_, origin), client in clients.items():
            assert got(client, count) == put[origin]
        for site, hub in hubs.items():
            passed = [peer.statistics() for peer in hub.peers]
            assert all((each.messages == count) == (site in readers) for each in passed)
            assert all((each.messages == 0) == (site not in readers) for each in passed)


def test_a_loop_of_peers_ends_the_hub(tmp_path: Path) -> None:
    feed, other = hub_feed("ams", slices=1), hub_feed("ldn", slices=1)
    there, back = here(other), here(other)
    hub = Hub(feed, tmp_path, peers=[(there, back), (back, there)])
    with pytest.raises(RelayError, match="its own source: ams -> ams"):
        hub.start().run()
    with pytest.raises(RelayError, match="its own source: ams -> ams"):
        hub.close()


def test_a_peer_with_an_unsuitable_feed_is_refused(tmp_path: Path) -> None:
    feed, other = hub_feed("ams", slices=1), hub_feed("ldn", slices=2)
    with pytest.raises(ConfigError, match="slices"):
        Hub(feed, tmp_path, peers=[(other, hub_feed("ldn", slices=1))])


def test_an_endpoint_for_a_peer_that_is_in_use_ends_the_start(tmp_path: Path) -> None:
    mesh = Mesh(SITES[:2])
    with mesh.hub("ams", tmp_path), pytest.raises(EndpointError, match="in use"):
        Hub(hub_feed("other"), tmp_path / "other", peers=[(mesh.feeds["ldn"], mesh.here["ams"]["ldn"])]).start()
