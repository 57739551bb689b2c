"""Two lines of one slice: each message received on a line is delivered once and in order, the others are counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.block.position import End, Position
from blackbox.receive.order.order import PLAUSIBLE_JUMP
from tests.examples import examples
from tests.simulation.simulated_slice import LINE_DEAD_NS, LINE_WAIT_NS, SentBlock, SimulatedSlice

A, B = 0, 1
EPOCH = 7
NOW = 10**12
END_NS = 1 << 62


class Beat(NamedTuple):
    """A heartbeat."""

    following: int
    ends: dict[bytes, End]


class Event(NamedTuple):
    """A block or heartbeat received on a line."""

    line: int
    what: SentBlock | Beat
    now: int = NOW


def block(sequence: int, span: int = 1) -> SentBlock:
    """Return a block of a slice without keys."""
    return SentBlock(sequence, span, sequence, sequence, b"", EPOCH)


def beat(following: int) -> Beat:
    """Return a heartbeat of a slice without keys."""
    return Beat(following, {b"": End(following, following)})


class Consumer:
    """Collects deliveries and losses of a slice that receives events after a confirmation on each line."""

    def __init__(
        self, events: Iterable[Event], lines: int = 2, prefixes: tuple[bytes, ...] = (b"",), held_messages: int = 10_000
    ) -> None:
        self.blocks: list[tuple[bytes, range]] = []
        self.lost = 0
        self.order = order = SimulatedSlice(self, prefixes, lines, repairs=False, held_messages=held_messages)
        for line in range(lines):
            order.confirmed(line, EPOCH, 0, {}, NOW)
        for line, what, now in events:
            if isinstance(what, Beat):
                order.heartbeat(line, EPOCH, *what, now)
            else:
                order.live(line, what, now)
        order.tick(END_NS)
        self.counters = order.counters

    def deliver(self, block: SentBlock, first: int) -> None:
        self.blocks.append((block.key, range(block.sequence + first, block.end)))

    def report(self, epoch: int, key: bytes | None, first: int, lost: int) -> None:
        self.lost += lost

    @property
    def numbers(self) -> list[int]:
        return [number for _, numbers in self.blocks for number in numbers]


class Case(NamedTuple):
    """Events of both lines after their confirmations, and the number of wanted messages."""

    prefixes: tuple[bytes, ...]
    wanted: int
    """Number of wanted messages, including skipped sequences if all keys are wanted."""
    events: list[Event]

    def check(self, consumer: Consumer) -> None:
        of_line: dict[bytes, list[int]] = {}
        for key, numbers in consumer.blocks:
            of_line.setdefault(b"" if b"" in self.prefixes else key, []).extend(numbers)
        assert all(numbers == sorted(set(numbers)) for numbers in of_line.values())
        carried = [event.what for event in self.events if isinstance(event.what, SentBlock)]
        assert consumer.counters.gaps == consumer.lost == self.wanted - len(consumer.numbers)
        assert consumer.counters.duplicates == sum(each.span for each in carried) - len(consumer.numbers)
        assert consumer.counters.held == 0
        assert set(consumer.numbers) <= set(self.carried)

    @property
    def carried(self) -> list[int]:
        """Sequences received on at least one line."""
        blocks = (event.what for event in self.events if isinstance(event.what, SentBlock))
        return sorted({number for each in blocks for number in range(each.sequence, each.end)})


@st.composite
def cases(draw: st.DrawFn, step_ns: int, jump: int = 0) -> Case:
    """Draw blocks with random losses and order on each line. `jump`: sequences skipped at a random place."""
    prefixes = draw(st.sampled_from([(b"",), (b"A",), (b"A", b"B")]))
    keys = st.sampled_from(
        draw(st.sampled_from([[b""], [b"A", b"B", b"C"]])) if b"" in prefixes else [b"A", b"B", b"C"]
    )
    sizes = draw(st.lists(st.tuples(keys, st.integers(1, 5)), min_size=1, max_size=25))
    jumps_at = draw(st.integers(1, len(sizes))) if jump else -1
    following, wanted = 0, 0
    ends: dict[bytes, End] = {}
    ways: tuple[list[SentBlock | Beat], ...] = ([], [])
    for number, (key, span) in enumerate(sizes):
        if number == jumps_at:
            following += jump
            wanted += jump if b"" in prefixes else 0
        end, count = ends.get(key, End(0, 0))
        sent = SentBlock(following, span, end, count, key, EPOCH)
        following += span
        ends[key] = End(following, count + span)
        is_wanted = key.startswith(prefixes)
        wanted += span if is_wanted else 0
        for way in ways:
            if is_wanted and draw(st.integers(0, 3)):
                way.append(sent)
            if draw(st.integers(0, 3)) == 0:
                way.append(Beat(following, dict(ends)))
    now, events = NOW, list[Event]()
    while any(ways):
        line = draw(st.sampled_from([line for line in (A, B) if ways[line]]))
        now += draw(st.integers(0, step_ns))
        events.append(Event(line, ways[line].pop(0), now))
    # Twice, because a single sequence far ahead is not accepted. Without one, a line may end before it has heard all.
    told = (A, B) if jump else draw(st.sampled_from([(A, B), (A,), (B,)]))
    return Case(prefixes, wanted, events + [Event(line, Beat(following, ends), now) for line in told * 2])


@settings(max_examples=examples(400))
@given(cases(step_ns=0))
def test_messages_of_any_line_are_delivered_once_in_order_and_others_are_counted(case: Case) -> None:
    consumer = Consumer(case.events, prefixes=case.prefixes)
    case.check(consumer)
    assert sorted(consumer.numbers) == case.carried


@settings(max_examples=examples(400))
@given(cases(step_ns=3 * LINE_WAIT_NS))
def test_a_line_that_lags_too_long_causes_gaps_but_keeps_order(case: Case) -> None:
    case.check(Consumer(case.events, prefixes=case.prefixes))


@settings(max_examples=examples(400))
@given(cases(step_ns=0, jump=PLAUSIBLE_JUMP + 200))
def test_a_real_gap_larger_than_a_plausible_jump_is_counted_once_and_loses_no_block(case: Case) -> None:
    consumer = Consumer(case.events, prefixes=case.prefixes)
    case.check(consumer)
    assert sorted(consumer.numbers) == case.carried


def test_a_heartbeat_of_the_line_behind_does_not_hide_a_loss_at_the_end() -> None:
    consumer = Consumer([Event(A, block(0)), Event(A, beat(2)), Event(B, beat(1))])
    assert (consumer.numbers, consumer.lost) == ([0], 1)


def test_a_gap_is_final_if_the_other_line_is_dead() -> None:
    now = NOW + LINE_DEAD_NS + 1
    consumer = Consumer([Event(A, block(0, 2), now), Event(A, block(5), now)])
    assert (consumer.numbers, consumer.lost) == ([0, 1, 5], 3)


def test_a_gap_on_a_single_line_is_final_at_once() -> None:
    consumer = Consumer([Event(A, block(3, 2)), Event(A, block(9))], lines=1)
    assert (consumer.numbers, consumer.lost) == ([3, 4, 9], 7)


def test_held_messages_above_the_limit_are_released_oldest_first() -> None:
    numbers = list(range(1, 1_600, 2))
    consumer = Consumer([Event(A, block(number)) for number in numbers], held_messages=100)
    assert (consumer.numbers, consumer.lost) == (numbers, 800)


def test_many_held_blocks_wait_for_the_line_that_has_the_missing_one() -> None:
    ahead = [Event(A, block(number)) for number in range(1, 5_001)]
    behind = [Event(B, block(number), NOW + LINE_WAIT_NS // 2) for number in range(5_001)]
    consumer = Consumer([*ahead, *behind])
    assert consumer.numbers == list(range(5_001))
    assert (consumer.lost, consumer.counters.duplicates, consumer.counters.held) == (0, 5_000, 0)


class Plain:
    """Simple reference model of one line without keys: delivered sequences and number of lost ones."""

    def __init__(self) -> None:
        self.delivered: list[int] = []
        self.gaps = self.expected = 0
        self.doubted: range | None = None

    def take(self, numbers: range) -> None:
        """Receive a block; an empty one is a heartbeat with the next sequence."""
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


FAR = PLAUSIBLE_JUMP + 10


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 5)), max_size=12))
def test_sequences_far_ahead_are_accepted_as_in_the_reference_model(sent: list[tuple[int, int, int]]) -> None:
    plain = Plain()
    events = []
    for far, near, span in sent:
        sequence = FAR * far + near
        plain.take(range(sequence, sequence + span))
        events.append(Event(A, block(sequence, span) if span else beat(sequence)))
    consumer = Consumer(events, lines=1)
    assert (consumer.numbers, consumer.counters.gaps) == (plain.delivered, plain.gaps)


@pytest.mark.parametrize("last", [block(FAR + 1), beat(FAR + 1)], ids=["block", "heartbeat"])
def test_a_block_far_ahead_is_delivered_when_its_line_continues_from_it(last: SentBlock | Beat) -> None:
    consumer = Consumer([Event(A, block(0, 2)), Event(A, block(FAR)), Event(A, last)], lines=1)
    assert consumer.numbers == [0, 1, FAR, *([FAR + 1] if isinstance(last, SentBlock) else [])]
    assert consumer.lost == FAR - 2


def test_a_block_without_room_is_delivered_before_later_blocks_that_are_held() -> None:
    events = [Event(A, block(sequence)) for sequence in (8, 9, 5, 4)]
    consumer = Consumer(events, held_messages=2)
    assert consumer.numbers == [5, 8, 9]
    assert consumer.lost == 7


def test_keys_given_up_while_archives_deliver_are_not_missed() -> None:
    lost = list[int]()

    class Out:
        def deliver(self, block: SentBlock, first: int) -> None: ...

        def report(self, epoch: int, key: bytes | None, first: int, lost_messages: int) -> None:
            lost.append(lost_messages)

    order = SimulatedSlice(Out(), (b"",), 1, repairs=False, held_messages=100)
    order.begin(Position(EPOCH, 0))
    order.change_filters((b"A",))
    for sent in (SentBlock(0, 1, 0, 0, b"A", EPOCH), SentBlock(5, 1, 1, 1, b"A", EPOCH)):
        order.archived(order.state.request, sent, NOW)
    assert lost == []


def test_a_change_back_and_a_wider_one_before_the_confirmation_report_no_loss() -> None:
    consumer = Consumer([Event(A, SentBlock(0, 1, 0, 0, b"A", EPOCH))], 1, (b"A",))
    for prefixes in ((b"B",), (b"A",), (b"",)):
        consumer.order.change_filters(prefixes)
    consumer.order.live(A, SentBlock(5, 1, 4, 3, b"A", EPOCH), NOW)
    consumer.order.confirmed(A, EPOCH, 6, {b"A": End(6, 4)}, NOW)
    assert consumer.numbers == [0, 5]
    assert consumer.lost == 0
