"""A relay has its source confirm withdrawals, and reconnects if data of withdrawn keys still arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import count
from typing import Any

import numpy
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import Publisher
from blackbox.block.format import CONFIRM_KEY, HEARTBEAT_KEY
from blackbox.native.jit import njit
from blackbox.publish.subscriptions import SUBSCRIBE, UNSUBSCRIBE
from blackbox.relay.cover import SmallestCover
from blackbox.relay.key_ranges import covers, ranges_of
from blackbox.relay.upstream import Upstream
from blackbox.testing import RawPublisher, wait_until
from tests.examples import examples
from tests.relay.relays import PATIENCE_S, chain, line_of, relayed
from tests.relay.test_restarts import asking
from tests.relay.test_upstream import is_in

KEYS = [b"", b"A", b"AA", b"AB", b"B", b"BA"]


class Line:
    """An `Upstream` with a source that ignores some withdrawals. Messages stay in order until they are taken."""

    def __init__(self, hold_s: float = 0.0, ignores: Collection[int] = ()) -> None:
        """`ignores`: indices of the withdrawals of filters that the source ignores."""
        self.now, self.nonces, self.withdrawals = 1_000.0, count(1), count()
        self.upstream = Upstream(["tcp://source"], SmallestCover(), hold_s, 1.0, "relay", self.new_nonce)
        self.ignores, self.in_force, self.asked = ignores, set[bytes](), list[bytes]()
        self.up, self.down = deque[bytes](), deque[tuple[bytes, bool]]()
        self.said, self.unwanted, self.drops = list[bytes](), list[bytes](), 0
        self.connect()

    def new_nonce(self) -> bytes:
        return next(self.nonces).to_bytes(8, "little")

    def connect(self) -> None:
        self.in_force = set()
        self.up.extend(SUBSCRIBE + each for each in sorted(self.upstream.filters))
        self.upstream.connect(self.now)

    def want(self, *prefixes: bytes) -> None:
        for prefix in prefixes:
            self.upstream.want(prefix, 1, self.now)

    def leave(self, *prefixes: bytes) -> None:
        for prefix in prefixes:
            self.upstream.want(prefix, -1, self.now)

    def look(self, wait_s: float = 0.0) -> None:
        self.now += wait_s
        if self.upstream.is_suspect(self.now, self.now) and self.upstream.why_switch(self.now, self.now, False, True):
            self.drops += 1
            self.up.clear()
            self.down.clear()
            self.upstream.switch("why", self.now)
            self.upstream.out.clear()
            self.connect()
        self.upstream.look(self.now, is_needed=False)
        self.up += self.upstream.out
        self.said += self.upstream.out
        self.upstream.out.clear()

    def read_up(self) -> None:
        while self.up:
            message = self.up.popleft()
            what, prefix = message[:1], message[1:]
            if prefix.startswith(CONFIRM_KEY):
                if what == SUBSCRIBE:
                    self.down.append((prefix.removeprefix(CONFIRM_KEY), True))
            elif what == SUBSCRIBE:
                self.in_force.add(prefix)
            elif prefix[:1] == b"\0" or next(self.withdrawals) not in self.ignores:
                self.in_force.discard(prefix)

    def send(self, *keys: bytes) -> None:
        self.down.extend((key, False) for key in keys if any(key.startswith(each) for each in self.filters))

    @property
    def filters(self) -> set[bytes]:
        return {each for each in self.in_force if each[:1] != b"\0"}

    def read_down(self) -> None:
        while self.down:
            message, is_answer = self.down.popleft()
            if is_answer and message == self.upstream.nonce:
                self.upstream.answer(self.now, 1, 0)
                self.look()
            elif not is_answer and self.upstream.ranges is not None and not is_in(self.upstream.ranges, message):
                self.unwanted.append(message)
                self.upstream.note_unwanted(message)
                self.look()

    def go_on(self, *keys: bytes, times: int = 1) -> None:
        """Let heartbeat times pass in which these keys have data."""
        for _ in range(times):
            self.look(1.0)
            self.read_up()
            self.send(*keys)
            self.read_down()

    def confirmations(self) -> int:
        return sum(message.startswith(SUBSCRIBE + CONFIRM_KEY) for message in self.said)


def test_thousands_of_withdrawals_take_one_confirmation() -> None:
    line = Line()
    prefixes = [b"%04d" % number for number in range(5_000)]
    line.want(b"A", *prefixes)
    line.go_on()
    so_far = line.confirmations()
    for prefix in prefixes:
        line.leave(prefix)
        line.look(0.0001)
        line.read_up()
        line.read_down()
    line.go_on(times=9)
    assert line.confirmations() == so_far + 1
    assert line.upstream.is_confirmed(line.upstream.version)
    assert line.filters == {b"A"}


def test_the_withdrawal_of_the_last_filter_is_confirmed() -> None:
    line = Line(ignores={0})
    line.want(b"A")
    line.go_on()
    line.leave(b"A")
    line.go_on(b"A", times=9)
    assert line.unwanted == [b"A"]
    assert not line.filters


def test_data_sent_before_a_withdrawal_is_confirmed_is_wanted() -> None:
    line = Line()
    line.want(b"A", b"B")
    line.go_on()
    line.leave(b"B")
    line.send(b"B")
    line.go_on()
    line.send(b"A")
    line.go_on(times=3)
    assert line.unwanted == []


def test_an_ignored_withdrawal_is_repeated_once_for_each_confirmation() -> None:
    line = Line(ignores={0, 1})
    line.want(b"A", b"B")
    line.go_on()
    line.leave(b"B")
    line.go_on(*[b"BA"] * 5, times=9)
    assert line.said.count(UNSUBSCRIBE + b"B") == 3
    assert (line.filters, line.drops) == ({b"A"}, 0)


def test_a_source_that_ignores_withdrawals_is_reconnected(caplog: pytest.LogCaptureFixture) -> None:
    line = Line(ignores=range(99))
    line.want(b"A", b"B")
    line.go_on()
    line.leave(b"B")
    line.go_on(b"A", b"B", times=20)
    assert (line.said.count(UNSUBSCRIBE + b"B"), line.drops, line.filters) == (4, 1, {b"A"})
    assert caplog.text.count("relay: tcp://source sends key b'B', which was withdrawn 4 times: reconnecting\n") == 1


def test_unrequested_data_of_a_source_causes_no_reconnect() -> None:
    line = Line()
    line.want(b"A")
    line.go_on()
    for _ in range(20):
        line.down.append((b"B", False))
        line.go_on()
    assert (len(line.unwanted), line.drops) == (20, 0)


def test_many_withdrawn_filters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.relay.upstream._MOST_WITHDRAWN", 3)
    line = Line()
    line.want(*KEYS[2:])
    line.go_on()
    line.leave(*KEYS[2:])
    line.send(*KEYS[2:])
    line.go_on(*KEYS, times=3)
    assert line.unwanted == []
    assert line.upstream.ranges is not None


steps = st.one_of(
    st.tuples(st.just("want"), st.sampled_from(KEYS)),
    st.tuples(st.just("leave"), st.sampled_from(KEYS)),
    st.tuples(st.just("send"), st.sampled_from(KEYS)),
    st.tuples(st.just("look"), st.sampled_from([0.0, 0.4, 1.0, 5.0])),
    st.tuples(st.sampled_from(["read_up", "read_down"])),
)
faults = st.one_of(st.just(set[int]()), st.sets(st.integers(0, 20)))


@given(st.lists(steps, max_size=60), st.sampled_from([0.0, 3.0]), faults)
@settings(max_examples=examples(800), deadline=None)
def test_only_filters_that_cover_wanted_keys_stay_in_force(
    schedule: list[tuple[Any, ...]], hold_s: float, ignores: set[int]
) -> None:
    line, wanted = Line(hold_s, ignores), set[bytes]()
    for what, *words in schedule:
        if what in ("want", "leave"):
            if (words[0] in wanted) is (what == "want"):
                continue
            wanted ^= {*words}
        getattr(line, what)(*words)
        assert ignores or not line.unwanted, "wanted data was counted as unwanted"
    line.go_on(*KEYS, times=100)
    received = {key for key in KEYS if any(map(key.startswith, line.filters))}
    assert received == {key for key in KEYS if any(map(key.startswith, wanted))}
    assert line.upstream.is_confirmed(line.upstream.version)


@njit
def _covers(ranges: int, size: int, key: int, key_size: int) -> bool:
    is_covered: bool = covers(ranges, size, key, key_size)
    return is_covered


words = st.lists(st.sampled_from(b"\0A\x7f\x80\xff"), max_size=10).map(bytes)


@given(st.sets(words, max_size=6), words.map(lambda word: word[:8]))
@settings(max_examples=examples(2_000), deadline=None)
def test_ranges_cover_the_same_keys_as_filters(filters: set[bytes], key: bytes) -> None:
    """Keys shorter than 8 bytes are padded with zeros, and longer filters are cut."""
    expected = any(key.ljust(8, b"\0").startswith(each[:8]) for each in filters)
    ranges, text = ranges_of(filters), numpy.frombuffer(key + b"\1", numpy.uint8)
    assert _covers(ranges.ctypes.data, len(filters), text.ctypes.data, len(key)) is expected
    assert is_in(ranges, key) is expected


class IgnoringPublisher(RawPublisher):
    """A raw publisher that ignores withdrawals."""

    def _bind(self) -> None:
        super()._bind()
        for socket in self._sockets.values():
            socket.setsockopt(zmq.XPUB_MANUAL, 1)

    def _read(self, place: tuple[int, int], socket: zmq.Socket[bytes]) -> None:
        while int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
            said = socket.recv()
            if said[:1] == SUBSCRIBE:
                socket.setsockopt(zmq.SUBSCRIBE, said[1:])
                if said[1:].startswith(CONFIRM_KEY):
                    socket.send_multipart(self._control(said[1:], self._told(place[0]), *place).frames)


def test_a_publisher_that_ignores_withdrawals_is_reconnected() -> None:
    feeds = chain(key_bytes=1, heartbeat_ns=20_000_000)
    with IgnoringPublisher(feeds[0]) as publisher, relayed(feeds) as (relay,), asking(feeds[1], [b"A", b"B"]) as sub:

        def publish(topic: bytes) -> None:
            publisher.send(publisher.encode([(topic, b"1")]))

        def is_connected_anew() -> bool:
            publish(b"B")
            return line_of(relay).reconnects == 1

        wait_until(lambda: line_of(relay).filters_above == 2 and line_of(relay).is_confirmed, PATIENCE_S)
        sub.unsubscribe(b"B")
        wait_until(lambda: line_of(relay).filters_above == 1, PATIENCE_S)
        wait_until(is_connected_anew, PATIENCE_S, "a new connection")
        wait_until(lambda: line_of(relay).is_confirmed, PATIENCE_S)
        before = line_of(relay)
        assert before.unwanted >= 4
        publish(b"B")
        publish(b"A")
        wait_until(lambda: line_of(relay).messages > before.messages, PATIENCE_S)
        assert (line_of(relay).messages, line_of(relay).unwanted) == (before.messages + 1, before.unwanted)


@pytest.mark.parametrize("rule", [{"key_bytes": 2}, {"key_bytes": 2, "lines": 2}, {"channels": 16, "separator": "."}])
def test_no_data_of_a_publisher_is_unwanted(rule: dict[str, Any]) -> None:
    feeds = chain(heartbeat_ns=5_000_000, **rule)
    topics = [b"%c%c.x" % (first, second) for first in b"ABC" for second in b"XYZ"]
    keys = sorted({feeds[0].key_of(topic) for topic in topics} | {topic[:1] for topic in topics})
    with Publisher(feeds[0]) as publisher, relayed(feeds) as (relay,), asking(feeds[1], []) as sub:
        for number in range(300):
            (sub.unsubscribe if number % 5 > 2 else sub.subscribe)(keys[number * 7 % len(keys)])
            for topic in topics:
                publisher.publish(topic, b"%d" % number)
            publisher.flush()
        sub.subscribe(b"")

        def is_through() -> bool:
            publisher.publish(topics[0], b"last")
            return sub.poll(1) > 0 and sub.recv_multipart()[0] not in (b"", HEARTBEAT_KEY)

        wait_until(is_through, PATIENCE_S)
        assert relay.statistics().unwanted == 0
