"""A subscription is active once its publisher has confirmed it, or its callback ends with the refusal."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import msgspec
import numpy
import pytest
import zmq

from blackbox import Batch, Feed, Publisher, Recorder, SlowPolicy, Subscriber
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.format import ACCEPT_KEY, CONFIRM_KEY, FLAG_REFUSED, WANT_KEY
from blackbox.block.form.layout import VERSION
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.position import End
from blackbox.errors import NotConfirmedError, RightsError
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import Collector, RawPublisher, wait_until
from tests import wire
from tests.keyring import Keyring
from tests.late_answers import late_answers
from tests.receive.subscribers import error_of_start, nothing, one_slice, publishing, sliced, subscribed


def test_start_names_the_slice_without_a_publisher() -> None:
    feed = sliced(2)
    endpoint = re.escape(feed.slices[1].endpoints[0])
    with Publisher(msgspec.structs.replace(feed, slices=(msgspec.structs.replace(feed.slices[0], share=None),))):
        text = f"slice 1: no publisher at {endpoint} confirmed the subscription in "
        subscriber = error_of_start(lambda: subscribed(feed)[0], text)
    assert issubclass(NotConfirmedError, TimeoutError)
    assert subscriber.state is SubscriberLife.ENDED


def test_an_answer_after_a_long_queue_is_in_time() -> None:
    subscriber, _ = subscribed(feed := one_slice(heartbeat_ns=20_000_000))
    with late_answers(feed, beats=20):
        subscriber.start(timeout=200)
        subscriber.stop()


def test_a_subscriber_that_starts_first_withdraws_its_acceptances_of_killed_publishers() -> None:
    subscriber, _ = subscribed(feed := one_slice())
    starting = threading.Thread(target=subscriber.start)
    starting.start()
    for epoch in range(1, 4):
        with RawPublisher(feed, epoch=epoch) as publisher:
            mine = epoch.to_bytes(8, "little") + b"\0"
            wait_until(lambda: [k[10:] for k in publisher.subscriptions() if k.startswith(ACCEPT_KEY)] == [mine])
    starting.join()
    subscriber.terminate()


def test_a_callback_added_while_the_queue_is_full_is_confirmed() -> None:
    feed = one_slice(heartbeat_ns=20_000_000)
    subscriber = Subscriber(feed, hwm_blocks=1, queue_blocks=1, slow=SlowPolicy("warn", max_lag=1e6))
    hold, stop = threading.Event(), threading.Event()
    payloads, index = numpy.zeros((2_000, 100), numpy.uint8), numpy.zeros(2_000, numpy.int32)

    @subscriber.on_batch(b"")
    def wait(batch: Batch) -> None:
        hold.wait(200)

    def flood() -> None:
        while not stop.is_set():
            publisher.publish_many((b"A.t",), index, payloads)

    with Publisher(feed, hwm_blocks=2) as publisher:
        subscriber.start()
        flooding = threading.Thread(target=flood)
        flooding.start()
        wait_until(lambda: publisher.statistics().messages > 1_000_000)
        subscriber.on(b"Z")(print)
        wait_until(lambda: publisher.statistics().messages > 1_500_000)
        stop.set()
        flooding.join()
        hold.set()
        subscriber.wait_confirmed(200)
        subscriber.terminate()


def nonce_of(publisher: RawPublisher) -> bytes:
    return next((each for each in publisher.subscriptions() if each.startswith(CONFIRM_KEY)), b"")


def test_a_refusal_of_a_prefix_that_a_wider_one_replaces_confirms_nothing() -> None:
    subscriber = Subscriber(feed := one_slice())
    subscriber.on(b"AB")(nothing)
    with RawPublisher(feed) as publisher, subscriber:
        publisher.confirms = False
        before = publisher.subscriptions()
        subscriber.on(b"A")(nothing)
        wait_until(lambda: WANT_KEY + b"A" in publisher.subscriptions() and nonce_of(publisher) not in before)
        nonce = nonce_of(publisher)
        refusal = Block.encode_ends(nonce, {WANT_KEY + b"AB": End(3, 0)}, HeaderFields(flags=FLAG_REFUSED))
        publisher.send_frames(refusal.frames)
        wait_until(lambda: WANT_KEY + b"AB" not in publisher.subscriptions() and nonce_of(publisher) != nonce)
        assert not subscriber._supervisor.slices.running[0].status.is_confirmed


# Publishers with another length of key, or of another version


@pytest.mark.parametrize(("theirs", "ours"), [(2, 4), (0, 2), (2, 0)])
def test_both_lengths_of_keys_are_named_and_nothing_is_received(tmp_path: Path, theirs: int, ours: int) -> None:
    feed = one_slice(key_bytes=theirs, heartbeat_ns=20_000_000)
    other = msgspec.structs.replace(feed, key_bytes=ours)
    text = f"its blocks have key_bytes = {theirs}, expected key_bytes = {ours}"
    with Publisher(feed) as publisher:
        publisher.publish(b"AAPL.trade", b"")
        subscriber = error_of_start(
            lambda: subscribed(other)[0], f"slice 0: no publisher at tcp.* confirmed .*: {text}"
        )
        recorder = error_of_start(lambda: Recorder(other, tmp_path), text)
    received = subscriber.statistics().received
    assert received.messages == 0
    assert received.faults["key_rule"] > 0
    assert recorder.statistics().messages == 0


@pytest.mark.parametrize("key_rule", [2, 0])
def test_one_block_with_a_key_on_a_feed_without_keys_changes_nothing(key_rule: int) -> None:
    subscriber, got = subscribed(feed := one_slice())
    columns = PayloadColumns(b"x", offsets=[0, 1])
    forged = Block.encode([b"AAPL"], [0], columns, HeaderFields(key_rule=key_rule), key=b"AA"[:key_rule])
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"AAPL", b"0")]))
        publisher.send_frames((b"AA", forged.header, forged.body.tobytes()))
        publisher.encode([(b"AAPL", b"lost")])
        block = publisher.encode([(b"AAPL", b"2")])
        publisher.send(block)
        publisher.send(block)
    received = subscriber.statistics().received
    assert got.payloads == [b"0", b"2"]
    faults = {"key_rule" if key_rule else "topic_key": 1}
    assert (received.gaps, received.duplicates, received.faults) == (1, 1, faults)


def test_a_key_shorter_than_the_feeds_is_rejected() -> None:
    subscriber, got = subscribed(feed := one_slice(key_bytes=4))
    with publishing(feed, subscriber) as publisher:
        block = publisher.encode([(b"AAPL.trade", b"0")])
        for key in (b"AA", b""):
            publisher.send_frames((key, block.header, block.body.tobytes()))
        publisher.send(block)
        publisher.send(publisher.encode([(b"A.x", b"a topic shorter than a key")]))
    assert len(got) == 2
    assert subscriber.statistics().received.faults == {"topic_key": 2}


def test_a_publisher_of_another_version_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Its headers may have any size."""
    feed = one_slice()
    header = wire.pack(wire.Fields(version=99)) + bytes(16)
    text = f"block version was 99, expected {VERSION}: use the same release of blackbox on both sides"
    stop = threading.Event()
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.bind(feed.slices[0].endpoints[0])

        def send() -> None:
            while not stop.wait(0.01):
                publisher.send_multipart([b"\0H", header, b""])

        sending = threading.Thread(target=send)
        sending.start()
        try:
            error_of_start(lambda: subscribed(feed)[0], text)
        finally:
            stop.set()
            sending.join()
    assert text in caplog.text


def feeds(tmp_path: Path, rights: str) -> tuple[Feed, Feed]:
    """A feed as seen by its publisher, which grants `rights`, and by a desk."""
    ring = Keyring(tmp_path, "exchange", "desk")
    ring.allow("exchange", "desk")
    (ring.directory / "allowed-by-exchange" / "rights.toml").write_text(rights)
    feed = one_slice(key_bytes=4, heartbeat_ns=100_000_000)
    return ring.feed(feed, "exchange"), ring.feed(feed, "desk", "exchange")


def test_a_refused_callback_ends_alone_with_the_reason_and_the_last_one_ends_the_subscriber(tmp_path: Path) -> None:
    above, below = feeds(tmp_path, 'desk = ["AAPL", "MSFT"]')
    subscriber, got, other = Subscriber(below), Collector(), Collector()
    subscriber.on(b"AAPL")(got.message)
    with Publisher(above) as publisher:
        subscriber.start()
        for _ in range(2):  # it may ask again
            stream = subscriber.stream(b"IBM.")
            subscriber.wait_confirmed(60, symbols=["AAPL"])
            with pytest.raises(RightsError, match="refused the topics b'IBM.': our key has no right"):
                subscriber.wait_confirmed(60, symbols=["IBM"])
            with pytest.raises(RightsError, match="no right"):
                stream.get(60)
        assert len(subscriber.callbacks) == 1
        subscriber.wait_confirmed(60, b"IBM.")  # once is enough
        subscriber.on(b"MSFT")(other.message)
        subscriber.wait_confirmed(200)
        for topic in (b"AAPL.x", b"IBM..x", b"MSFT.x"):
            publisher.publish(topic, b"1")
        got.wait(1)
        other.wait(1)
        assert subscriber.state is SubscriberLife.RUNNING
        for callback in (got.message, other.message):
            subscriber.remove(callback)
        subscriber.on(b"IBM.")(nothing)
        wait_until(lambda: subscriber.is_finished)
        with pytest.raises(RightsError, match="no right"):
            subscriber.stop()
    assert (len(got), len(other)) == (1, 1)
