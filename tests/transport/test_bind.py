"""Endpoints bound at another address than peers connect to, as in a container."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import zmq

from blackbox import ConfigError, Feed, Hub, HubClient, Publisher, Recorder, Relay
from blackbox.archive.serve.client import ArchiveClient
from blackbox.errors import EndpointError
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.feed import as_recorded
from blackbox.services.relay.plain_clients import PlainRelay
from blackbox.testing import wait_until
from tests.receive.subscribers import subscribed

PATIENCE_S = 60.0


def port_of(endpoint: str) -> str:
    return endpoint.rpartition(":")[2]


def everywhere(endpoint: str) -> str:
    return f"tcp://0.0.0.0:{port_of(endpoint)}"


def by_name(name: str) -> Feed:
    """Return a feed of one slice with the host's name, bound at all its addresses."""
    feed = Feed.local(name, slices=1)
    (endpoint,) = feed.slices[0].lines
    part = msgspec.structs.replace(
        feed.slices[0], endpoints=(f"tcp://localhost:{port_of(endpoint)}",), bind=everywhere(endpoint)
    )
    return msgspec.structs.replace(feed, slices=(part,), heartbeat_ns=100_000_000)


def test_a_publisher_is_reached_by_name_also_after_a_restart() -> None:
    subscriber, got = subscribed(feed := by_name("named"))
    for turn in range(2):
        with Publisher(feed) as publisher:
            if turn == 0:
                subscriber.start(PATIENCE_S)
            publisher.wait_for_subscribers(timeout=PATIENCE_S)
            publisher.publish(b"A.x", b"1")
            got.wait(1 + turn)
    subscriber.stop()


def test_relays_bind_at_the_addresses_of_their_feed() -> None:
    source, below = by_name("chain"), by_name("chain")
    subscriber, got = subscribed(below)
    (plain,) = free_endpoints("tcp", "plain", 1, 1)[0]
    with (
        Publisher(source) as publisher,
        Relay(source, below),
        PlainRelay(source, everywhere(plain)),
        zmq.Context() as context,
        context.socket(zmq.SUB) as sub,
    ):
        sub.linger, sub.rcvtimeo = 0, int(1e3 * PATIENCE_S)
        sub.connect(f"tcp://localhost:{port_of(plain)}")
        sub.subscribe(b"A")
        subscriber.start(PATIENCE_S)
        sent = 0
        while not sub.poll(100):
            publisher.publish(b"A.x", b"1")
            sent += 1
        assert sub.recv_multipart()[2] == b"1"
        got.wait(sent)
        subscriber.stop()


def test_an_archive_and_a_hub_bind_at_the_addresses_of_their_feed(tmp_path: Path) -> None:
    archive, hub = (each for (each,) in free_endpoints("tcp", "both", 2, 1))
    feed = msgspec.structs.replace(
        by_name("both"),
        archives=(f"tcp://localhost:{port_of(archive)}",),
        archives_bind=everywhere(archive),
        hub=f"tcp://localhost:{port_of(hub)}",
        hub_bind=everywhere(hub),
    )
    with Hub(feed, tmp_path / "hub"), HubClient(feed) as client:
        assert client.put(b"A.x", b"1", timeout=PATIENCE_S).slice_id == 0
        assert ArchiveClient(feed, timeout=PATIENCE_S).answers()
    recorded = msgspec.structs.replace(feed, hub="", hub_bind="")
    with Publisher(recorded) as publisher, Recorder(recorded, tmp_path / "recorder", serve=True) as recorder:
        publisher.publish(b"A.x", b"2")
        publisher.flush()
        wait_until(lambda: recorder.statistics().messages == 1)
        assert ArchiveClient(recorded, timeout=PATIENCE_S).answers()


def test_a_feed_file_sets_the_address_to_bind(tmp_path: Path) -> None:
    path = tmp_path / "feed.toml"
    path.write_text(
        'name = "quotes"\narchives = ["tcp://md.example:17800"]\narchives_bind = "tcp://0.0.0.0:17800"\n'
        '[[slices]]\nendpoints = ["tcp://md.example:17801"]\nbind = "tcp://0.0.0.0:17801"\nprefixes = ["A"]\n'
        '[[slices]]\nendpoints = ["tcp://md.example:17802", "tcp://other.example:17802", "shm://b"]\n'
        'bind = ["tcp://0.0.0.0:17802", "tcp://[::]:17803"]\nprefixes = ["B"]\n'
    )
    feed = Feed.load(path)
    bound = [("tcp://0.0.0.0:17801",), ("tcp://0.0.0.0:17802", "tcp://[::]:17803")]
    assert [part.bound for part in feed.slices] == bound
    assert feed.bound("tcp://md.example:17800") == "tcp://0.0.0.0:17800"
    assert as_recorded(feed).slices[0].bound == feed.slices[0].lines


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        (("tcp://0.0.0.0:1", "tcp://0.0.0.0:2"), "bind had 2 addresses, expected one for each of the 1 "),
        ("ipc:///tmp/x", "bind was 'ipc:///tmp/x', expected one such as tcp://0.0.0.0:17801"),
        ("tcp://0.0.0.0", "endpoint was 'tcp://0.0.0.0', expected tcp://HOST:PORT"),
        ("tcp://0.0.0.0:0", "port of endpoint 'tcp://0.0.0.0:0' was 0, expected 1 to 65535"),
        (1, "bind was 1, expected"),
    ],
)
def test_a_wrong_bind_is_rejected(bind: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        msgspec.structs.replace(Feed.local("wrong", slices=1).slices[0], bind=bind)
    assert said in str(caught.value)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_bind_to_another_host_is_explained(host: str) -> None:
    feed = Feed.local("elsewhere", slices=1)
    there = f"tcp://{host}:{port_of(feed.slices[0].lines[0])}"
    slices = (msgspec.structs.replace(feed.slices[0], endpoints=(there,)),)
    with pytest.raises(EndpointError) as caught:
        Publisher(msgspec.structs.replace(feed, slices=slices)).start()
    assert f"endpoint {there} could not be bound: its host is unknown" in str(caught.value)
    assert "set `bind` in the feed file" in str(caught.value)
