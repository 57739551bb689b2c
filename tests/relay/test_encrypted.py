"""Feeds with `[security]`: peers with an allowed key get messages; others get nothing, and the reason is reported."""

from __future__ import annotations

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
from blackbox.feed.slice import Slice
from blackbox.services.monitor.heartbeats import Heartbeats
from blackbox.testing import Collector, wait_until
from tests.archive.archives import all_numbers, free_endpoint
from tests.archive.recorders import publish_numbered, wait_recorded
from tests.keyring import Keyring
from tests.publish.subscribers import serves
from tests.relay.relays import PATIENCE_S, collected

WAIT_S = 2.0


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    """The exchange allows London, the desk and the archive; London allows the desk."""
    ring = Keyring(tmp_path, "exchange", "london", "desk", "archive", "stranger")
    ring.allow("exchange", "desk", "london", "archive")
    ring.allow("london", "desk")
    return ring


def quotes(lines: int = 1, transport: Literal["tcp", "ipc", "shm"] = "tcp") -> Feed:
    feed = Feed.local("quotes", slices=1, lines=lines, transport=transport)
    return msgspec.structs.replace(feed, heartbeat_ns=100_000_000)


def refused(feed: Feed, *prefixes: bytes) -> str:
    """Check that a subscriber with this feed gets no confirmation and no message; return its error.

    Without a known reason it gets more time: a busy machine is slow.
    """
    for seconds in (0.5, WAIT_S, 5 * WAIT_S, PATIENCE_S):
        subscriber, got = collected(feed, *prefixes)
        with pytest.raises(NotConfirmedError) as caught:
            subscriber.start(seconds)
        assert len(got) == 0
        if " s: " in str(caught.value):
            break
    return str(caught.value)


def test_refused_peers_get_nothing_and_both_ends_log_it(ring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
    feed = quotes()

    def told(text: str) -> None:
        wait_until(lambda: text in caplog.text, what=f"{text!r} in the log")

    with Publisher(ring.feed(feed, "exchange"), when_full="wait") as publisher:
        serves(publisher, ring.feed(feed, "desk", "exchange"))
        assert publisher.statistics().refused_peers == 0
        text = refused(ring.feed(feed, "stranger", "exchange"))
        assert f" s: it refused our key {ring.public['stranger']}" in text
        told(f"feed 'quotes' slice 0: refused key {ring.public['stranger']} at 127.0.0.1: not among allowed")
        wait_until(lambda: publisher.statistics().refused_peers >= 1, what="the refusal is counted")
        text = refused(ring.feed(feed, "desk", "london"))
        assert f"it ended the handshake: expected the key {ring.public['london']} (server_keys)" in text
        told("slice 0 line A: refused a peer that has another key for us: its server_keys need our public key")
        assert "it requires CURVE, and this feed file has no [security]" in refused(feed)
        told("its feed file")
        ring.allow("exchange", "stranger")
        payloads = [bytes(range(256)) * (size // 256) for size in (0, 300_000, 5_000_000)]
        serves(publisher, ring.feed(feed, "stranger", "exchange"), payloads=payloads)
    with Publisher(feed):
        assert "expected" in refused(ring.feed(feed, "desk", "exchange")), "the publisher does not encrypt"


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
        serves(publisher, ring.feed(feed, "desk", "exchange"), b"AAPL.trade")
        subscriber, got = collected(archive, b"A")
        subscriber.start(PATIENCE_S)
        publisher.publish(b"BAC.trade", b"not for you")
        publisher.publish(b"AAPL.trade", b"for you")
        assert got.wait(1, PATIENCE_S)[0].payload == b"for you"
        subscriber.stop()
        text = refused(archive, b"B")
        assert "slice 1: " in text
        assert "it refused our key" in text


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


def test_a_line_with_another_key_that_rejected_a_running_subscriber_is_retried(
    ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blackbox.receive.publishers.lines._UNHEARD_NS", 500_000_000)
    monkeypatch.setattr("blackbox.receive.supervise.confirmation_wait._SECOND_LINE_S", 0.2)
    with two_lines(ring) as (publisher, feed, relay):
        subscriber, _ = collected(feed)
        subscriber.start()  # with line A only
        wait_until(lambda: relay.statistics().refused_peers > 0)
        assert relay.statistics().subscribers == 0
        ring.allow("archive", "desk")
        wait_until(lambda: relay.statistics().subscribers == 1, PATIENCE_S)
        serves(publisher, feed)
        assert publisher.statistics().refused_peers == 0
        assert relay.statistics().lines[1].blocks
        subscriber.stop()


def test_ipc_and_shared_memory_next_to_encrypted_tcp_are_not_encrypted(ring: Keyring) -> None:
    (tcp,), (ipc,) = quotes().slices[0].endpoints, quotes(transport="ipc").slices[0].endpoints
    both = msgspec.structs.replace(quotes(), slices=(Slice(endpoints=(tcp, ipc)),))
    alone = msgspec.structs.replace(both, slices=(Slice(endpoints=(ipc,)),))
    with Publisher(ring.feed(both, "exchange")) as publisher:
        serves(publisher, ring.feed(both, "desk", "exchange"))
        serves(publisher, alone)
    feed = quotes(transport="shm")
    with Publisher(ring.feed(feed, "exchange")) as publisher:
        serves(publisher, ring.feed(feed, "desk", "exchange"))


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


def test_wrong_security_is_reported_at_the_start(ring: Keyring) -> None:
    feed = ring.feed(quotes(), "desk")
    with pytest.raises(ConfigError, match=r"^feed 'quotes': security\.server_keys were missing"):
        collected(feed)[0].start(WAIT_S)
    assert feed.security is not None
    open_to_none = msgspec.structs.replace(feed.security, allowed_keys="")
    with pytest.raises(ConfigError, match=r"^feed 'quotes': security\.allowed_keys was missing"):
        Publisher(msgspec.structs.replace(feed, security=open_to_none)).start()


def test_a_relay_has_separate_keys_for_both_sides(ring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
    above, below = quotes(), quotes()
    with Publisher(ring.feed(above, "exchange")) as publisher:
        with Relay(ring.feed(above, "london", "exchange"), ring.feed(below, "london")) as relay:
            serves(publisher, ring.feed(below, "desk", "london"))
            text = refused(ring.feed(below, "stranger", "london"))
            assert f"it refused our key {ring.public['stranger']}" in text
            wait_until(lambda: relay.statistics().refused_peers >= 1, what="the refusal is counted")
            wait_until(lambda: f"slice 0: refused key {ring.public['stranger']} at 127.0.0.1" in caplog.text)
        with Relay(ring.feed(above, "stranger", "exchange"), below) as relay:
            why = f"it refused our key {ring.public['stranger']}, expected that among its allowed_keys"
            wait_until(lambda: why in caplog.text)
            assert not relay.statistics().lines[0].is_connected


def test_a_recorder_its_archive_and_its_readers_require_keys(
    ring: Keyring, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feed = msgspec.structs.replace(quotes(), archives=(free_endpoint(),))
    ring.allow("archive", "desk")

    def of(me: str) -> Feed:
        return ring.feed(feed, me, "exchange", archives=("archive",))

    with (
        Publisher(ring.feed(feed, "exchange")) as publisher,
        Recorder(of("archive"), tmp_path / "recordings", serve=True) as recorder,
    ):
        publish_numbered(publisher, 0, 500)
        wait_recorded(recorder, 500)
        asked = ArchiveClient(of("desk"), timeout=200).blocks(
            0, start=(publisher.epoch, 0), stop=(publisher.epoch, 500)
        )
        assert all_numbers(asked) == list(range(500))
        began = time.monotonic()
        with pytest.raises(ArchiveError, match="it refused our key"):
            ArchiveClient(of("stranger"), timeout=240).about()
        assert time.monotonic() - began < 120, "a refusal must not wait for the timeout"
        wait_until(lambda: f"quotes: refused key {ring.public['stranger']} at 127.0.0.1" in caplog.text)
        with pytest.raises(ArchiveError, match="it requires CURVE, and this feed file has no"):
            ArchiveClient(feed, timeout=200).about()
        subscriber, got = collected(of("desk"), on_gap="repair")
        subscriber.start(PATIENCE_S, since=0)
        publish_numbered(publisher, 500, 500)
        publisher.flush()
        found = [int.from_bytes(each.payload[:8], "little") for each in got.wait(1_000, PATIENCE_S)]
        subscriber.stop()
        assert found == list(range(1_000))
        with Heartbeats(of("desk")) as heartbeats:
            while not heartbeats.lines[0].heard:
                heartbeats.listen(0.1)
    manifest = next((tmp_path / "recordings").rglob("manifest.json")).read_text()
    assert "key_secret" not in manifest
