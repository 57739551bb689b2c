"""A relay has its source confirm withdrawals, and reconnects if data of withdrawn keys still arrives."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from itertools import count
from typing import Any

import numpy
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import Publisher, Relay
from blackbox.block.form.format import CONFIRM_KEY, HEARTBEAT_KEY
from blackbox.native.compile.jit import njit
from blackbox.publish.listeners.subscriptions import SUBSCRIBE, UNSUBSCRIBE
from blackbox.services.relay.key_ranges import covers, ranges_of
from blackbox.services.relay.line_state import UNWANTED_AT
from blackbox.services.relay.requests_up import Upstream
from blackbox.testing import RawPublisher, wait_until
from tests.examples import examples
from tests.relay.relays import PATIENCE_S, chain, line_of, relayed
from tests.relay.test_restarts import asking
from tests.relay.test_upstream import is_in


class Line:
    """An `Upstream`, and a source that answers at once but ignores some withdrawals of filters, by their index."""

    def __init__(self, ignores: Collection[int] = ()) -> None:
        nonces, self.withdrawals = count(1), count()
        self.now, self.ignores, self.in_force = 1_000.0, ignores, set[bytes]()
        self.said = list[bytes]()
        self.upstream = Upstream(["tcp://source"], 0.0, 1.0, "relay", lambda: next(nonces).to_bytes(8, "little"))
        self.upstream.connect(self.now)

    def want(self, *prefixes: bytes, by: int = 1) -> None:
        for prefix in prefixes:
            self.upstream.want(prefix, by, self.now)

    def look(self, wait_s: float) -> None:
        self.now += wait_s
        self.upstream.look(self.now, is_needed=False)
        self.upstream.answer(self.now, 1, 0)
        self.upstream.look(self.now, is_needed=False)
        for message in self.upstream.out:
            if message[:1] == SUBSCRIBE:
                self.in_force.add(message[1:])
            elif message[1:2] == b"\0" or next(self.withdrawals) not in self.ignores:
                self.in_force.discard(message[1:])
        self.said += self.upstream.out
        self.upstream.out.clear()

    @property
    def filters(self) -> set[bytes]:
        return {each for each in self.in_force if each[:1] != b"\0"}

    def go_on(self, *keys: bytes, times: int = 1) -> None:
        """Let heartbeat times pass in which these keys have data."""
        for _ in range(times):
            self.look(1.0)
            for key in keys:
                if key.startswith(tuple(self.filters)) and not is_in(self.upstream.expected.ranges, key):
                    self.upstream.note_unwanted(key)
                    self.look(0.0)


def test_thousands_of_withdrawals_take_one_confirmation() -> None:
    line = Line()
    prefixes = [b"%04d" % number for number in range(5_000)]
    line.want(b"A", *prefixes)
    line.go_on()
    line.said.clear()
    for prefix in prefixes:
        line.want(prefix, by=-1)
        line.look(0.0001)
    line.go_on(times=9)
    assert sum(message.startswith(SUBSCRIBE + CONFIRM_KEY) for message in line.said) == 1
    assert line.upstream.is_confirmed(line.upstream.version)
    assert line.filters == {b"A"}


def test_many_withdrawn_filters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.services.relay.key_ranges._MOST_WITHDRAWN", 3)
    line, prefixes = Line(ignores=range(4)), [b"AA", b"AB", b"B", b"BA"]
    line.want(*prefixes)
    line.go_on()
    line.want(*prefixes, by=-1)
    line.go_on(times=3)
    assert line.upstream.expected.ranges is not None
    line.go_on(*prefixes, times=9)
    assert line.said.count(UNSUBSCRIBE + b"AA") == 1, "it is forgotten"


def test_a_withdrawal_is_repeated_once_however_many_messages_come_before_its_confirmation() -> None:
    line = Line(ignores=range(2))
    line.want(b"A", b"B")
    line.go_on()
    line.want(b"B", by=-1)
    line.go_on(times=2)
    for repeats in (1, 2):
        assert line.filters == {b"A", b"B"}, "the source has ignored it"
        for _ in range(9):
            line.upstream.note_unwanted(b"B")
        assert line.upstream.out == [SUBSCRIBE + b"B", UNSUBSCRIBE + b"B"]
        assert line.upstream.expected.repeats == repeats
        assert not line.upstream.source.ignores
        line.go_on(times=2)
    assert line.filters == {b"A"}


def test_data_before_a_confirmation_does_not_count_as_data_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    relay = Relay(*chain(key_bytes=1))
    (each,) = relay._slices
    (line,) = each.lines
    monkeypatch.setattr(line.way, "read_news", lambda: None)  # there is no socket
    upstream = line.upstream
    upstream.connect(0.0)
    for prefix in (b"A", b"B"):
        upstream.want(prefix, 1, 0.0)
    for now in (0.0, 100.0):
        upstream.look(now, is_needed=False)
        upstream.answer(now, 1, 0)
        if now == 0.0:
            upstream.want(b"B", -1, now)
    upstream.note_unwanted(b"B")
    upstream.look(200.0, is_needed=False)
    ctypes.memmove(line.memory.scratch + UNWANTED_AT, b"B", 1)
    line.state.has_unwanted, line.state.answered, line.state.epoch = 2, 1, 1  # in one turn, in this order
    each._read_news()
    assert upstream.is_confirmed(upstream.version)
    assert upstream.expected.repeats == 1
    line.close()


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
    """A raw publisher that ignores withdrawals, and counts those of b"B"."""

    withdrawn = 0

    def _bind(self) -> None:
        super()._bind()
        for socket in self._sockets.values():
            socket.setsockopt(zmq.XPUB_MANUAL, 1)

    def _read(self, place: tuple[int, int], socket: zmq.Socket[bytes]) -> None:
        while int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
            said = socket.recv()
            self.withdrawn += said == UNSUBSCRIBE + b"B"
            if said[:1] == SUBSCRIBE:
                socket.setsockopt(zmq.SUBSCRIBE, said[1:])
                if said[1:].startswith(CONFIRM_KEY):
                    socket.send_multipart(self._control(said[1:], self._told(place[0]), *place).frames)


def test_a_publisher_that_ignores_withdrawals_is_reconnected(caplog: pytest.LogCaptureFixture) -> None:
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
        assert publisher.withdrawn == 4
        assert caplog.text.count("sends key b'B', which was withdrawn 4 times: reconnecting\n") == 1
        publish(b"B")
        publish(b"A")
        wait_until(lambda: line_of(relay).messages > before.messages, PATIENCE_S)
        assert (line_of(relay).messages, line_of(relay).unwanted) == (before.messages + 1, before.unwanted)


@pytest.mark.parametrize("rule", [{"key_bytes": 2, "lines": 2}, {"channels": 16, "separator": "."}])
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
