"""Peers send a publisher invalid messages, or do not read: an honest subscriber is unaffected."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from random import Random
from urllib.parse import urlsplit

import msgspec

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.block.form.format import ACCEPT_KEY, CONFIRM_KEY, HEARTBEAT_KEY
from blackbox.publish.listeners import traffic
from blackbox.testing import Collector
from tests.process_state import resident_bytes
from tests.publish.hostile import MORE, Peer, acceptance, confirmation, frame, subscription, unsubscription
from tests.torture.outcome import Outcome

KEYS = [b"%04d" % number for number in range(500)]
MESSAGES = 50
MOST_DEAF = 12
MOST_HUGE_BYTES = 8 << 20
MOST_HELD_BYTES = (MOST_DEAF + 2) * (32 * traffic._MOST_UNHEARD_BYTES + MOST_HUGE_BYTES)
"""Limit on growth. libzmq uses 32 times the bytes of each part of a peer's unfinished multipart message."""

Act = Callable[[Random, Peer, int], None]


def send_huge_subscription(random: Random, peer: Peer, epoch: int) -> None:
    peer.send(subscription(bytes(random.randint(512, MOST_HUGE_BYTES))))


def announce_huge_frame(random: Random, peer: Peer, epoch: int) -> None:
    peer.send(b"\2" + struct.pack(">Q", random.randint(1_000, (1 << 63) - 1)), bytes(random.randint(0, 1 << 20)))


def send_endless_message(random: Random, peer: Peer, epoch: int) -> None:
    part = frame(bytes(random.choice([0, 1, 30, 500])), MORE)
    for _ in range(random.randint(1, 64)):
        if not peer.send(part * (65_536 // len(part))):
            return


def ask_without_reading(random: Random, peer: Peer, epoch: int) -> None:
    peer.send(subscription(CONFIRM_KEY), *(confirmation() for _ in range(random.randint(1, 5_000))))


def unsubscribe_others(random: Random, peer: Peer, epoch: int) -> None:
    prefixes = [b"", HEARTBEAT_KEY, CONFIRM_KEY, ACCEPT_KEY, *random.sample(KEYS, 50)]
    peer.send(*(unsubscription(prefix) for prefix in prefixes))


def accept_unsent_confirmations(random: Random, peer: Peer, epoch: int) -> None:
    peer.send(subscription(b""), subscription(HEARTBEAT_KEY))
    peer.send(*(acceptance(random.randbytes(8), epoch) for _ in range(random.randint(1, 1_000))))


def change_filters(random: Random, peer: Peer, epoch: int) -> None:
    sizes = random.choice([(0, 4), (4, 4), (5, 500)])
    prefixes = [random.randbytes(random.randint(*sizes)) for _ in range(random.randint(1, 20_000))]
    peer.send(*(random.choice([subscription, unsubscription])(prefix) for prefix in prefixes))


def send_anything(random: Random, peer: Peer, epoch: int) -> None:
    peer.send(random.randbytes(random.randint(1, 100_000)))


ACTS: tuple[Act, ...] = (
    send_huge_subscription,
    announce_huge_frame,
    send_endless_message,
    ask_without_reading,
    unsubscribe_others,
    accept_unsent_confirmations,
    change_filters,
    send_anything,
)


def send_no_handshake(random: Random, feed: Feed) -> None:
    """Send random bytes instead of a handshake."""
    place = urlsplit(feed.slices[0].endpoints[0])
    with socket.create_connection((place.hostname, place.port)) as peer:
        peer.sendall(random.randbytes(random.randint(0, 10_000)))


def attack(random: Random, seconds: float) -> Outcome:
    """Let a hostile peer do one thing, then publish to an honest subscriber; some peers stay without reading."""
    feed = msgspec.structs.replace(Feed.local("hostile-subscribers", slices=1, key_bytes=4), max_topics=10_000)
    subscriber, got = Subscriber(feed, slow=SlowPolicy(max_lag=3_600)), Collector()
    subscriber.on_batch(b"")(got.batch)
    found: list[str] = []
    stay: list[Peer] = []
    tried = 0
    publisher = Publisher(feed).start()
    subscriber.start()
    before = resident_bytes()
    end = time.monotonic() + seconds
    while (tried == 0 or time.monotonic() < end) and not found:
        if random.random() < 0.1:
            send_no_handshake(random, feed)
        peer = Peer(feed)
        act = random.choice(ACTS)
        act(random, peer, publisher.epoch)
        if random.random() < 0.3:
            peer.send(subscription(b""))
            stay.append(peer)
        else:
            peer.close()
        if len(stay) > MOST_DEAF:
            stay.pop(random.randrange(len(stay))).close()
        for _ in range(MESSAGES):
            publisher.publish(random.choice(KEYS), random.randbytes(100))
        tried += 1
        try:
            got.wait(tried * MESSAGES)
        except AssertionError:
            found.append(f"after {act.__name__}: {len(got)} of {tried * MESSAGES} messages were received")
        if publisher.statistics().unwanted:
            found.append(f"after {act.__name__}: {publisher.statistics().unwanted} messages had no subscriber")
        if resident_bytes() - before > MOST_HELD_BYTES:
            found.append(f"after {act.__name__}: {resident_bytes() - before} more bytes are held")
    if publisher.statistics().subscribers > 1:
        found.append(f"{publisher.statistics().subscribers} subscribers were counted, 1 is honest")
    publisher.close(timeout=600)
    subscriber.run(until_end=True)
    lost = subscriber.statistics().received.gaps
    if lost:
        found.append(f"{lost} messages were lost")
    for peer in stay:
        peer.close()
    return Outcome(tried, "hostile subscribers", found)
