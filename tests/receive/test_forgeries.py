"""A forged block or heartbeat: later messages disprove it, and no genuine message is lost.

See also `forged_control` of `tests/torture`, and `tests/simulation` for sequences far ahead.
"""

from __future__ import annotations

import random
import struct
import time

import pytest

from blackbox import Batch, SlowPolicy
from blackbox.block.form.block import Block
from blackbox.block.form.format import ACCEPT_KEY
from blackbox.receive.order.epochs import AHEAD_NS
from blackbox.testing import Collector, RawPublisher, wait_until
from tests import wire
from tests.receive.subscribers import one_slice, publishing, subscribed, two_line_feed

SELDOM_NS = 60 * 10**9
"""A heartbeat interval so long that no line counts as dead."""


def send(publisher: RawPublisher, *payloads: bytes, epoch: int = 1, sequence: int | None = None, line: int = 0) -> None:
    before = publisher.epoch, publisher.sequences[0], dict(publisher.ends[0])
    publisher.epoch = epoch
    for payload in payloads:
        publisher.send(publisher.encode([(b"T", payload)], sequence=sequence), (line,))
    if epoch != before[0] or sequence is not None:
        publisher.epoch, publisher.sequences[0], publisher.ends[0] = before


def test_a_forgery_on_each_line_changes_nothing_however_late_one_is(caplog: pytest.LogCaptureFixture) -> None:
    """The block on line A that disproves the first forgery may arrive after the second one, on line B."""
    subscriber, got = subscribed(feed := two_line_feed())
    with publishing(feed, subscriber, 100) as publisher:
        publisher.send(publisher.encode([(b"T", b"0")]), (0, 1))
        got.wait(1)
        send(publisher, b"forged", epoch=200, sequence=0)
        for number in range(1, 4):
            send(publisher, b"%d" % number, epoch=100, line=1)
            got.wait(number + 1)
            if number < 3:
                send(publisher, b"forged", epoch=200, sequence=0, line=1)
        publisher.sequences[0] = 1
        send(publisher, b"1", b"2", b"3", b"4", epoch=100)
    received = subscriber.statistics().received
    assert got.payloads == [b"0", b"1", b"2", b"3", b"4"]
    assert (received.epochs, received.gaps, received.implausible) == (1, 0, 3)
    assert "messages or heartbeats were implausible: of another epoch, or far ahead in sequence" in caplog.text


def test_a_forgery_between_two_late_blocks_of_the_earlier_epoch_changes_nothing() -> None:
    subscriber, got = subscribed(feed := two_line_feed())
    with publishing(feed, subscriber, 100) as publisher:
        publisher.send(publisher.encode([(b"T", b"old")]), (0, 1))
        wait_until(lambda: subscriber.statistics().received.duplicates == 1, what="both copies")
        for number in range(3):
            send(publisher, b"%d" % number, epoch=200, sequence=number)
        got.wait(4)
        for number in range(1, 4):
            send(publisher, b"forged", epoch=300, sequence=number, line=1)
            send(publisher, b"late", epoch=100, sequence=number, line=1)
        wait_until(lambda: subscriber.statistics().received.stale == 3)
        publisher.epoch, publisher.sequences[0] = 200, 3
        send(publisher, b"3", epoch=200)
    received = subscriber.statistics().received
    assert got.payloads == [b"old", b"0", b"1", b"2", b"3"]
    assert (received.epochs, received.gaps, received.implausible) == (2, 0, 3)


@pytest.mark.parametrize(("early", "late"), [(0, 1), (1, 0)])
def test_the_first_blocks_of_an_epoch_on_both_lines_are_delivered_in_order(early: int, late: int) -> None:
    """One line begins with the epoch's first message, the other with its third; both are unconfirmed at first."""
    subscriber, got = subscribed(feed := two_line_feed(), line_wait=60)
    with publishing(feed, subscriber, 100) as publisher:
        publisher.send(publisher.encode([(b"T", b"before")]), (0, 1))
        got.wait(1)
        publisher.epoch, publisher.sequences[0] = 200, 0
        blocks = [publisher.encode([(b"T", b"%d" % number)]) for number in range(4)]
        publisher.send(blocks[2], (late,))
        for block in blocks:
            publisher.send(block, (early,))
        got.wait(5)  # otherwise the late line may be accepted alone, before the early one
        publisher.send(blocks[3], (late,))
        wait_until(lambda: subscriber.statistics().received.duplicates >= 3)
    received = subscriber.statistics().received
    assert got.payloads == [b"before", b"0", b"1", b"2", b"3"]
    assert (received.epochs, received.gaps, received.implausible, received.duplicates) == (2, 0, 0, 3)


def test_an_unfinished_epoch_continues_after_two_blocks_of_another() -> None:
    subscriber, got = subscribed(feed := one_slice())
    with publishing(feed, subscriber) as publisher:
        send(publisher, b"0", b"1")
        send(publisher, b"forged", epoch=2, sequence=0)
        send(publisher, b"forged too", epoch=2, sequence=1)
        send(publisher, b"2", b"3", b"4")
        got.wait(7)
        publisher.heartbeat()  # asks for a confirmation: the subscriber cannot know what it missed meanwhile
        wait_until(lambda: acceptances(publisher) == 1)
    assert got.payloads == [b"0", b"1", b"forged", b"forged too", b"2", b"3", b"4"]
    assert (subscriber.statistics().received.stale, subscriber.statistics().received.epochs) == (0, 3)


def acceptances(publisher: RawPublisher) -> int:
    return sum(key.startswith(ACCEPT_KEY) for key in publisher.subscriptions())


@pytest.mark.parametrize("epoch", [50, 200])
def test_the_first_block_of_an_epoch_is_delivered_before_its_second_or_its_heartbeat(epoch: int) -> None:
    """Also for a smaller epoch: the publisher's clock may have been stepped back."""
    subscriber, got = subscribed(feed := one_slice())
    with publishing(feed, subscriber, 100) as publisher:
        send(publisher, b"0", b"1", epoch=100)
        publisher.epoch, publisher.sequences[0] = epoch, 0
        send(publisher, b"first", epoch=epoch)
        publisher.heartbeat()
        assert got.wait(3)[-1].payload == b"first"
        send(publisher, b"second", epoch=epoch)
    assert got.payloads == [b"0", b"1", b"first", b"second"]
    assert subscriber.statistics().received.gaps == 0


def test_an_epoch_that_began_in_the_future_is_rejected_and_named() -> None:
    subscriber, got = subscribed(feed := one_slice())
    with publishing(feed, subscriber) as publisher:
        send(publisher, *[b"forged"] * 3, epoch=time.time_ns() + 2 * AHEAD_NS)
        send(publisher, b"0")
    assert got.payloads == [b"0"]
    assert subscriber.statistics().received.faults == {"epoch": 3}


def test_a_start_far_into_an_epoch_has_the_position_of_the_confirmation() -> None:
    subscriber, _ = subscribed(feed := one_slice())
    with RawPublisher(feed) as publisher:
        publisher.sequences[0] = 1 << 25
        with subscriber, subscriber.checkpoint() as positions:
            assert positions == {0: (1, 1 << 25)}


def test_time_until_a_block_is_accepted_is_not_lag() -> None:
    limit_s = 2.0
    slow = SlowPolicy("warn", max_lag=limit_s, start_grace=0)
    subscriber, got = subscribed(feed := one_slice(heartbeat_ns=SELDOM_NS), slow=slow)
    with publishing(feed, subscriber) as publisher:
        send(publisher, b"0")
        send(publisher, b"1", sequence=1 << 40)
        sent = time.monotonic()
        wait_until(lambda: time.monotonic() - sent > limit_s)
        send(publisher, b"2", sequence=(1 << 40) + 1)
        got.wait(3)
        publisher.sequences[0] = (1 << 40) + 2
    assert got.payloads == [b"0", b"1", b"2"]
    assert subscriber.statistics().lag.slow_blocks == 0


@pytest.mark.parametrize("proof", ["a block", "a heartbeat"])
def test_an_end_followed_by_any_message_is_withdrawn(proof: str) -> None:
    subscriber, got = subscribed(feed := two_line_feed())
    with publishing(feed, subscriber) as publisher:
        lines = subscriber._supervisor.slices.running[0].status.state
        publisher.heartbeat(end=True, lines=[0])
        wait_until(lambda: lines.finished_lines == 0b01, what="line A has ended")
        if proof == "a block":
            publisher.send(publisher.encode([(b"T", b"0")]), lines=[0])
        else:
            publisher.heartbeat(lines=[0])
        wait_until(lambda: lines.finished_lines == 0, what="line A continues")
        publisher.heartbeat(end=True, lines=[1])
        wait_until(lambda: lines.finished_lines == 0b10, what="only line B has ended")
    assert got.payloads == ([b"0"] if proof == "a block" else [])


def test_after_a_disproved_end_the_publisher_counts_the_subscriber_again() -> None:
    subscriber, got = subscribed(feed := one_slice(heartbeat_ns=SELDOM_NS))
    with publishing(feed, subscriber) as publisher:
        wait_until(lambda: acceptances(publisher) == 1)
        publisher.heartbeat(end=True)
        wait_until(lambda: acceptances(publisher) == 0, what="the end withdraws the acceptance")
        send(publisher, b"0")
        got.wait(1)
        publisher.heartbeat()
        wait_until(lambda: acceptances(publisher) == 1, what="the publisher counts the subscriber again")


def with_numbers(block: Block, numbers: list[int]) -> Block:
    """Return the block with these topic numbers of its publisher."""
    fields = wire.unpack(block.header)
    at = block.layout.topic_numbers
    column = wire.pad(struct.pack(f"<{len(numbers)}I", *numbers))
    body = block.body[:at].tobytes() + column + block.body[at:].tobytes()
    flags = fields.flags | wire.NUMBERS
    fields = fields._replace(flags=flags, body_bytes=len(body), body_checksum=wire.checksum(body))
    return Block.decode(block.key, wire.pack(fields), body)


def test_wrong_topic_numbers_never_select_another_topic() -> None:
    chance = random.Random(3)
    topics = [b"T%d" % n for n in range(9)] + [b"a longer topic, %d of them" % n for n in range(9)]
    subscriber, got = subscribed(feed := one_slice())
    short, numbered = Collector(), list[tuple[bytes, int]]()
    subscriber.on(b"T")(short.message)

    @subscriber.on_batch(b"")
    def note(batch: Batch) -> None:
        numbered.extend(zip(batch.topics, batch.topic_numbers.tolist(), strict=True))

    sent = []
    with publishing(feed, subscriber) as publisher:
        for number in range(100):
            some = chance.sample(topics, chance.randint(1, 9))
            block = publisher.encode([(topic, topic) for topic in some])
            wrong = (0, 1, (0, 3, 1 << 31, (1 << 32) - 1)[number % 4])
            publisher.send(with_numbers(block, [chance.choice(wrong) for _ in some]))
            sent += some
    assert [message.topic for message in got.messages] == got.payloads == sent
    assert short.payloads == [topic for topic in sent if topic.startswith(b"T")]
    names = subscriber.topics(0)
    assert [(topic, names.index(topic)) for topic in sent] == numbered
