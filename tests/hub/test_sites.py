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
from blackbox.services.hub.hub_file import load_hub
from blackbox.testing import wait_until
from tests.cli.commands import write_feed
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


def test_a_hub_file_names_its_peers(tmp_path: Path) -> None:
    mesh = Mesh(SITES[:2])
    there, seen = mesh.feeds["ldn"], mesh.here["ams"]["ldn"]
    for name, feed in {"ams": mesh.feeds["ams"], "ldn": there, "ldn-here": seen}.items():
        write_feed(feed, tmp_path / f"{name}.toml")
    file = tmp_path / "hub.toml"
    file.write_text('feed = "ams.toml"\ndirectory = "kept"\n[[peers]]\nfeed = "ldn.toml"\nhere = "ldn-here.toml"\n')
    (peer,) = load_hub(file).peers
    assert [each.slices[0].endpoints for each in (peer.upstream, peer.downstream)] == [
        each.slices[0].endpoints for each in (there, seen)
    ]
    file.write_text('feed = "ams.toml"\ndirectory = "kept"\n[[peers]]\nfeed = "ldn.toml"\n')
    with pytest.raises(ConfigError, match="here"):
        load_hub(file)


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        ('directory = "sites"', "", "join: key 'directory' was missing"),
        ("ports = [17200, 17210]", "ports = [17210, 17200]", r"ports were \[17210, 17200\]"),
        ("ports = [17200, 17210]", "ports = [17200]", "join.ports"),
        ("ports = [17200, 17210]", "ports = [0, 9]", "join.ports"),
        ('ask = ["tcp://ldn:1"]', 'ask = ["ldn"]', "ask was 'ldn'|endpoint was 'ldn'"),
        ('ask = ["tcp://ldn:1"]', "asks = []", "unknown key 'join.asks', did you mean 'ask'"),
        ('ask = ["tcp://ldn:1"]', 'ask = ["tcp://ldn:1"]\nask_keys = ["a", "b"]', "ask_keys were 2"),
        ('ask = ["tcp://ldn:1"]', "every_ns = 1", "every_ns was 1"),
        ('ask = ["tcp://ldn:1"]', 'host = "1.2.3"', "host of endpoint"),
    ],
)
def test_a_join_that_is_wrong_is_named(tmp_path: Path, was: str, now: str, why: str) -> None:
    write_feed(hub_feed("ams", slices=1), tmp_path / "ams.toml")
    good = 'ask = ["tcp://ldn:1"]\ndirectory = "sites"\nports = [17200, 17210]\n'
    assert was in good
    file = tmp_path / "hub.toml"
    file.write_text('feed = "ams.toml"\ndirectory = "kept"\n[join]\n' + good.replace(was, now))
    with pytest.raises(ConfigError, match=why):
        load_hub(file)
