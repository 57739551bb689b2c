"""Feeds with `[security]`: peers with an allowed key get messages; others get nothing, and the reason is reported."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from blackbox import ConfigError, Feed, Publisher, Recorder, Relay, Subscriber
from blackbox.archive.serve.client import ArchiveClient
from blackbox.errors import ArchiveError, NotConfirmedError
from blackbox.feed.feed import Slice
from blackbox.monitor.heartbeats import Heartbeats
from blackbox.testing import Collector, wait_until
from tests.archive.archives import all_numbers, free_endpoint
from tests.archive.recorders import publish_numbered, wait_recorded
from tests.keyring import Keyring
from tests.relay.relays import PATIENCE_S, collected
from tests.support import Script

NAMES = ("exchange", "london", "desk", "archive", "stranger")
WAIT_S = 2.0


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    """The exchange allows London, the desk and the archive; London allows the desk."""
    ring = Keyring(tmp_path, *NAMES)
    ring.allow("exchange", "desk", "london", "archive")
    ring.allow("london", "desk")
    return ring


def quotes(lines: int = 1, transport: Literal["tcp", "shm"] = "tcp") -> Feed:
    feed = Feed.local("quotes", slices=1, lines=lines, transport=transport)
    return msgspec.structs.replace(feed, heartbeat_ns=100_000_000)


def deliver(publisher: Publisher, feed: Feed, count: int = 100) -> None:
    """Check that a subscriber with this feed gets messages published after its start."""
    subscriber, got = collected(feed)
    subscriber.start(PATIENCE_S)
    for number in range(count):
        publisher.publish(b"AAPL.trade", b"%d" % number)
    assert [int(each.payload) for each in got.wait(count, PATIENCE_S)] == list(range(count))
    subscriber.stop()


def refused(feed: Feed) -> str:
    """Check that a subscriber with this feed gets no confirmation and no message; return its error.

    Without a known reason it gets more time: a busy machine is slow.
    """
    for seconds in (WAIT_S, PATIENCE_S):
        subscriber, got = collected(feed)
        with pytest.raises(NotConfirmedError) as caught:
            subscriber.start(seconds)
        assert len(got) == 0
        if " s: " in str(caught.value):
            break
    return str(caught.value)


def told(caplog: pytest.LogCaptureFixture, text: str) -> None:
    wait_until(lambda: text in caplog.text, what=f"{text!r} in the log")


@pytest.mark.parametrize("lines", [1, 2])
def test_an_allowed_key_gets_messages(ring: Keyring, lines: int) -> None:
    feed = quotes(lines)
    with Publisher(ring.feed(feed, "exchange")) as publisher:
        deliver(publisher, ring.feed(feed, "desk", "exchange"))
        assert publisher.statistics().refused_peers == 0


def test_an_allowed_key_in_a_separate_process_gets_messages(ring: Keyring) -> None:
    feed = quotes()
    code = """
    subscriber = Subscriber(feed)
    @subscriber.on(b"")
    def heard(message):
        say("heard", bytes(message.payload).decode())
    subscriber.start(60)
    say("started")
    subscriber.run(until_end=True)
    say("ended")
    """
    with (
        Publisher(ring.feed(feed, "exchange")) as publisher,
        Script(code, ring.feed(feed, "desk", "exchange")) as script,
    ):
        script.expect("started")
        publisher.publish(b"AAPL.trade", b"189.98")
        script.expect("heard 189.98")
        publisher.close()
        script.expect("ended")


def test_an_unknown_key_gets_nothing_and_both_ends_log_it(ring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
    feed = quotes()
    with Publisher(ring.feed(feed, "exchange")) as publisher:
        text = refused(ring.feed(feed, "stranger", "exchange"))
        assert f" s: it refused our key {ring.public['stranger']}" in text
        told(caplog, f"feed 'quotes' slice 0: refused key {ring.public['stranger']} at 127.0.0.1: not among allowed")
        assert publisher.statistics().refused_peers >= 1
        deliver(publisher, ring.feed(feed, "desk", "exchange"))


def test_a_key_may_read_one_slice_and_not_the_other(ring: Keyring, tmp_path: Path) -> None:
    ends = [each.endpoints for each in Feed.local("quotes", slices=2).slices]
    few = str(tmp_path / "allowed-by-london")
    feed = Feed(
        name="quotes",
        heartbeat_ns=100_000_000,
        slices=(Slice(endpoints=ends[0], prefixes=("A",)), Slice(endpoints=ends[1], prefixes=("B",), allowed_keys=few)),
        security=ring.feed(quotes(), "exchange").security,
    )
    archive = ring.feed(feed, "archive", "exchange")
    with Publisher(feed) as publisher:
        deliver(publisher, ring.feed(feed, "desk", "exchange"))
        subscriber, got = collected(archive, b"A")
        subscriber.start(PATIENCE_S)
        publisher.publish(b"BAC.trade", b"not for you")
        publisher.publish(b"AAPL.trade", b"for you")
        assert got.wait(1, PATIENCE_S)[0].payload == b"for you"
        subscriber.stop()
        subscriber, got = collected(archive, b"B")
        with pytest.raises(NotConfirmedError, match=r"slice 1: .*it refused our key"):
            subscriber.start(WAIT_S)
        assert len(got) == 0


def test_an_added_key_is_allowed_without_a_restart(ring: Keyring) -> None:
    feed = quotes()
    with Publisher(ring.feed(feed, "exchange")) as publisher:
        refused(ring.feed(feed, "stranger", "exchange"))
        ring.allow("exchange", "stranger")
        deliver(publisher, ring.feed(feed, "stranger", "exchange"))


def test_a_wrong_server_key_gets_nothing_and_both_ends_log_it(ring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
    feed = quotes()
    with Publisher(ring.feed(feed, "exchange")) as publisher:
        text = refused(ring.feed(feed, "desk", "london"))
        assert f"it ended the handshake: expected the key {ring.public['london']} (server_keys)" in text
        told(caplog, "slice 0 line A: refused a peer that has another key for us: its server_keys need our public key")
        assert publisher.statistics().refused_peers >= 1


def test_an_unencrypted_peer_gets_nothing_and_both_ends_log_it(ring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
    feed = quotes()
    with Publisher(ring.feed(feed, "exchange")):
        assert "it requires CURVE, and this feed file has no [security]" in refused(feed)
        told(caplog, "its feed file")


def test_an_unencrypted_publisher_is_reported_to_peers_with_keys(ring: Keyring) -> None:
    feed = quotes()
    with Publisher(feed):
        assert "expected" in refused(ring.feed(feed, "desk", "exchange"))


def test_the_endpoint_accepts_only_curve(ring: Keyring) -> None:
    feed = quotes()
    host, _, port = feed.slices[0].endpoints[0].removeprefix("tcp://").rpartition(":")
    with Publisher(ring.feed(feed, "exchange")), socket.create_connection((host, int(port)), 10) as peer:
        peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01")  # the mechanism follows
        greeting = b""
        while len(greeting) < 64 and (part := peer.recv(64)):
            greeting += part
    assert greeting[12:32].rstrip(b"\0") == b"CURVE"


@contextmanager
def two_lines(ring: Keyring) -> Iterator[tuple[Publisher, Feed, Relay]]:
    """A publisher, and a feed whose line A is the publisher's and whose line B is a relay with the archive's key."""
    above, below = quotes(lines=2), quotes(lines=2)
    ends = above.slices[0].endpoints[0], below.slices[0].endpoints[1]
    mixed = msgspec.structs.replace(above, slices=(Slice(endpoints=ends, share=(0, 1)),))
    with (
        Publisher(ring.feed(above, "exchange")) as publisher,
        Relay(ring.feed(above, "archive", "exchange"), ring.feed(below, "archive")) as relay,
    ):
        yield publisher, ring.feed(mixed, "desk", "exchange", "archive"), relay


def test_each_line_has_its_own_key(ring: Keyring) -> None:
    ring.allow("archive", "desk")
    with two_lines(ring) as (publisher, feed, relay):
        deliver(publisher, feed)
        assert relay.statistics().refused_peers == publisher.statistics().refused_peers == 0
        assert relay.statistics().lines[1].blocks


def test_a_line_that_rejected_a_running_subscriber_is_retried(ring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.subscribe.subscription._UNHEARD_NS", 500_000_000)
    with two_lines(ring) as (_, feed, relay):
        subscriber, _ = collected(feed)
        subscriber.start(2 * WAIT_S)  # with line A only
        wait_until(lambda: relay.statistics().refused_peers > 0)
        assert relay.statistics().subscribers == 0
        ring.allow("archive", "desk")
        wait_until(lambda: relay.statistics().subscribers == 1, PATIENCE_S)
        subscriber.stop()


def test_ipc_next_to_encrypted_tcp_is_not_encrypted(ring: Keyring, tmp_path: Path) -> None:
    (tcp,) = quotes().slices[0].endpoints
    (ipc,) = Feed.local("quotes", slices=1, transport="ipc").slices[0].endpoints
    both = Feed(name="quotes", heartbeat_ns=100_000_000, slices=(Slice(endpoints=(tcp, ipc)),))
    alone = msgspec.structs.replace(both, slices=(Slice(endpoints=(ipc,)),))
    with Publisher(ring.feed(both, "exchange")) as publisher:
        deliver(publisher, ring.feed(both, "desk", "exchange"))
        subscriber, _ = collected(alone)
        subscriber.start(PATIENCE_S)
        subscriber.stop()


def test_shared_memory_next_to_encrypted_tcp_delivers(ring: Keyring) -> None:
    feed = quotes(transport="shm")
    with Publisher(ring.feed(feed, "exchange")) as publisher:
        deliver(publisher, ring.feed(feed, "desk", "exchange"))


@pytest.mark.parametrize("size", [10, 300_000, 5_000_000])
def test_messages_of_any_size_pass(ring: Keyring, size: int) -> None:
    feed = quotes()
    subscriber, got = collected(ring.feed(feed, "desk", "exchange"))
    with Publisher(ring.feed(feed, "exchange"), when_full="wait") as publisher:
        subscriber.start(PATIENCE_S)
        payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
        for _ in range(5):
            publisher.publish(b"AAPL.trade", payload)
        assert all(each.payload == payload for each in got.wait(5, PATIENCE_S))
        subscriber.stop()


@pytest.mark.long
def test_thousands_of_filters_pass(ring: Keyring) -> None:
    feed = msgspec.structs.replace(quotes(), key_bytes=6)
    subscriber = Subscriber(ring.feed(feed, "desk", "exchange"))
    got = Collector()
    for number in range(20_000):
        subscriber.on(b"S%05d" % number)(got.message)
    with Publisher(ring.feed(feed, "exchange")) as publisher:
        subscriber.start(PATIENCE_S)
        publisher.publish(b"S19999.trade", b"last")
        assert got.wait(1, PATIENCE_S)[0].payload == b"last"
        assert publisher.statistics().put_out == 0
        subscriber.stop()


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"allowed_keys": ""}, r"^feed 'quotes': security\.allowed_keys was missing"),
        ({"key": "nowhere"}, r"^feed 'quotes': secret key file 'nowhere' was not found"),
    ],
)
def test_a_publisher_with_wrong_security_does_not_start(ring: Keyring, part: dict[str, str], message: str) -> None:
    feed = ring.feed(quotes(), "exchange")
    assert feed.security is not None
    wrong = msgspec.structs.replace(feed, security=msgspec.structs.replace(feed.security, **part))
    with pytest.raises(ConfigError, match=message):
        Publisher(wrong).start()


def test_a_subscriber_without_a_server_key_does_not_start(ring: Keyring) -> None:
    subscriber, _ = collected(ring.feed(quotes(), "desk"))
    with pytest.raises(ConfigError, match=r"^feed 'quotes': security\.server_keys were missing"):
        subscriber.start(WAIT_S)


def test_a_relay_has_separate_keys_for_both_sides(ring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
    above, below = quotes(), quotes()
    with (
        Publisher(ring.feed(above, "exchange")) as publisher,
        Relay(ring.feed(above, "london", "exchange"), ring.feed(below, "london")) as relay,
    ):
        deliver(publisher, ring.feed(below, "desk", "london"))
        text = refused(ring.feed(below, "stranger", "london"))
        assert f"it refused our key {ring.public['stranger']}" in text
        assert relay.statistics().refused_peers >= 1
        told(caplog, f"slice 0: refused key {ring.public['stranger']} at 127.0.0.1")


def test_a_relay_logs_that_its_source_rejects_it(ring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
    above, below = quotes(), quotes()
    with (
        Publisher(ring.feed(above, "exchange")),
        Relay(ring.feed(above, "stranger", "exchange"), below) as relay,
    ):
        told(caplog, f"it refused our key {ring.public['stranger']}, expected that among its allowed_keys")
        assert not relay.statistics().lines[0].is_connected


def archived(ring: Keyring, me: str, feed: Feed, *servers: str) -> Feed:
    return ring.feed(feed, me, *servers, archives=("archive",))


@contextmanager
def recorded(ring: Keyring, directory: Path) -> Iterator[tuple[Feed, Publisher]]:
    """A feed whose archive allows the desk, and its publisher: 500 messages are recorded."""
    feed = msgspec.structs.replace(quotes(), archives=(free_endpoint(),))
    ring.allow("archive", "desk")
    with (
        Publisher(ring.feed(feed, "exchange")) as publisher,
        Recorder(archived(ring, "archive", feed, "exchange"), directory, serve=True) as recorder,
    ):
        publish_numbered(publisher, 0, 500)
        wait_recorded(recorder, 500)
        yield feed, publisher


def test_a_recorder_and_its_archive_require_keys(
    ring: Keyring, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recorded(ring, tmp_path / "recordings") as (feed, publisher):
        client = ArchiveClient(archived(ring, "desk", feed, "exchange"), timeout=60)
        asked = client.blocks(0, start=(publisher.epoch, 0), stop=(publisher.epoch, 500))
        assert all_numbers(asked) == list(range(500))
        began = time.monotonic()
        with pytest.raises(ArchiveError, match="it refused our key"):
            ArchiveClient(archived(ring, "stranger", feed, "exchange"), timeout=60).about()
        assert time.monotonic() - began < 30, "a refusal must not wait for the timeout"
        told(caplog, f"quotes: refused key {ring.public['stranger']} at 127.0.0.1")
        with pytest.raises(ArchiveError, match="it requires CURVE, and this feed file has no"):
            ArchiveClient(feed, timeout=60).about()
    manifest = next((tmp_path / "recordings").rglob("manifest.json")).read_text()
    assert "key_secret" not in manifest


def test_a_late_subscriber_joins_from_an_encrypted_archive(ring: Keyring, tmp_path: Path) -> None:
    with recorded(ring, tmp_path / "recordings") as (feed, publisher):
        subscriber, got = collected(archived(ring, "desk", feed, "exchange"), on_gap="repair")
        subscriber.start(PATIENCE_S, since=0)
        publish_numbered(publisher, 500, 500)
        publisher.flush()
        found = [int.from_bytes(each.payload[:8], "little") for each in got.wait(1_000, PATIENCE_S)]
        subscriber.stop()
    assert found == list(range(1_000))


def test_heartbeats_pass_through_curve(ring: Keyring) -> None:
    feed = quotes()
    with Publisher(ring.feed(feed, "exchange")), Heartbeats(ring.feed(feed, "desk", "exchange")) as heartbeats:

        def is_heard() -> bool:
            heartbeats.listen(0.1)
            return heartbeats.lines[0].heard > 0

        wait_until(is_heard)
