"""Missing sequences are counted; blocks are held while the other line may still bring the ones before.

See also `test_told_in_place.py`; `tests/simulation` checks the decisions with random faults, `tests/torture` kills.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy
import pytest

from blackbox import Recorder, SlowPolicy
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.errors import GapError
from blackbox.native.compile.jit import njit
from blackbox.native.compile.kept_arguments import Kept, kept_at
from blackbox.receive.order.keys import forget_keys
from blackbox.receive.order.losses import lose_messages, next_loss, number_key
from blackbox.receive.order.state import Order, OrderAt, Phase, held_block, key_state
from blackbox.receive.state import SliceCounters
from blackbox.receive.supervise import confirmation_wait
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import wait_recorded
from tests.receive.subscribers import SECOND_NS, numbers_of, one_slice, publishing, subscribed, two_line_feed

A, B = 0, 1


def test_a_key_beyond_the_table_is_delivered_counted_as_untracked_and_keeps_its_line_alive() -> None:
    subscriber, got = subscribed(feed := one_slice(key_bytes=2, max_topics=4, heartbeat_ns=60 * SECOND_NS))
    with publishing(feed, subscriber) as publisher:
        for number in range(100):
            publisher.send(publisher.encode([(b"%02d.t" % (number % 10), b"%d" % number)]))
        got.wait(100)
        epochs = subscriber._supervisor.slices.running[0].status.order.epochs
        before = epochs.heard_ns[0]
        publisher.send(publisher.encode([(b"09.t", b"100")]))
        got.wait(101)
        assert epochs.heard_ns[0] > before
    assert sorted(numbers_of(got)) == list(range(101))
    assert subscriber.statistics().received.untracked == 21


def test_keys_of_earlier_epochs_leave_room_for_those_of_the_next_one() -> None:
    subscriber, got = subscribed(feed := one_slice(key_bytes=2, max_topics=4), b"0", b"1", workers=1)
    with publishing(feed, subscriber) as publisher:
        for publisher.epoch in range(1, 6):
            publisher.sequences, publisher.ends = [0], [{}]
            topics = [b"%02d.t" % (4 * publisher.epoch - 4 + number) for number in range(4)]
            for topic in topics:
                publisher.send(publisher.encode([(topic, b"")]))
                publisher.encode([(topic, b"lost")])
                publisher.send(publisher.encode([(topic, b"")]))
            got.wait(8 * publisher.epoch)
            wait_until(lambda: subscriber.statistics().received.gaps == 4 * publisher.epoch)
    assert [message.sequence for message in got.messages] == 5 * [0, 2, 3, 5, 6, 8, 9, 11]
    assert (subscriber.statistics().received.gaps, subscriber.statistics().received.untracked) == (20, 0)


_at = kept_at(OrderAt)


@njit(nogil=True)
def _number(kept: int, text: int, size: int) -> int:
    number: int = number_key(_at(kept), text, size)
    return number


@njit(nogil=True)
def _keep_some(kept: int, first_held: int, doubted: int, heard: int, losers: tuple[int, int]) -> None:
    at = _at(kept)
    held_block(at, 1).key, held_block(at, 2).key = first_held, doubted
    key_state(at, heard).heard_epoch = 9
    key_state(at, 1).told_before = 30
    for key in losers:
        lose_messages(at, key, 1, 2, 1, False)


@njit(nogil=True)
def _keys_in_use(kept: int) -> tuple[int, int, int, int]:
    at = _at(kept)
    return held_block(at, 1).key, held_block(at, 2).key, next_loss(at).key, next_loss(at).key


def test_keys_of_kept_blocks_losses_told_ends_and_later_epochs_stay_when_others_are_forgotten() -> None:
    counters = SliceCounters()
    order = Order(4, 2, 1, 1, 1_000, counters)
    kept = Kept(order.at)

    def number(name: bytes) -> int:
        text = numpy.frombuffer(name, numpy.uint8)
        return int(_number(kept.address, text.ctypes.data, len(name)))

    assert [number(name) for name in (b"A", b"B", b"C", b"D", b"E", b"F", b"G", b"H")] == [*range(8)]
    order.state.epoch, order.state.phase, order.state.told_next = 5, Phase.CATCHING_UP, 30
    order.state.first_held, order.state.doubted_place[1], order.epochs.doubted_key[0] = 1, 2, 1 + 5
    _keep_some(kept.address, 6, 3, 0, (2, 4))
    forget_keys(order.at)
    assert order.keys.names() == [b"A", b"B", b"C", b"D", b"E", b"F", b"G"]
    found = [order.keys.name(key) for key in (*_keys_in_use(kept.address), order.epochs.doubted_key[0] - 1)]
    assert found == [b"G", b"D", b"E", b"C", b"F"]
    assert (number(b"G"), number(b"H"), counters.gaps) == (6, 7, 2)


def test_archives_deliver_messages_of_more_keys_than_an_epoch_has(tmp_path: Path) -> None:
    subscriber, got = subscribed(feed := archived_feed(key_bytes=2, max_topics=4), b"0", b"1", workers=1)
    with RawPublisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        for publisher.epoch in range(1, 6):
            publisher.sequences, publisher.ends = [0], [{}]
            for number in range(4):
                topic = b"%02d.t" % (4 * publisher.epoch - 4 + number)
                publisher.send(publisher.encode([(topic, b"")] * 2))
            wait_recorded(recorder, 8 * publisher.epoch)
        with subscriber.start(since=0):
            got.wait(40)
            assert [message.sequence for message in got.messages] == 5 * [*range(8)]
            assert subscriber.statistics().received.gaps == 0


def of_numbers(numbers: list[int]) -> Block:
    """Return a block whose messages have these sequences, which are also their payloads."""
    payloads = [b"%d" % number for number in numbers]
    return Block.encode(
        [b"T"],
        [0] * len(numbers),
        PayloadColumns(b"".join(payloads), offsets=numpy.cumsum([0, *map(len, payloads)]), sequences=numbers),
        HeaderFields(epoch=1, sequence=numbers[0], ts_out=time.time_ns()),
    )


@pytest.mark.parametrize("lines", [1, 2])
def test_sequences_left_out_of_a_block_are_neither_lost_nor_delivered_twice(lines: int) -> None:
    subscriber, got = subscribed(feed := two_line_feed(lines=lines), slow=SlowPolicy("warn"), line_wait=1_000)
    held = [[50, 60]] if lines == 2 else []
    with publishing(feed, subscriber) as publisher:
        blocks = [[0, 10, 20], [21, 30], [25, 30, 40], [5, 30], *held, [41, 49], [61, 70]]
        for line in range(lines):
            for numbers in blocks:
                publisher.send(of_numbers(numbers), [line])
            # One line after the other: sequences passed by both lines are lost.
            many = len(blocks) * (line + 1)
            wait_until(lambda many=many: subscriber.statistics().received.blocks == many)  # type: ignore[misc]
        publisher.sequences[0] = 75
    expected = [0, 10, 20, 21, 30, 40, *([41, 49, 50, 60] if lines == 2 else [41, 49]), 61, 70]
    assert [message.sequence for message in got.messages] == numbers_of(got) == expected
    received = subscriber.statistics().received
    assert received.messages - received.duplicates == len(expected)
    assert received.gaps == (75 - 71) + (0 if lines == 2 else 61 - 50)


def test_a_held_block_that_came_twice_counts_its_messages_as_duplicates_not_its_sequences() -> None:
    subscriber, got = subscribed(feed := two_line_feed(), line_wait=1_000)
    with publishing(feed, subscriber) as publisher:
        for line in (A, B):
            publisher.send(of_numbers([10, 30]), [line])
        publisher.sequences[0] = 31
    received = subscriber.statistics().received
    assert numbers_of(got) == [10, 30]
    assert (received.messages, received.duplicates, received.gaps) == (4, 2, 10)


def test_a_held_block_waits_only_for_line_wait() -> None:
    subscriber, got = subscribed(feed := two_line_feed(), line_wait=0.01)
    with RawPublisher(feed) as publisher, subscriber:
        publisher.send(publisher.encode([(b"T", b"0")]), [A])
        publisher.encode([(b"T", b"1")])
        publisher.send(publisher.encode([(b"T", b"2")]), [A])
        assert [m.payload for m in got.wait(2)] == [b"0", b"2"]
    assert subscriber.statistics().received.gaps == 1


def test_a_stop_raises_the_error_for_a_gap_before_a_held_block() -> None:
    subscriber, got = subscribed(feed := two_line_feed(), line_wait=1_000, on_gap="stop")
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"T", b"0")]), [A])
        publisher.encode([(b"T", b"lost")])
        publisher.send(publisher.encode([(b"T", b"2")]), [A])
        wait_until(lambda: subscriber.statistics().received.held == 1)
        with pytest.raises(GapError, match="1 messages were lost, from sequence 1 of epoch 1 on"):
            subscriber.stop()
        with pytest.raises(GapError), subscriber.checkpoint():
            pass
    assert got.payloads == [b"0"]


def test_a_held_block_does_not_wait_for_a_line_of_an_earlier_epoch() -> None:
    subscriber, got = subscribed(feed := two_line_feed(), line_wait=1_000)
    with publishing(feed, subscriber, time.time_ns()) as publisher:
        earlier = [publisher.encode([(b"T", b"earlier %d" % number)]) for number in range(2)]
        publisher.send(earlier[0], [A, B])
        got.wait(1)
        publisher.epoch, publisher.sequences, publisher.ends = publisher.epoch + 1, [0], [{}]
        for number in range(2):  # an epoch is accepted at its second block
            publisher.send(publisher.encode([(b"T", b"%d" % number)]), [A])
        got.wait(3)
        publisher.send(earlier[1], [B])
        wait_until(lambda: subscriber.statistics().received.stale == 1)
        publisher.encode([(b"T", b"lost")])
        publisher.send(publisher.encode([(b"T", b"last")]), [A])
        got.wait(4)
    assert got.payloads == [b"earlier 0", b"0", b"1", b"last"]
    assert subscriber.statistics().received.gaps == 1


def test_a_subscriber_starts_on_one_line_if_the_other_has_no_publisher(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmation_wait, "_SECOND_LINE_S", 0.3)
    subscriber, got = subscribed(feed := two_line_feed(heartbeat_ns=100_000_000))  # line B soon counts as dead
    with RawPublisher(feed) as publisher:
        publisher.close_line(B)
        subscriber.start()
        subscriber.wait_confirmed(0.1)
        assert caplog.text.count("only 1 of 2 lines have a publisher") == 2
        publisher.send(publisher.encode([(b"T", b"0"), (b"T", b"1")]), [A])
        got.wait(2)
        publisher.heartbeat(end=True, lines=[A])
        subscriber.run(until_end=True)
    assert got.payloads == [b"0", b"1"]


def test_forgetting_a_key_while_one_of_its_blocks_is_held_counts_no_gap() -> None:
    subscriber, _ = subscribed(feed := two_line_feed(key_bytes=1), b"K", line_wait=1_000)
    drop = Collector()
    subscriber.on(b"L")(drop.message)
    with RawPublisher(feed) as publisher, subscriber:
        publisher.send(publisher.encode([(b"L", b"0")]), [A])
        publisher.send(publisher.encode([(b"L", b"500")], sequence=500, previous=499, key_sequence=400), [A])
        wait_until(lambda: subscriber.statistics().received.held == 1)
        subscriber.remove(drop.message)
        subscriber.wait_confirmed()
        wait_until(lambda: subscriber.statistics().received.held == 0)
    assert subscriber.statistics().received.gaps == 0
