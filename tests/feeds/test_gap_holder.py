"""Held gaps against a plain model: each message once and in order, or in a gap with its exact count."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import pytest
from blackbox_feeds.iex import iextp
from blackbox_feeds.iex.live import FORM as IEX_FORM
from blackbox_feeds.io.pcap import Datagrams
from blackbox_feeds.itch50.live_moldudp64 import FORM as MOLD_FORM
from blackbox_feeds.live.gap_holder import Arrived, Form, GapHolder, Limits
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.feeds.build import DEEP, iex_tp, mold

SLOT = 256
HOLD = 100
PER_MESSAGE = 3
FAR = 40
MOST = 1_000


class Packet(NamedTuple):
    """A datagram of the messages from `first` to before `end`, that came at `time`."""

    first: int
    end: int
    time: int
    is_line: bool
    messages: Sequence[bytes] = ()
    """Not used by the holder."""


def text(number: int) -> bytes:
    return b"%d" % number


def datagram_of(packet: Packet, form: Form) -> bytes:
    messages = [text(number) for number in range(packet.first, packet.end)]
    return mold(packet.first, messages) if form.is_big_endian else iex_tp(packet.first, messages)


def arrived_of(packets: list[Packet], form: Form) -> Arrived:
    datagrams = [datagram_of(packet, form) for packet in packets]
    data = b"".join(datagram.ljust(SLOT, b"\xee") for datagram in datagrams)
    return Arrived(
        numpy.frombuffer(bytearray(data or bytes(SLOT)), numpy.uint8),
        SLOT,
        numpy.array([len(datagram) for datagram in datagrams], numpy.int32),
        numpy.array([packet.first for packet in packets], numpy.int64),
        numpy.array([packet.end for packet in packets], numpy.int64),
    )


def sequences_of(released: list[Datagrams], form: Form) -> list[tuple[int, int]]:
    """Return the first sequence of each datagram and the one after it; check all of its bytes."""
    found = []
    for part in released:
        for start, length in zip(part.starts.tolist(), part.lengths.tolist(), strict=True):
            data = part.data[start : start + length].tobytes()
            if form.is_big_endian:
                session, first, count = struct.unpack_from(">10sQH", data)
                assert session == b"0000000001"
                expected = mold(first, [text(first + k) for k in range(count)])
            else:
                *_, size, count, _, first, _ = iextp.HEADER.unpack_from(data)
                assert size == length - iextp.HEADER_BYTES
                expected = iex_tp(first, [text(first + k) for k in range(count)], protocol=DEEP)
            assert data == expected
            found.append((first, first + count))
    return found


@dataclass
class Held:
    """A packet that is held, and messages that fill the gap before it, if that is no mistake."""

    packet: Packet
    is_late: bool
    """True if a later packet was held when it came."""
    until: int
    """When the gaps before it should be filled."""
    before: int = 0


class Model:
    """The same rules with plain lists."""

    def __init__(self, expected: int, most: int, limits: Limits) -> None:
        self.expected, self.most, self.limits = expected, most, limits
        self.held: list[Held] = []
        self.released: list[tuple[int, int]] = []
        self.duplicates = self.recovered = self.implausible = 0
        self.progress = self.suspect = 0

    def release(self, packet: Packet) -> None:
        self.duplicates += max(0, self.expected - packet.first)
        self.released.append((max(self.expected, packet.first), packet.end))
        self.expected = packet.end

    def is_mistaken(self, place: int) -> bool:
        packet = self.held[place].packet
        is_continued = place + 1 < len(self.held) and self.held[place + 1].packet.first == packet.end
        is_confirmed = packet.first == self.suspect or is_continued
        is_far = packet.first - self.expected > self.limits.far
        return is_far and (self.progress > packet.time or not is_confirmed)

    def recover(self, place: int, count: int) -> None:
        if place < len(self.held) and self.is_mistaken(place):
            self.held[place].before += count
        elif place < len(self.held):
            self.recovered += count

    def release_first(self) -> None:
        held = self.held[0]
        count = held.packet.end - self.expected
        self.recovered += held.before
        self.release(held.packet)
        if held.is_late:
            self.recover(1, count)
        self.held.pop(0)

    def drain(self) -> None:
        while self.held and self.held[0].packet.first <= self.expected:
            packet = self.held[0].packet
            if packet.end > self.expected:
                self.release_first()
            else:
                self.recovered += self.held.pop(0).before
                self.duplicates += packet.end - packet.first

    def give_up(self) -> None:
        if self.is_mistaken(0):
            self.implausible += 1
            self.suspect = self.held.pop(0).packet.end
        else:
            self.expected = self.held[0].packet.first
            self.release_first()

    def check_time(self, now: int) -> None:
        def is_over() -> bool:
            if not self.held:
                return False
            is_mistaken = self.is_mistaken(0)
            times = [each.packet.time if is_mistaken else each.until for each in self.held]
            return min(times) + self.limits.hold_ns <= now

        while is_over():
            self.give_up()
            self.drain()

    def take(self, packet: Packet) -> None:
        while len(self.held) == self.most and packet.first >= self.held[0].packet.first > self.expected < packet.first:
            self.give_up()
            self.drain()
        if packet.end <= self.expected:
            self.duplicates += packet.end - packet.first
        elif packet.first <= self.expected or len(self.held) == self.most:
            self.expected = max(self.expected, packet.first)
            self.recover(0, packet.end - self.expected)
            self.release(packet)
            if packet.is_line:
                self.progress = packet.time
            self.drain()
        else:
            place = sum(each.packet.first <= packet.first for each in self.held)
            before = self.held[place - 1].packet if place else None
            if before is not None and before.end >= packet.end:
                if before.first < packet.first == before.end:
                    self.suspect = before.first
                self.duplicates += packet.end - packet.first
            else:
                since = max(packet.time, self.held[place - 1].until) if place else packet.time
                missing = max(0, packet.first - (before.end if before else self.expected))
                until = since + missing * self.limits.per_message_ns
                until = min(until, packet.time + (self.limits.per_message_ns << 32))
                self.held.insert(place, Held(packet, place < len(self.held), until))


PACKETS = st.lists(
    st.tuples(st.integers(1, 120), st.integers(0, 8), st.integers(0, 60), st.booleans()), min_size=1, max_size=60
)


@settings(max_examples=examples(200), deadline=None)
@example([(21, 1, 0, True), (42, 1, 0, True), (1, 20, 60, False), (1, 1, 159, True), (1, 1, 1, True)], 1, 6, True)
@given(PACKETS, st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_each_message_is_released_once_in_order_or_given_up(
    steps: list[tuple[int, int, int, bool]], batch: int, most: int, is_mold: bool
) -> None:
    form = MOLD_FORM if is_mold else IEX_FORM
    holder = GapHolder(form, SLOT, Limits(HOLD, PER_MESSAGE, FAR), most)
    model = Model(1, most, Limits(HOLD, PER_MESSAGE, FAR))
    holder.start(1)
    released: list[tuple[int, int]] = []
    offered = now = 0
    for at in range(0, len(steps), batch):
        now += steps[at][2]
        packets = [Packet(first, first + count, now, steps[at][3]) for first, count, _, _ in steps[at : at + batch]]
        arrived = arrived_of(packets, form)
        found = holder.arrange(arrived, len(packets), is_line=steps[at][3], now_ns=now)
        released += sequences_of(found, form)
        model.check_time(now)
        for packet in packets:
            model.take(packet)
        offered += sum(packet.end - packet.first for packet in packets)
        assert released == model.released
        assert holder.expected == model.expected
        held = model.held[0].packet if model.held else None
        assert holder.gap == (None if held is None else (model.expected, held.first, held.time))
    released += sequences_of(holder.flush(arrived_of([], form)), form)
    model.check_time(1 << 62)
    assert released == model.released
    assert holder.gap is None
    assert (holder.duplicates, holder.recovered, holder.take_implausible()) == (
        model.duplicates,
        model.recovered,
        model.implausible,
    )
    position = 1
    for first, end in released:
        assert position <= first <= end
        position = end
    if not model.implausible:
        assert offered == holder.duplicates + sum(end - first for first, end in released)


class Line:
    """Gives datagrams to a holder, each as its first message and the one after its last."""

    def __init__(self, limits: Limits, form: Form = MOLD_FORM, begun: int = 0) -> None:
        self.holder, self._form = GapHolder(form, SLOT, limits, MOST), form
        self.holder.start(1, begun)

    def take(self, now: int, *ranges: tuple[int, int], is_line: bool = True) -> list[tuple[int, int]]:
        """Return the released ranges at a time, after new datagrams, if any."""
        arrived = arrived_of([Packet(*each, now, is_line) for each in ranges], self._form)
        return sequences_of(self.holder.arrange(arrived, len(ranges), is_line=is_line, now_ns=now), self._form)


@pytest.mark.parametrize("form", [MOLD_FORM, IEX_FORM])
def test_heartbeat_after_lost_messages_shows_the_gap(form: Form) -> None:
    line = Line(Limits(HOLD, 0, FAR), form)
    assert line.take(0, (9, 9), (9, 9)) == []
    assert line.holder.gap == (1, 9, 0)
    assert line.take(HOLD - 1) == []
    assert line.take(HOLD) == [(9, 9)]
    assert line.holder.duplicates == 0


def test_datagrams_far_ahead_of_a_sequence_that_goes_on_are_dropped() -> None:
    line = Line(Limits(HOLD, 0, FAR))
    line.take(0, (1_000, 1_001), (1_001, 1_002))
    for now in (1, 2):
        assert line.take(now, (now, now + 1)) == [(now, now + 1)]
    assert line.take(HOLD) == []
    assert (line.holder.expected, line.holder.gap, line.holder.take_implausible()) == (3, None, 2)


def test_lone_datagram_far_ahead_is_dropped_and_one_that_another_continues_is_a_gap() -> None:
    line = Line(Limits(HOLD, 0, FAR))
    assert line.take(0, (5_000, 5_001)) + line.take(HOLD) == []
    assert (line.holder.expected, line.holder.take_implausible()) == (1, 1)
    assert line.take(500, (1_000, 1_002), (1_002, 1_003)) == []
    assert line.take(500 + HOLD) == [(1_000, 1_002), (1_002, 1_003)]
    assert line.take(1_000, (9_000, 9_001)) + line.take(1_000 + HOLD) == []
    assert line.take(2_000, (9_001, 9_001)) == []
    assert line.take(2_000 + HOLD) == [(9_001, 9_001)]  # a heartbeat confirms it
    assert line.take(3_000, (12_000, 12_001), (12_001, 12_001)) == []  # also while it is held
    assert line.take(3_000 + HOLD) == [(12_000, 12_001)]
    assert line.holder.expected == 12_001


@pytest.mark.parametrize("is_forged", [True, False])
def test_messages_before_a_lone_datagram_far_ahead_have_filled_a_gap_only_if_it_is_real(is_forged: bool) -> None:
    line = Line(Limits(HOLD, PER_MESSAGE, FAR))
    assert line.take(0, (100, 102)) == []
    # The line goes on, or answers to requests come, out of order: message 25 is the last one.
    assert line.take(1, (1, 11), is_line=is_forged) == [(1, 11)]
    assert line.take(2, (13, 26), is_line=is_forged) == []
    assert line.take(3, (11, 13), is_line=is_forged) == [(11, 13), (13, 26)]
    assert line.holder.recovered == 2  # before 13, which is near
    if is_forged:
        assert line.take(HOLD) == []
        assert (line.holder.gap, line.holder.recovered, line.holder.take_implausible()) == (None, 2, 1)
    else:
        for first in range(26, 100, 2):
            line.take(4, (first, first + 2), is_line=False)
        assert (line.holder.gap, line.holder.expected, line.holder.recovered) == (None, 102, 99)


def test_a_forged_datagram_is_held_for_a_short_time_however_far_it_is() -> None:
    line = Line(Limits(HOLD))
    for first in (1 << 40, (1 << 62) - 2):
        line.take(0, (first, first + 1))
        assert line.holder.gap == (1, first, 0)
        line.take(HOLD)
        assert (line.holder.gap, line.holder.take_implausible()) == (None, 1)


@pytest.mark.parametrize("is_begun", [True, False])
def test_the_datagram_that_began_a_session_is_no_mistake_however_far_it_is(is_begun: bool) -> None:
    line = Line(Limits(HOLD, 0, FAR), begun=1_000 if is_begun else 0)
    assert line.take(0, (1_000, 1_001)) == []
    assert line.take(HOLD) == ([(1_000, 1_001)] if is_begun else [])
    assert line.holder.take_implausible() == (not is_begun)


@pytest.mark.parametrize("is_flush", [True, False])
def test_overlapping_datagrams_larger_than_one_output_have_each_message_once(is_flush: bool) -> None:
    # Each one begins with the last message of the one before it. The output has room for about a MiB.
    many, size = 300, 9_000
    datagrams = [
        mold(10 + number, [b"%09d" % (10 + number) * 500, b"%09d" % (11 + number) * 500]) for number in range(many)
    ]
    slot = max(size, *map(len, datagrams)) + 100
    data = b"".join(datagram.ljust(slot, b"\xee") for datagram in datagrams)
    first = numpy.arange(10, 10 + many)
    lengths = numpy.array([len(datagram) for datagram in datagrams], numpy.int32)
    arrived = Arrived(numpy.frombuffer(bytearray(data), numpy.uint8), slot, lengths, first, first + 2)
    holder = GapHolder(MOLD_FORM, slot, Limits(HOLD, PER_MESSAGE, FAR), MOST)
    holder.start(1)
    assert holder.arrange(arrived, many, is_line=True, now_ns=1) == []
    released = holder.flush(arrived) if is_flush else holder.arrange(arrived, 0, is_line=True, now_ns=1_000)
    found = list[int]()
    for part in released:
        for start in part.starts.tolist():
            _, begin, count = struct.unpack_from(">10sQH", part.data[start : start + 20].tobytes())
            found += range(begin, begin + count)
    assert len(released) > 1
    assert found == list(range(10, 11 + many))
