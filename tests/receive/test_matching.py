"""Every kind of callback, compared with a slow and simple reference over real sockets."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from blackbox import Publisher, SlowPolicy, Subscriber
from blackbox.feed.routing.prefixes import covering
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.native.tables.prefix_trie import build_trie, longest_prefix
from blackbox.receive.callbacks.callbacks import CompiledCallback
from blackbox.receive.callbacks.compiled_callback import little_endian, payload
from blackbox.testing import Collector, wait_until
from tests.examples import examples
from tests.receive.subscribers import nothing, one_slice, publishing, sliced

# Few letters, so that random prefixes overlap; with special ones: a dot, the last byte, a zero that is not the first
# byte, a byte that is not text.
LETTERS = st.sampled_from([b"A", b"B", b".", b"\xff", b"\0", b"\x80"])
TOPICS = st.lists(LETTERS, min_size=1, max_size=11).map(b"".join).filter(lambda topic: topic[0] != 0)
PREFIXES = st.one_of(st.just(b""), TOPICS, TOPICS.map(lambda topic: topic[:2]))
MAX_MESSAGES = 120


def note(batch: Any, state: Any) -> None:
    """Record the number in each payload: `state[0]` is the count, the numbers follow."""
    for row in batch.rows:
        state[0] += 1
        state[state[0]] = little_endian(payload(batch, row), 0, 8)


Numbers = Callable[[], list[int]]
"""Returns the numbers that a callback has received so far, those of a slice in order."""


def numbers_in(got: Collector) -> list[int]:
    return [int.from_bytes(payload[:8], "little") for payload in got.payloads]


def numbers_noted(callback: CompiledCallback) -> list[int]:
    return [number for state in callback.states.values() for number in state[1 : state[0] + 1].tolist()]


class Pair:
    """A publisher and a subscriber for many examples, which add callbacks; messages are numbered over all of them."""

    def __init__(self, key_bytes: int, slices: int) -> None:
        transport = "shm" if key_bytes == 1 and sys.platform == "linux" else "tcp"
        self.feed = sliced(slices, key_bytes=key_bytes, transport=transport)
        self.publisher = Publisher(self.feed, when_full="wait").start()
        self.subscriber = Subscriber(self.feed, slow=SlowPolicy(max_lag=3_600))
        self.topics: list[bytes] = []
        self.past: list[tuple[Numbers, range, bytes | tuple[bytes, ...]]] = []

    def publish(self, topics: list[bytes], in_columns: bool, pad: int) -> range:
        first = len(self.topics)
        self.topics += topics
        numbers = range(first, len(self.topics))
        payloads = [number.to_bytes(8, "little") + bytes(number % (pad + 1)) for number in numbers]
        if in_columns:
            names = tuple(dict.fromkeys(topics))
            offsets = numpy.cumsum([0, *map(len, payloads)])
            self.publisher.publish_many(names, [names.index(t) for t in topics], b"".join(payloads), offsets=offsets)
        else:
            for topic, data in zip(topics, payloads, strict=True):
                self.publisher.publish(topic, data)
        return numbers

    def by_key(self, numbers: Iterable[int]) -> dict[tuple[int, bytes], list[int]]:
        """Group numbers by key, since order is promised per key of a slice."""
        found = defaultdict(list)
        for number in numbers:
            found[self.feed.slice_of(self.topics[number]), self.feed.key_of(self.topics[number])].append(number)
        return found

    def expected(self, prefix: bytes | tuple[bytes, ...], numbers: range) -> list[int]:
        """The reference: the numbers of matching messages, in publish order."""
        return [number for number in numbers if self.topics[number].startswith(prefix)]

    def check(self, received: Numbers, numbers: range, prefix: bytes | tuple[bytes, ...]) -> None:
        # Messages under way when the callback was added may have reached it too.
        came = [number for number in received() if number >= numbers.start]
        assert self.by_key(came) == self.by_key(self.expected(prefix, numbers))

    def close(self) -> None:
        self.publisher.close()
        if self.subscriber.callbacks or self.past:
            self.subscriber.stop()
        received = self.subscriber.statistics().received
        assert (received.gaps, received.duplicates, received.malformed) == (0, 0, 0)
        assert self.subscriber.statistics().delivery.dropped == 0
        for past in self.past:
            self.check(*past)  # and nothing arrived late


class Pairs(dict[tuple[int, int], Pair]):
    """Pairs by length of key and number of slices."""

    def __missing__(self, key: tuple[int, int]) -> Pair:
        self[key] = Pair(*key)
        return self[key]


@pytest.fixture(scope="module")
def pairs() -> Iterator[Pairs]:
    made = Pairs()
    yield made
    for pair in made.values():
        pair.close()


@settings(max_examples=examples(75), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key_bytes=st.sampled_from([0, 1, 3, 8]),
    slices=st.integers(1, 2),  # so few pairs that each is used again: callbacks are added while it runs
    prefixes=st.lists(PREFIXES, min_size=1, max_size=6),
    topics=st.lists(TOPICS, max_size=MAX_MESSAGES),
    in_columns=st.booleans(),
    on_worker=st.booleans(),
    pad=st.sampled_from([0, 7]),
)
def test_each_callback_gets_each_matching_message_once_and_in_order(
    pairs: Pairs,
    key_bytes: int,
    slices: int,
    prefixes: list[bytes],
    topics: list[bytes],
    in_columns: bool,
    on_worker: bool,
    pad: int,
) -> None:
    pair = pairs[key_bytes, slices]
    wishes: list[tuple[bytes | tuple[bytes, ...], str, Numbers]] = []
    functions: list[Any] = []
    several, of_any = covering(prefixes), Collector()
    for prefix in prefixes:
        single, batch = Collector(), Collector()
        functions += [pair.subscriber.on(prefix)(single.message), pair.subscriber.on_batch(prefix)(batch.batch)]
        # With room for messages under way when the callback is added, which may reach it too.
        state = numpy.zeros(4 * MAX_MESSAGES + 1, numpy.int64)
        compiled = pair.subscriber.on_compiled(prefix, state=state, worker=on_worker)(note)
        functions.append(compiled)
        wishes += [(prefix, "message", partial(numbers_in, single)), (prefix, "batch", partial(numbers_in, batch))]
        wishes.append((prefix, "compiled", partial(numbers_noted, compiled)))
    pair.subscriber._on_batch_of(TopicChoice(several), of_any.batch)
    functions.append(of_any.batch)
    wishes.append((several, "batch", partial(numbers_in, of_any)))
    if pair.past:
        pair.subscriber.wait_confirmed()
    else:
        pair.subscriber.start()
    numbers = pair.publish(topics, in_columns, pad)
    for wanted, kind, received in wishes:
        expected = set(pair.expected(wanted, numbers))
        wait_until(lambda: expected.issubset(received()), what=f"{kind} callback for {wanted!r}: {expected}")
        pair.check(received, numbers, wanted)
        pair.past.append((received, numbers, wanted))
    for function in functions:
        pair.subscriber.remove(function)


def test_a_callback_gets_its_messages_of_many_match_sets_in_order() -> None:
    subscriber, got = Subscriber(feed := one_slice(), slow=SlowPolicy(max_lag=3_600)), Collector()
    topics = [b"A%d." % number for number in range(100)]
    for topic in topics:
        subscriber.on_batch(topic)(nothing)
    subscriber.on_batch(b"A")(got.batch)
    rows = [(topic, b"%d" % number) for number in range(3) for topic in (*topics, b"B")]
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode(rows))
    assert [(message.topic, message.payload) for message in got.messages] == [row for row in rows if row[0] != b"B"]


@given(st.lists(PREFIXES, unique=True, max_size=20), st.lists(TOPICS, max_size=20))
@example([bytes([value]) for value in range(256)], [bytes([value, 0]) for value in range(256)])
def test_longest_prefix_is_the_longest(prefixes: list[bytes], topics: list[bytes]) -> None:
    trie = build_trie(prefixes)
    for topic in topics:
        matching = [prefix for prefix in prefixes if topic.startswith(prefix)]
        text = numpy.frombuffer(topic, numpy.uint8)
        found = longest_prefix(trie, text.ctypes.data, len(topic))
        assert found == (prefixes.index(max(matching, key=len)) + 1 if matching else 0)
