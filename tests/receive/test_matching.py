"""Every kind of callback, compared with a slow and simple reference over real sockets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import Batch, Feed, Message, Publisher, SlowPolicy, Subscriber
from blackbox.feed.routing.prefixes import covering
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.native.tables.prefix_trie import build_trie, longest_prefix
from blackbox.receive.callbacks.compiled_callback import little_endian, payload
from blackbox.testing import wait_until
from tests.examples import examples

# Few letters, so that random prefixes overlap; with special ones: a dot, the last byte, a zero that is not the first
# byte, a byte that is not text.
LETTERS = st.sampled_from([b"A", b"B", b".", b"\xff", b"\0", b"\x80"])
TOPICS = st.lists(LETTERS, min_size=1, max_size=11).map(b"".join).filter(lambda topic: topic[0] != 0)
PREFIXES = st.one_of(st.just(b""), TOPICS, TOPICS.map(lambda topic: topic[:2]))
FIXED_PREFIXES = (b"", b"A", b"AB", b"AB.", b"AB.A\0", b"\xff", b"B\0", b".", b"ABABABABAB")
COMPILED_PREFIXES = (b"", b"AB", b"AB.A\0")
MAX_MESSAGES = 120


class Listener:
    """Records the number in each payload, by slice, in the order of the calls."""

    def __init__(self) -> None:
        self.numbers: dict[int, list[int]] = defaultdict(list)

    def message(self, message: Message) -> None:
        self.numbers[message.batch.block.slice_id].append(int.from_bytes(message.payload[:8], "little"))

    def batch(self, batch: Batch) -> None:
        numbers = [int.from_bytes(batch.payload(i)[:8], "little") for i in range(len(batch))]
        self.numbers[batch.block.slice_id] += numbers

    def has(self, expected: dict[int, list[int]]) -> bool:
        return all(set(some) <= set(self.numbers[slice_id]) for slice_id, some in expected.items())


def note(batch: Any, state: Any) -> None:
    """The same in compiled code: `state[0]` is the count, the numbers follow."""
    for row in batch.rows:
        state[0] += 1
        state[state[0]] = little_endian(payload(batch, row), 0, 8)


class Pair:
    """A publisher and a subscriber for many examples; messages are numbered over all of them."""

    def __init__(self, key_bytes: int, slices: int) -> None:
        self.feed = Feed.local("matching", slices=slices, key_bytes=key_bytes)
        self.publisher = Publisher(self.feed, when_full="wait").start()
        self.subscriber = Subscriber(self.feed, slow=SlowPolicy(max_lag=3_600))
        self.topics: list[bytes] = []
        self.past: list[tuple[Listener, range, dict[int, list[int]]]] = []

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

    def expected(self, prefix: bytes | tuple[bytes, ...], numbers: range) -> dict[int, list[int]]:
        """The reference: for each slice the numbers of matching messages, in publish order."""
        matching = [number for number in numbers if self.topics[number].startswith(prefix)]
        found = defaultdict(list)
        for number in matching:
            found[self.feed.slice_of(self.topics[number])].append(number)
        return dict(found)

    def in_key_order(self, numbers: dict[int, list[int]]) -> dict[tuple[int, bytes], list[int]]:
        """Group numbers by key, since order is promised per key of a slice."""
        found = defaultdict(list)
        for slice_id, some in numbers.items():
            for number in some:
                found[slice_id, self.feed.key_of(self.topics[number])].append(number)
        return dict(found)

    def check(self, listener: Listener, numbers: range, expected: dict[int, list[int]]) -> None:
        # Messages under way when the callback was added may have reached it too.
        came = {i: [number for number in some if number >= numbers.start] for i, some in listener.numbers.items()}
        assert self.in_key_order(came) == self.in_key_order(expected)

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
    pad=st.sampled_from([0, 7]),
)
def test_each_callback_gets_each_matching_message_once_and_in_order(
    pairs: Pairs,
    key_bytes: int,
    slices: int,
    prefixes: list[bytes],
    topics: list[bytes],
    in_columns: bool,
    pad: int,
) -> None:
    pair = pairs[key_bytes, slices]
    listeners = [(prefix, kind, Listener()) for prefix in prefixes for kind in ("message", "batch")]
    functions = []
    for prefix, kind, listener in listeners:
        register = pair.subscriber.on(prefix) if kind == "message" else pair.subscriber.on_batch(prefix)
        functions.append(register(getattr(listener, kind)))
    several, of_any = covering(prefixes), Listener()
    pair.subscriber._on_batch_of(TopicChoice(several), of_any.batch)
    functions.append(of_any.batch)
    if pair.past:
        pair.subscriber.wait_confirmed()
    else:
        pair.subscriber.start()
    numbers = pair.publish(topics, in_columns, pad)
    all_listeners: list[tuple[bytes | tuple[bytes, ...], str, Listener]] = [*listeners, (several, "batch", of_any)]
    for wanted, kind, listener in all_listeners:
        expected = pair.expected(wanted, numbers)
        wait_until(lambda: listener.has(expected), what=f"{kind} callback for {wanted!r}: {expected}")
        pair.check(listener, numbers, expected)
        pair.past.append((listener, numbers, expected))
    for function in functions:
        pair.subscriber.remove(function)


@pytest.mark.parametrize(("key_bytes", "slices", "worker"), [(0, 3, False), (3, 2, True)])
def test_the_three_kinds_of_callback_agree(key_bytes: int, slices: int, worker: bool) -> None:
    pair = Pair(key_bytes, slices)
    listeners = {prefix: (Listener(), Listener()) for prefix in FIXED_PREFIXES}
    compiled = {}
    for prefix, (one, many) in listeners.items():
        pair.subscriber.on(prefix)(one.message)
        pair.subscriber.on_batch(prefix)(many.batch)
    for prefix in COMPILED_PREFIXES:
        state = numpy.zeros(40 * MAX_MESSAGES + 1, numpy.int64)
        compiled[prefix] = pair.subscriber.on_compiled(prefix, state=state, worker=worker)(note)
    pair.subscriber.start()

    @settings(max_examples=examples(40), database=None)
    @given(st.lists(TOPICS, max_size=MAX_MESSAGES), st.booleans(), st.sampled_from([0, 7]))
    def publish(topics: list[bytes], in_columns: bool, pad: int) -> None:
        if len(pair.topics) + len(topics) <= 40 * MAX_MESSAGES:
            pair.publish(topics, in_columns, pad)

    publish()
    pair.publisher.close()
    pair.subscriber.run(until_end=True)
    numbers = range(len(pair.topics))
    for prefix, (one, many) in listeners.items():
        pair.check(one, numbers, pair.expected(prefix, numbers))
        pair.check(many, numbers, pair.expected(prefix, numbers))
    for prefix, callback in compiled.items():
        noted = {i: state[1 : state[0] + 1].tolist() for i, state in callback.states.items() if state[0]}
        assert pair.in_key_order(noted) == pair.in_key_order(pair.expected(prefix, numbers))


@given(st.lists(PREFIXES, unique=True, max_size=20), st.lists(TOPICS, max_size=20))
def test_longest_prefix_is_the_longest(prefixes: list[bytes], topics: list[bytes]) -> None:
    trie = build_trie(prefixes)
    for topic in topics:
        matching = [prefix for prefix in prefixes if topic.startswith(prefix)]
        text = numpy.frombuffer(topic, numpy.uint8)
        found = longest_prefix(trie, text.ctypes.data, len(topic))
        assert found == (prefixes.index(max(matching, key=len)) + 1 if matching else 0)


def test_prefixes_of_all_256_byte_values_are_distinguished() -> None:
    trie = build_trie([bytes([value]) for value in range(256)])
    for value in range(256):
        text = numpy.array([value, 0], numpy.uint8)
        assert longest_prefix(trie, text.ctypes.data, 2) == value + 1
