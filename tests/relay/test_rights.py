"""Rights by key and prefix: topics that a key may not read are refused and reported, and affect no other peer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from blackbox import ConfigError, Feed, Publisher, Recorder, Relay
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.connection import Fetched
from blackbox.block.form.block import Block
from blackbox.block.form.format import CONFIRM_KEY, FLAG_REFUSED, SHARED_KEY, WANT_KEY
from blackbox.errors import ArchiveError, RightsError
from blackbox.publish.listeners.subscriptions import UNSUBSCRIBE
from blackbox.testing import wait_until
from blackbox.transport.security.curve import keys_of_line, use_keys
from tests.archive.archives import free_endpoint
from tests.keyring import Keyring
from tests.process_state import linux_only
from tests.publish.subscribers import serves
from tests.relay.relays import PATIENCE_S, changes_of, collected


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    ring = Keyring(tmp_path, "exchange", "london", "desk", "archive", "other")
    ring.allow("exchange", "desk", "london", "archive", "other")
    ring.allow("london", "desk", "other")
    ring.allow("archive", "desk", "other")
    return ring


def quotes() -> Feed:
    return msgspec.structs.replace(Feed.local("quotes", slices=1, key_bytes=4), heartbeat_ns=100_000_000)


def give(ring: Keyring, text: str, by: str = "exchange") -> None:
    """Replace the rights granted by a server."""
    new = ring.directory / "rights.new"
    new.write_text(text)
    new.rename(ring.directory / f"allowed-by-{by}" / "rights.toml")


@contextmanager
def asking(feed: Feed) -> Iterator[zmq.Socket[bytes]]:
    """A SUB socket that is connected to a feed."""
    endpoint = feed.slices[0].lines[0]
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.linger, sub.rcvtimeo = 0, 1_000 * int(PATIENCE_S)
        use_keys(sub, keys_of_line(feed, 0, endpoint))
        sub.connect(endpoint)
        yield sub


def refused(feed: Feed, *prefixes: bytes) -> str:
    """Check that a subscriber's start fails at once, long before its timeout; return its error."""
    subscriber, got = collected(feed, *prefixes)
    began = time.monotonic()
    with pytest.raises(RightsError) as caught:
        subscriber.start(10 * PATIENCE_S)
    assert time.monotonic() - began < 5 * PATIENCE_S
    assert len(got) == 0
    return str(caught.value)


def test_a_key_without_the_right_is_refused_and_logged(ring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
    give(ring, 'desk = ["AAPL", "MS"]\nlondon = [""]\n"*" = ["INDE"]\n')
    feed = quotes()
    endpoint = feed.slices[0].lines[0]
    desk = ring.feed(feed, "desk", "exchange")
    other, got = collected(ring.feed(feed, "london", "exchange"))
    with Publisher(ring.feed(feed, "exchange")) as publisher:
        other.start(PATIENCE_S)
        said = refused(desk, b"IBM.", b"AAPL.")
        assert said == (
            f"feed 'quotes' slice 0: {endpoint} refused the topics b'IBM.': "
            "our key has no right to that, expected it among the prefixes of its rights.toml"
        )
        assert "feed 'quotes': refused key 'desk' at 127.0.0.1:" in caplog.text
        assert caplog.text.count("it has no right to that (rights.toml)") == 1
        assert publisher.statistics().refused >= 2
        for prefix in (b"", b"AAP"):
            assert f"refused the topics {prefix!r}:" in refused(desk, prefix)
        assert "refused the topics b'AAPL.':" in refused(ring.feed(feed, "other", "exchange"), b"AAPL.")
        for name, topic in (("other", b"INDEX.x"), ("desk", b"AAPL.trade"), ("desk", b"MSFT.x")):
            serves(publisher, ring.feed(feed, name, "exchange"), topic, [b"x"])
        got.wait(3)
        other.stop()


def test_refused_filters_are_inactive_and_the_others_active(ring: Keyring) -> None:
    give(ring, 'desk = ["AAPL"]')
    feed = quotes()
    other, got = collected(ring.feed(feed, "other", "exchange"))
    with Publisher(ring.feed(feed, "exchange")) as publisher, asking(ring.feed(feed, "desk", "exchange")) as sub:
        other.start(PATIENCE_S)
        nonce = CONFIRM_KEY + b"12345678"
        for prefix in (b"MSFT", b"", b"A", b"AAP", WANT_KEY + b"MSFT", SHARED_KEY + b"MSFT", b"\0", b"AAPL", nonce):
            sub.subscribe(prefix)
        assert sub.recv_multipart()[0] == nonce
        for number in range(100):
            publisher.publish(b"AAPL.x" if number % 10 == 0 else b"MSFT.x", b"%d" % number)
        came = 0
        while came < 10:
            key, header, _ = sub.recv_multipart()
            assert key == b"AAPL"
            came += int.from_bytes(header[12:16], "little")
        got.wait(100)
        assert not sub.poll(100)
        (desk,) = [peer for peer in publisher.statistics().peers if peer.key == "desk"]
        assert (desk.subscriptions, desk.refused, desk.line) == (1, 6, "A")
        other.stop()


def test_revoked_rights_and_keys_end_only_their_subscribers(ring: Keyring) -> None:
    feed = quotes()
    desk, _ = collected(ring.feed(feed, "desk", "exchange"), b"AAPL.")
    other, got = collected(ring.feed(feed, "other", "exchange"), b"AAPL.")
    with Publisher(ring.feed(feed, "exchange")) as publisher:
        desk.start(PATIENCE_S)
        other.start(PATIENCE_S)
        give(ring, 'desk = ["MSFT"]')
        with pytest.raises(RightsError, match="refused the topics b'AAPL.':"):
            desk.run()
        wait_until(lambda: publisher.statistics().put_out == 1, PATIENCE_S)
        for number in range(100):
            publisher.publish(b"AAPL.x", b"%d" % number)
        got.wait(100)
        assert other.statistics().received.gaps == 0
        (ring.directory / "allowed-by-exchange" / "other.key").unlink()
        wait_until(lambda: publisher.statistics().put_out == 2, PATIENCE_S)
        wait_until(lambda: publisher.statistics().refused_peers > 0, PATIENCE_S, "it reconnects")
        wait_until(lambda: publisher.statistics().peers == (), PATIENCE_S, "its subscriptions are removed")
        other.stop()


def test_malformed_rights_are_named_at_the_start_and_later_grant_nothing(
    ring: Keyring, caplog: pytest.LogCaptureFixture
) -> None:
    for text, message in (
        ("desk = 7", "'desk' was 7, expected a list of prefixes of topics"),
        ('desk = ["AAPL."]', r"'desk' had the prefix b'AAPL.', expected at most key_bytes = 4 bytes"),
        ('desk = ["\\u0000H"]', "expected no zero byte first"),
        ("desk = [", "are not TOML"),
    ):
        give(ring, text)
        with pytest.raises(ConfigError, match=message):
            Publisher(ring.feed(quotes(), "exchange")).start()
    give(ring, "")
    feed = quotes()
    with Publisher(ring.feed(feed, "exchange")):
        give(ring, 'desk = [""')
        wait_until(lambda: "until that is corrected no key has a right" in caplog.text, PATIENCE_S)
        assert "refused the topics b'AAPL.':" in refused(ring.feed(feed, "other", "exchange"), b"AAPL.")


def in_memory(feed: Feed) -> Feed:
    (part,) = feed.slices
    endpoints = *part.endpoints, f"shm://rights-{part.endpoints[0][-5:]}"
    return msgspec.structs.replace(feed, slices=(msgspec.structs.replace(part, endpoints=endpoints),))


@contextmanager
def relayed(
    ring: Keyring, above: Feed | None = None, below: Feed | None = None
) -> Iterator[tuple[Publisher, Relay, Feed, Feed]]:
    """A publisher, a relay with London's key, and the feed below it for the desk and for another key."""
    above, below = above or quotes(), below or quotes()
    with (
        Publisher(ring.feed(above, "exchange")) as publisher,
        Relay(ring.feed(above, "london", "exchange"), ring.feed(below, "london")) as relay,
    ):
        yield publisher, relay, ring.feed(below, "desk", "london"), ring.feed(below, "other", "london")


@pytest.mark.parametrize(
    ("is_above", "is_below"),
    [
        (False, False),
        pytest.param(True, True, marks=linux_only),
        *(pytest.param(each, not each, marks=[linux_only, pytest.mark.long]) for each in (False, True)),
    ],
)
def test_a_relay_refuses_what_it_may_not_read_and_others_miss_nothing(
    ring: Keyring, is_above: bool, is_below: bool
) -> None:
    """On sockets and in shared memory. It keeps a filter that a refused one covers, and applies its own rights."""
    give(ring, 'london = ["AAPL", "OURS"]')
    give(ring, 'desk = ["AAPL"]\nother = [""]', by="london")
    above = in_memory(quotes()) if is_above else quotes()
    below = in_memory(quotes()) if is_below else quotes()
    with relayed(ring, above, below) as (publisher, relay, desk, other):
        assert "refused the topics b'OURS':" in refused(desk, b"OURS")
        subscriber, got = collected(desk, b"AAPL.")
        subscriber.start(PATIENCE_S)
        wait_until(lambda: [peer.key for peer in relay.statistics().peers] == ["desk"], PATIENCE_S, "one peer")
        assert relay.statistics().refused_below > 0
        changes = changes_of(publisher)
        for prefix in (b"MSFT", b"AAP", b""):
            publisher.publish(b"AAPL.x", b"")
            assert f"refused the topics {prefix!r}" in refused(other, prefix)
            publisher.publish(b"AAPL.x", prefix)
        got.wait(6)
        assert not {UNSUBSCRIBE + b"AAPL", UNSUBSCRIBE + SHARED_KEY + b"AAPL"}.intersection(changes)
        assert relay.statistics().lines[0].transport == ("shm" if is_above else "tcp")
        assert subscriber.statistics().received.transport == ("shm" if is_below else "tcp")
        wait_until(lambda: relay.statistics().lines[0].filters_above == 1, PATIENCE_S)
        subscriber.stop()
        assert subscriber.statistics().received.gaps == 0
        wait_until(lambda: relay.statistics().lines[0].filters_above == 0, PATIENCE_S)


@pytest.mark.parametrize("is_relayed", [False, True])
def test_refused_filters_are_never_confirmed_however_many(ring: Keyring, is_relayed: bool) -> None:
    """A confirmation arrives once all filters without a right are reported and withdrawn."""
    give(ring, 'desk = ["AAPL"]\nlondon = ["AAPL"]')
    above = quotes()
    with (
        relayed(ring, above) as (_, _, desk, _),
        asking(desk if is_relayed else ring.feed(above, "desk", "exchange")) as sub,
    ):
        asked = {b"%04d" % number for number in range(250)}
        for prefix in asked:
            sub.subscribe(prefix)
        for number in range(4):
            nonce = CONFIRM_KEY + b"%08d" % number
            sub.subscribe(nonce)
            block = Block.decode(*sub.recv_multipart())
            assert block.key == nonce
            assert bool(block.flags & FLAG_REFUSED) is bool(asked)
            told = block.ends() if asked else {}
            assert len(told) <= 100
            for prefix in told:
                sub.unsubscribe(prefix)
                asked.remove(prefix)


def test_a_right_lost_by_a_relay_is_reported_only_to_its_users(ring: Keyring) -> None:
    with relayed(ring) as (publisher, relay, of_desk, of_other):
        desk, _ = collected(of_desk, b"MSFT.")
        other, got = collected(of_other, b"AAPL.")
        desk.start(PATIENCE_S)
        other.start(PATIENCE_S)
        give(ring, 'london = ["AAPL"]')
        wait_until(lambda: desk.is_done, PATIENCE_S)
        with pytest.raises(RightsError, match="refused the topics b'MSFT.':"):
            desk.stop()
        wait_until(lambda: relay.statistics().lines[0].is_confirmed, PATIENCE_S)
        wait_until(lambda: relay.statistics().put_out == 1, PATIENCE_S)
        publisher.publish(b"AAPL.x", b"1")
        got.wait(1)
        other.stop()


def test_refused_filters_are_not_confirmed_on_inproc() -> None:
    above, below = quotes(), Feed.local("quotes", slices=1, key_bytes=4, transport="inproc")
    above = msgspec.structs.replace(above, max_subscriptions=1)
    below = msgspec.structs.replace(below, heartbeat_ns=above.heartbeat_ns)
    with Publisher(above), Relay(above, below):
        said = refused(below, *(b"%04d" % number for number in range(50)))
        assert said.endswith("there are more subscriptions than its max_subscriptions")


def test_a_refusal_of_on_demand_is_reported_below_a_relay() -> None:
    above, below = quotes(), quotes()
    with Publisher(above) as publisher, Relay(above, below):

        @publisher.on_demand
        def look(prefix: bytes, is_wanted: bool) -> None:
            if is_wanted and prefix.startswith(b"IBM."):
                raise RightsError("not available")

        subscriber, got = collected(below, b"AAPL.")
        subscriber.start(PATIENCE_S)
        for prefix in (b"IBM.", b"IBM.x", b"IBM."):
            assert f"refused the topics {prefix!r}: it cannot deliver them" in refused(below, prefix)
        publisher.publish(b"AAPL.x", b"1")
        got.wait(1)
        subscriber.stop()


def test_an_archive_serves_what_a_key_may_read(ring: Keyring, tmp_path: Path) -> None:
    """Blocks, images, and the past of late subscribers."""
    for by in ("exchange", "archive"):
        give(ring, 'desk = ["AAPL", "MSFT"]', by=by)
    feed = msgspec.structs.replace(quotes(), archives=(free_endpoint(),))
    desk = ring.feed(feed, "desk", "exchange", archives=("archive",))
    client, no_right = ArchiveClient(desk, timeout=PATIENCE_S), "the key has no right to topics that begin with"
    with (
        Publisher(ring.feed(feed, "exchange")) as publisher,
        Recorder(ring.feed(feed, "archive", "exchange"), tmp_path / "recordings", serve=True),
    ):
        for number in range(90):
            publisher.publish((b"AAPL.x", b"MSFT.x", b"IBM.x")[number % 3], b"%d" % number)
        publisher.wait_recorded(PATIENCE_S)
        found = next(client.blocks(0, b"AAPL.", stop_ns=time.time_ns()))
        assert isinstance(found, Fetched)
        assert found.block.key == b"AAPL"
        for prefix in (b"", b"IBM."):
            with pytest.raises(ArchiveError, match=no_right):
                next(client.blocks(0, prefix))
        for prefixes in ([b""], [b"AAPL.", b"IBM."]):
            with pytest.raises(ArchiveError, match=no_right):
                client.image(0, prefixes)
        narrowed = client.image(0, may_narrow=True, timeout=PATIENCE_S)
        assert [block.topics for block in narrowed.blocks] == [[b"AAPL.x"], [b"MSFT.x"]]
        for start, wanted in (
            ({"snapshot": "latest"}, {87, 88}),
            ({"since": 0}, {number for number in range(90) if number % 3 != 2}),
        ):
            subscriber, got = collected(desk, b"AAPL.", b"MSFT.")
            subscriber.start(PATIENCE_S, **start)  # type: ignore[arg-type]
            assert {int(each.payload) for each in got.wait(len(wanted), PATIENCE_S)} == wanted
            subscriber.stop()
