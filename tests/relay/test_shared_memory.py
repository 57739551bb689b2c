"""Relays and shared memory, below and above."""

from __future__ import annotations

import gc
import os
import signal
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import Batch, ConfigError, Feed, Publisher, Relay, Subscriber
from blackbox.errors import EndpointError
from blackbox.testing import wait_until
from tests.examples import first_of
from tests.process_state import linux_only
from tests.receive.shared import by_sockets, came_by, mapped, numbers_in, publish_numbers, shared_state
from tests.receive.subscribers import PATIENT
from tests.relay.relays import PATIENCE_S, chain
from tests.support import Script

pytestmark = linux_only

KIB = 1 << 10
RELAY = """
    relay = Relay(msgspec.json.decode(input(), type=Feed), feed).start()
    say("started")
    input()
"""
READER = """
    subscriber, seen = Subscriber(feed, slow=SlowPolicy(max_lag=3_600)), 0
    @subscriber.on_batch(b"")
    def count(batch):
        global seen
        seen += len(batch)
    subscriber.start(timeout=200)
    say(subscriber.statistics().received.transport)
    for command in iter(input, "end"):
        say(seen, subscriber.statistics().received.gaps)
"""


def shm_chain(above: str = "tcp", below: str = "shm", **settings: Any) -> list[Feed]:
    """The same feed at its source and below a relay."""
    return chain(transport=above, below=below, **settings)


def relay_script(above: Feed, below: Feed) -> Script:
    script = Script(RELAY, below)
    script.tell(msgspec.json.encode(above).decode())
    script.expect("started")
    return script


class Blocks:
    """Every block that a subscriber gets, byte by byte, and the numbers of its messages."""

    def __init__(self, feed: Feed, prefix: bytes = b"") -> None:
        self.subscriber = Subscriber(feed, slow=PATIENT)
        self.blocks: list[tuple[Any, ...]] = []
        self.numbers: list[int] = []
        self.subscriber.on_batch(prefix)(self.note)

    def note(self, batch: Batch) -> None:
        block = batch.block
        body = bytes(block.body)
        self.blocks.append((block.slice_id, block.key, block.epoch, block.sequence, block.ts_out, block.count, body))
        self.numbers += numbers_in(batch)


def writer_of(relay: Relay) -> Any:
    shared = relay._slices[0].sockets.shared
    assert shared is not None
    return shared


def publish_topics(publisher: Publisher, first: int, stop: int) -> None:
    rows = numpy.arange(first, stop, dtype=numpy.int64).reshape(-1, 1)
    topics = tuple(b"K%d" % number for number in range(8))
    publisher.publish_many(topics, (rows[:, 0] % 8).astype(numpy.int32), rows.view(numpy.uint8))


SOURCE = """
    publisher = Publisher(feed, when_full="wait").start()
    say("started")
    for first in map(int, iter(input, "end")):
        for number in range(first, first + 100):
            publisher.publish(b"T", number.to_bytes(8, "little"))
        publisher.flush()
        say("sent")
    publisher.close()
"""


def transport_of(relay: Relay) -> str:
    return relay.statistics().lines[0].transport


@pytest.mark.parametrize(
    ("lines", "above", "key_bytes"),
    first_of([(2, "shm", 2), (1, "shm", 0), (2, "tcp", 0), (1, "tcp", 2)], keep=2),
)
def test_subscribers_on_sockets_and_in_memory_get_the_bytes_of_the_publisher(
    lines: int, above: str, key_bytes: int
) -> None:
    source, below = shm_chain(above, lines=lines, slices=2, key_bytes=key_bytes, block_bytes=16 * KIB)
    # A publisher stamps a block separately for memory and for each line: with one line the relay reads from memory if
    # possible.
    direct = Blocks(source if lines == 1 else by_sockets(source))
    on_tcp, in_memory = Blocks(by_sockets(below)), Blocks(below)
    total = 60_000
    with Publisher(source, when_full="wait") as publisher, Relay(source, below, when_full="wait"):
        for each in (direct, on_tcp, in_memory):
            each.subscriber.start(PATIENCE_S)
        assert (came_by(on_tcp.subscriber), came_by(in_memory.subscriber)) == ("tcp", "shm")
        for first in range(0, total, 3_000):
            publish_topics(publisher, first, first + 3_000)
        publisher.publish(b"K1", bytes(100 * KIB - 8 * 8))  # larger than a small place
        publisher.flush()
        for each in (direct, on_tcp, in_memory):
            wait_until(lambda each=each: len(each.numbers) == total + 1, 60)  # type: ignore[misc]
        for each in (direct, on_tcp, in_memory):
            each.subscriber.stop()
    assert sorted(direct.numbers)[1:] == list(range(total))
    if lines == 2:
        for each in (direct, on_tcp, in_memory):
            each.blocks = [block[:4] + block[5:] for block in each.blocks]
    assert sorted(in_memory.blocks) == sorted(on_tcp.blocks) == sorted(direct.blocks)
    received = in_memory.subscriber.statistics().received
    assert (received.gaps, received.malformed) == (0, 0)
    assert (received.duplicates > 0) == (lines == 2)


def test_only_wanted_blocks_are_read_from_memory_and_written_to_it() -> None:
    source, below = shm_chain("shm", "shm", key_bytes=2, heartbeat_ns=50_000_000)
    some, everything, at_source = Blocks(below, b"K3"), Blocks(by_sockets(below)), Blocks(source)
    with Publisher(source, when_full="wait") as publisher, Relay(source, below, when_full="wait") as relay:
        some.subscriber.start(PATIENCE_S)
        assert transport_of(relay) == "shm"
        assert publisher.wants(b"K3")
        assert not publisher.wants(b"K4")
        at_source.subscriber.start(PATIENCE_S)
        assert relay.statistics().lines[0].filters_above == 1
        wait_until(lambda: relay.statistics().subscribers == 1)
        publish_topics(publisher, 0, 800)
        wait_until(lambda: len(some.numbers) == 100 and len(at_source.numbers) == 800)
        assert relay.statistics().messages == 100
        everything.subscriber.start(PATIENCE_S)
        publish_topics(publisher, 800, 1_600)
        wait_until(lambda: len(some.numbers) == 200 and len(everything.numbers) == 800)
        written = writer_of(relay).state.following
        assert written == len(some.blocks)
        some.subscriber.stop()
        wait_until(lambda: writer_of(relay).state.readers == 0)
        publish_topics(publisher, 1_600, 2_400)
        wait_until(lambda: len(everything.numbers) == 1_600)
        assert writer_of(relay).state.following == written
        everything.subscriber.stop()
        wait_until(lambda: relay.statistics().lines[0].filters_above == 0)
        at_source.subscriber.stop()


def test_a_waiting_relay_waits_for_a_stopped_reader_and_not_for_a_killed_one() -> None:
    source, below = shm_chain(block_bytes=4 * KIB)
    other = Blocks(below)
    with (
        Publisher(source, when_full="wait", hwm_blocks=4) as publisher,
        Relay(source, below, when_full="wait", hwm_blocks=20) as relay,
        Script(READER, below) as stopped,
    ):
        stopped.expect("shm")
        other.subscriber.start(PATIENCE_S)
        published = 0

        def stop_it_and_wait() -> None:
            nonlocal published
            waits = relay.statistics().waits
            stopped.suspend()
            while relay.statistics().waits == waits:
                publish_numbers(publisher, published, published + 200)
                published += 200

        def told() -> str:
            stopped.tell("seen")
            return stopped.read()

        stop_it_and_wait()
        stopped.process.send_signal(signal.SIGCONT)
        wait_until(lambda: told() == f"{published} 0")
        stop_it_and_wait()
        assert writer_of(relay).state.readers == 2
        stopped.kill()
        publish_numbers(publisher, published, published + 10_000)
        wait_until(lambda: len(other.numbers) == published + 10_000)
        wait_until(lambda: writer_of(relay).state.readers == 1)
        other.subscriber.stop()
    assert other.numbers == list(range(published + 10_000))


def test_a_killed_relay_releases_memory_and_name_for_the_next_one() -> None:
    source, below = shm_chain()
    reader = Blocks(below)
    gc.collect()  # mappings of earlier tests
    before = mapped()
    with Publisher(source, when_full="wait") as publisher:
        with relay_script(source, below) as first:
            reader.subscriber.start(PATIENCE_S)
            publish_numbers(publisher, 0, 100)
            wait_until(lambda: len(reader.numbers) == 100)
            assert mapped() == before + 2  # the memory, and the page of the slot
            first.kill()
        with Relay(source, below) as relay:
            wait_until(lambda: relay.statistics().subscribers == 1, what="the reader is confirmed by the next relay")
            publish_numbers(publisher, 100, 200)
            wait_until(lambda: len(reader.numbers) == 200)
            assert came_by(reader.subscriber) == "shm"
            wait_until(lambda: mapped() == before + 3, what="only the memory of the next relay: its own, the reader's")
        reader.subscriber.stop()
    wait_until(lambda: mapped() == before)
    assert reader.numbers == list(range(200))
    assert not [name for name in os.listdir("/dev/shm") if "blackbox" in name]  # noqa: PTH208


def _moved(feed: Feed) -> Any:
    """Slices with the memory of a feed, and other lines."""
    lines = Feed.local("chain", slices=1).slices[0].lines
    return (msgspec.structs.replace(feed.slices[0], endpoints=(*lines, f"shm://{feed.slices[0].shared_memory}")),)


def test_an_invalid_name_of_memory_is_reported() -> None:
    source, below = shm_chain()
    text = rf"endpoint shm://{below.slices[0].shared_memory} is in use"
    with Publisher(below), pytest.raises(EndpointError, match=text):
        Relay(source, msgspec.structs.replace(below, slices=_moved(below))).start()
    source, _ = shm_chain("shm")
    with pytest.raises(ConfigError, match=r"had shm://.*, expected another endpoint: the relay would be its own"):
        Relay(source, msgspec.structs.replace(source, slices=_moved(source)))


def test_a_killed_source_is_read_from_memory_again_below_and_above() -> None:
    source, below = shm_chain("shm", "shm")
    reader = Blocks(below)
    with Relay(source, below) as relay:
        for run in range(2):
            with Script(SOURCE, source) as publisher:
                publisher.expect("started")
                if run == 0:
                    reader.subscriber.start(PATIENCE_S)
                wait_until(lambda: relay.statistics().lines[0].is_confirmed and transport_of(relay) == "shm")
                wait_until(lambda: relay.statistics().subscribers == 1)
                publisher.tell(str(100 * run))
                publisher.expect("sent")
                wait_until(lambda run=run: len(reader.numbers) == 100 * (run + 1))  # type: ignore[misc]
                publisher.kill()
            wait_until(lambda: not relay.statistics().lines[0].is_confirmed)
        reader.subscriber.stop()
    assert reader.numbers == list(range(200))


def test_blocks_missed_by_a_stopped_relay_are_a_gap_and_a_killed_one_releases_its_places() -> None:
    source, below = shm_chain("shm", "tcp", block_bytes=4 * KIB)
    reader = Blocks(below)
    with Publisher(source, when_full="drop", hwm_blocks=4) as publisher:
        with relay_script(source, below) as relay:
            reader.subscriber.start(PATIENCE_S)
            relay.suspend()
            for first in range(0, 10_000, 200):
                publish_numbers(publisher, first, first + 200)
            publisher.flush()
            relay.process.send_signal(signal.SIGCONT)
            wait_until(lambda: len(reader.numbers) + reader.subscriber.statistics().received.gaps == 10_000)
            assert reader.subscriber.statistics().received.gaps > 0
            assert shared_state(publisher).readers == 1
            relay.suspend()
            publish_numbers(publisher, 0, 1_000)
            relay.kill()
        wait_until(lambda: shared_state(publisher).readers == 0)
        publisher.flush(60)
        reader.subscriber.stop()


def test_a_stopped_subscriber_below_pins_no_places_of_the_source() -> None:
    """Blocks that wait for it stay in the source's memory up to a bound; further ones are copied."""
    source, below = shm_chain("shm", "tcp", block_bytes=4 * KIB)
    other = Blocks(below)
    with (
        Publisher(source, when_full="wait") as publisher,
        Relay(source, below, when_full="drop", hwm_blocks=2_000),
        Script(READER, below) as stopped,
    ):
        stopped.expect("tcp")
        other.subscriber.start(PATIENCE_S)
        stopped.suspend()
        for stop in range(20_000, 420_000, 20_000):
            publish_numbers(publisher, stop - 20_000, stop)
            # The relay drops blocks for a subscriber 2,000 blocks behind: only the stopped one may be.
            wait_until(lambda stop=stop: len(other.numbers) == stop, 60)  # type: ignore[misc]
        other.subscriber.stop()
    assert other.numbers == list(range(400_000))


def test_memory_of_another_host_is_not_waited_for() -> None:
    source, below = shm_chain("shm", "tcp")
    reader = Blocks(below)
    with Publisher(by_sockets(source), when_full="wait") as publisher, Relay(source, below) as relay:
        reader.subscriber.start(PATIENCE_S)
        assert transport_of(relay) == "tcp"
        publish_numbers(publisher, 0, 100)
        wait_until(lambda: len(reader.numbers) == 100)
        reader.subscriber.stop()


@pytest.mark.parametrize("spare_transport", first_of(["shm", "tcp"]))
def test_a_spare_has_its_own_memory_or_none(spare_transport: str) -> None:
    source, below = shm_chain("shm", "tcp", heartbeat_ns=10**9)
    spare, _ = shm_chain(spare_transport, heartbeat_ns=10**9)
    reader = Blocks(below)
    with ExitStack() as stack:
        second = stack.enter_context(Publisher(spare))
        with Script(SOURCE, source) as first:
            first.expect("started")  # the relay starts second, or it would switch to the spare
            relay = stack.enter_context(Relay(source, below, spares=[spare]))
            reader.subscriber.start(PATIENCE_S)
            wait_until(lambda: transport_of(relay) == "shm")
            first.tell("0")
            first.expect("sent")
            wait_until(lambda: len(reader.numbers) == 100)
            first.kill()
        line = spare.slices[0].lines[0]
        wait_until(lambda: relay.statistics().lines[0].source == line and relay.statistics().lines[0].is_confirmed)
        reader.subscriber.wait_confirmed(PATIENCE_S)
        assert transport_of(relay) == spare_transport
        wait_until(lambda: relay.statistics().subscribers == 1)
        publish_numbers(second, 100, 200)
        wait_until(lambda: reader.numbers[-1] == 199)
        reader.subscriber.stop()
