"""Two lines of one slice: what at least one of them carried is delivered once and in order, the rest is counted."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from blackbox.block.block import Block
from blackbox.native.prefix_trie import Trie, build_trie
from blackbox.subscribe.doubt import PLAUSIBLE_JUMP, keep_doubted, refute_all
from blackbox.subscribe.gaps import (
    DUPLICATE,
    HOLD,
    IMPLAUSIBLE,
    MAKE_ROOM,
    enter_epoch,
    hold,
    judge,
    next_ready,
    note_sequences,
    release,
    settle,
)
from blackbox.subscribe.held_blocks import HELD_BLOCKS, NONE
from blackbox.subscribe.sequences import Sequences, SequencesAt
from blackbox.subscribe.state import SliceCounters
from tests.examples import examples, first_of

A, B = 0, 1
EPOCH = 7
WAIT_NS = 1_000
DEAD_NS = 1_000_000
HELD_LIMIT = 1 << 20
END = 1 << 62

# The guards, driven as the slice thread drives them. An event is (line, sequence, count, time); count 0: a heartbeat
# which tells that `sequence` comes next.


@njit(nogil=True)
def _note(out: Any, used: int, sequence: int, count: int, first: int) -> int:
    for number in range(sequence + first, sequence + count):
        out[used] = number
        used += 1
    return used


@njit(nogil=True)
def _release(at: SequencesAt, now: int, force: int, until: int, out: Any, used: int, counts: Any) -> int:
    while True:
        place = next_ready(at, 0, now, force, until)
        if place == NONE:
            settle(at, 0, now, until)
            return used
        sequence, count = counts[place, 0], counts[place, 1]
        first = release(at, place)
        if first != DUPLICATE:
            used = _note(out, used, sequence, count, first)


@njit(nogil=True)
def drive(at: SequencesAt, filters: Trie, events: Any, heartbeats: Any, body_bytes: int, proven: int, out: Any) -> int:
    """Run the guards over `events`; the delivered numbers go to `out`, how many is returned.

    `heartbeats` has, for each event that is one, the addresses of its header and body. `proven` 1: all of them are
    answers to our nonce; 0: the first one only.
    """
    counts = numpy.zeros((HELD_BLOCKS + 1, 2), numpy.int64)
    used = 0
    for i in range(len(events)):
        line, sequence, count, now = events[i]
        enter_epoch(at, EPOCH, line, 0, now)
        if count == 0:
            baseline = 1 if i == 0 else proven
            note_sequences(at, filters, heartbeats[i, 0], heartbeats[i, 1], line, EPOCH, baseline, now)
            used = _release(at, now, 0, END, out, used, counts)
            continue
        verdict = judge(at, 0, line, EPOCH, sequence, count, body_bytes, now, 0)
        for force in range(2):
            if verdict == MAKE_ROOM:
                used = _release(at, now, force, sequence, out, used, counts)
                verdict = judge(at, 0, line, EPOCH, sequence, count, body_bytes, now, force)
        if verdict == HOLD:
            place = hold(at, 0, sequence, count, body_bytes, now, 0)
            counts[place, 0] = sequence
            counts[place, 1] = count
        elif verdict == IMPLAUSIBLE:
            place = keep_doubted(at, 0, line, sequence, count, body_bytes, now)
            counts[place, 0] = sequence
            counts[place, 1] = count
        elif verdict != DUPLICATE:
            used = _note(out, used, sequence, count, verdict)
        used = _release(at, now, 0, END, out, used, counts)
    refute_all(at)
    last: int = _release(at, events[-1][3], 1, END, out, used, counts)
    return last


def delivered(
    events: list[tuple[int, int, int, int]], lines: int = 2, body_bytes: int = 0, proven: int = 1
) -> tuple[list[int], SliceCounters]:
    counters = SliceCounters()
    sequences = Sequences(1, lines, WAIT_NS, DEAD_NS, HELD_LIMIT, counters)
    out = numpy.zeros(100_000, numpy.int64)
    frames = []
    heartbeats = numpy.zeros((len(events), 2), numpy.int64)
    for place, (_, sequence, count, _) in enumerate(events):
        if count == 0:
            block = Block.encode_sequences(b"\0H", {b"": sequence}, slice_id=0, epoch=EPOCH, ts_out=0)
            header = numpy.frombuffer(block.header, numpy.uint8).copy()
            frames.append((header, block.body))
            heartbeats[place] = header.ctypes.data, block.body.ctypes.data
    used = drive(sequences.at, build_trie([b""]), numpy.array(events, numpy.int64), heartbeats, body_bytes, proven, out)
    return out[:used].tolist(), counters


@st.composite
def one_line(draw: st.DrawFn, total: int) -> list[tuple[int, int]]:
    """(sequence, count) of the blocks that a line brings: some of `total` messages, in order."""
    blocks, at = [], 0
    while at < total:
        count = min(draw(st.integers(1, 5)), total - at)
        if draw(st.integers(0, 3)):
            blocks.append((at, count))
        at += count
    return blocks


@st.composite
def two_lines(draw: st.DrawFn, step_ns: int) -> tuple[int, list[tuple[int, int, int, int]]]:
    """A number of messages, and events of both lines mixed at random, between a first and a last heartbeat on each."""
    total = draw(st.integers(1, 60))
    left = [draw(one_line(total)), draw(one_line(total))]
    now = 10**9
    events = [(line, 0, 0, now) for line in (A, B)]
    while left[A] or left[B]:
        line = draw(st.sampled_from([line for line in (A, B) if left[line]]))
        now += draw(st.integers(0, step_ns)) if step_ns else 0
        events.append((line, *left[line].pop(0), now))
    events += [(line, total, 0, now) for line in (A, B)]
    return total, events


def carried(events: list[tuple[int, int, int, int]]) -> list[int]:
    """The reference: the numbers that came on at least one line, in order."""
    return sorted({number for _, sequence, count, _ in events for number in range(sequence, sequence + count)})


@settings(max_examples=examples(400))
@given(two_lines(step_ns=0))
def test_what_one_line_carried_is_delivered_once_in_order_and_the_rest_is_counted(
    case: tuple[int, list[tuple[int, int, int, int]]],
) -> None:
    total, events = case
    numbers, counters = delivered(events)
    assert numbers == carried(events)
    assert counters.gaps == total - len(numbers)
    assert counters.duplicates == sum(count for _, _, count, _ in events) - len(numbers)
    assert counters.held == 0


@settings(max_examples=examples(400))
@given(two_lines(step_ns=3 * WAIT_NS))
def test_a_line_that_lags_more_than_the_wait_costs_gaps_but_never_order(
    case: tuple[int, list[tuple[int, int, int, int]]],
) -> None:
    total, events = case
    numbers, counters = delivered(events)
    assert numbers == sorted(set(numbers))
    assert set(numbers) <= set(carried(events))
    assert counters.gaps == total - len(numbers)
    assert counters.duplicates == sum(count for _, _, count, _ in events) - len(numbers)


def test_a_dead_line_is_not_waited_for() -> None:
    before, after = 10**9, 10**9 + DEAD_NS + 1
    events = [(A, 0, 0, before), (B, 0, 0, before), (A, 0, 2, after), (A, 5, 1, after)]
    numbers, counters = delivered(events)
    assert numbers == [0, 1, 5]
    assert counters.gaps == 3


def test_a_block_behind_a_held_one_is_not_taken_for_lost() -> None:
    now = 10**9
    numbers, counters = delivered([(A, 0, 0, now), (B, 0, 0, now), (B, 2, 1, now), (B, 9, 0, now), (A, 3, 1, now)])
    assert numbers == [2, 3]
    assert counters.gaps == 2


def test_a_gap_on_a_single_line_is_final_at_once() -> None:
    numbers, counters = delivered([(A, 0, 0, 10**9), (A, 3, 2, 10**9), (A, 9, 1, 10**9)], lines=1)
    assert numbers == [3, 4, 9]
    assert counters.gaps == 7


def test_more_held_bytes_than_the_limit_are_released_oldest_first() -> None:
    blocks = [(A, number, 1, 10**9) for number in range(1, 1_600, 2)]
    numbers, counters = delivered([(A, 0, 0, 10**9), (B, 0, 0, 10**9), *blocks], body_bytes=HELD_LIMIT // 512)
    assert numbers == carried(blocks)
    assert counters.gaps == 800


def test_twenty_thousand_held_blocks_wait_for_the_line_that_has_what_is_missing() -> None:
    now = 10**9
    ahead = [(A, number, 1, now) for number in range(1, 20_001)]
    behind = [(B, number, 1, now + WAIT_NS // 2) for number in range(20_001)]
    numbers, counters = delivered([(A, 0, 0, now), (B, 0, 0, now), *ahead, *behind])
    assert numbers == list(range(20_001))
    assert (counters.gaps, counters.duplicates, counters.held) == (0, 20_000, 0)


def test_a_number_far_ahead_is_believed_when_its_line_tells_it_once_more() -> None:
    far = PLAUSIBLE_JUMP + 10
    start = [(A, 0, 0, 10**9), (A, 0, 2, 10**9)]
    forged, _ = delivered([*start, (A, far, 1, 10**9), (A, 2, 3, 10**9), (A, far, 1, 10**9)], lines=1)
    assert forged == [0, 1, 2, 3, 4]
    jumped, counters = delivered([*start, (A, far, 1, 10**9), (A, far + 1, 2, 10**9), (A, far + 3, 1, 10**9)], lines=1)
    assert jumped == [0, 1, far, far + 1, far + 2, far + 3]
    assert counters.gaps == far - 2
    told, counters = delivered([*start, (A, far, 0, 10**9), (A, far, 0, 10**9), (A, far, 1, 10**9)], lines=1, proven=0)
    assert told == [0, 1, far]
    assert counters.gaps == far - 2


@pytest.mark.parametrize("proven", [0, 1])
def test_a_block_far_ahead_is_delivered_when_a_heartbeat_tells_what_follows_it(proven: int) -> None:
    far = PLAUSIBLE_JUMP + 10
    events = [(A, 0, 0, 10**9), (A, 0, 2, 10**9), (A, far, 3, 10**9), (A, far + 5, 0, 10**9)]
    numbers, counters = delivered(events, lines=1, proven=proven)
    assert numbers == [0, 1, far, far + 1, far + 2]
    assert counters.gaps == far - 2 + 2


@njit(nogil=True)
def keep_many(at: SequencesAt, body_bytes: int, kept: Any) -> None:
    for key in range(len(kept)):
        kept[key] = keep_doubted(at, key, A, PLAUSIBLE_JUMP + 10, 1, body_bytes, 1)


@pytest.mark.parametrize(("body_bytes", "most"), [(HELD_LIMIT // 100, 50), (2 * HELD_LIMIT, 1)])
def test_blocks_far_ahead_have_half_of_the_room_or_one_of_them(body_bytes: int, most: int) -> None:
    counters = SliceCounters()
    sequences = Sequences(100, 2, WAIT_NS, DEAD_NS, HELD_LIMIT, counters)
    kept = numpy.zeros(100, numpy.int64)
    keep_many(sequences.at, body_bytes, kept)
    assert kept.tolist() == [*range(1, most + 1), *[NONE] * (100 - most)]


@njit(nogil=True)
def fill_all_places(at: SequencesAt, far: int, now: int) -> None:
    for line in range(2):
        enter_epoch(at, EPOCH, line, 0, now)
    for key in range(2):
        judge(at, key, A, EPOCH, 0, 1, 0, now, 0)
    judge(at, 0, A, EPOCH, far, 1, 0, now, 0)
    keep_doubted(at, 0, A, far, 1, 0, now)
    for number in range(1, HELD_BLOCKS):
        if judge(at, 1, A, EPOCH, 2 * number, 1, 0, now, 0) == HOLD:
            hold(at, 1, 2 * number, 1, 0, now, 0)


@njit(nogil=True)
def take_one_more(at: SequencesAt, sequence: int, now: int) -> Any:
    verdict = judge(at, 0, A, EPOCH, sequence, 1, 0, now, 0)
    if verdict == HOLD:
        return hold(at, 0, sequence, 1, 0, now, 0)
    return keep_doubted(at, 0, A, sequence, 1, 0, now) if verdict == IMPLAUSIBLE else numpy.int64(NONE)


@pytest.mark.parametrize("sequence", first_of([2, PLAUSIBLE_JUMP // 2 + PLAUSIBLE_JUMP]))
def test_the_place_of_a_block_that_is_refuted_is_free_only_when_it_is_dropped(sequence: int) -> None:
    counters, now = SliceCounters(), 10**9
    sequences = Sequences(2, 2, WAIT_NS, DEAD_NS, HELD_LIMIT, counters)
    fill_all_places(sequences.at, 2 * PLAUSIBLE_JUMP, now)
    assert (sequences.places_used, counters.held) == (HELD_BLOCKS, HELD_BLOCKS - 1)
    assert take_one_more(sequences.at, sequence, now) == NONE
    assert sequences.places_used == HELD_BLOCKS


class Plain:
    """One line of one key, slowly: what is delivered, how many are lost, in an order that a reader can follow."""

    def __init__(self) -> None:
        self.delivered: list[int] = []
        self.gaps = self.expected = 0
        self.doubted: range | None = None

    def take(self, numbers: range) -> None:
        """Take in a block; an empty one is a heartbeat that tells what follows."""
        doubted, self.doubted = self.doubted, None
        if numbers.start - self.expected > PLAUSIBLE_JUMP:
            if doubted is None or not doubted.start <= numbers.start <= doubted.stop + PLAUSIBLE_JUMP:
                self.doubted = numbers
                return
            if len(doubted):
                self._deliver(doubted)
        self._deliver(numbers)

    def _deliver(self, numbers: range) -> None:
        self.gaps += max(0, numbers.start - self.expected)
        self.delivered += range(max(numbers.start, self.expected), numbers.stop)
        self.expected = max(numbers.stop, self.expected)


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 5)), max_size=12))
def test_what_is_believed_of_numbers_far_ahead_is_what_a_plain_model_believes(
    events: list[tuple[int, int, int]],
) -> None:
    plain = Plain()
    blocks = [((PLAUSIBLE_JUMP + 10) * far + near, count) for far, near, count in events]
    for sequence, count in blocks:
        plain.take(range(sequence, sequence + count))
    start = (A, 0, 0, 10**9)
    numbers, counters = delivered([start, *[(A, *block, 10**9) for block in blocks]], lines=1, proven=0)
    assert (numbers, counters.gaps) == (plain.delivered, plain.gaps)


@settings(max_examples=examples(400))
@given(two_lines(step_ns=0), st.integers(0, 60))
def test_a_real_gap_that_no_block_is_believed_across_is_counted_once_and_costs_no_block(
    case: tuple[int, list[tuple[int, int, int, int]]], first: int
) -> None:
    total, events = case
    lost = PLAUSIBLE_JUMP + 100
    events = [(line, at + lost * (at >= first > 0), count, now) for line, at, count, now in events]
    total += lost * (total >= first > 0)
    numbers, counters = delivered(events)
    assert numbers == carried(events)
    assert counters.gaps == total - len(numbers)
    assert counters.held == 0


def test_gaps_that_no_number_can_hold_are_the_largest_there_is() -> None:
    step = (1 << 62) - 1
    counters = SliceCounters()
    for number in range(5):  # each with its own forgetting: one key never gets beyond 2^62
        more = delivered([(A, 0, 0, 1), (A, 0, 1, 1), (A, step, 1, 1), (A, step + 1, 1, 1)], lines=1)[1]
        counters = SliceCounters.sum_of([counters, more])
        assert counters.gaps == min((number + 1) * (step - 1), (1 << 63) - 1)


# Over real sockets.
