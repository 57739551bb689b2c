"""A subscriber that starts with an image of the newest messages has no gap after it; invalid starts are rejected."""

from __future__ import annotations

import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import Batch, CallbackError, ConfigError, Publisher, Recorder, SlowPolicy, Subscriber
from blackbox.archive.serve.server import ArchiveServer
from blackbox.errors import ArchiveError, SubscriberError
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import wait_recorded
from tests.archive.test_images import Told
from tests.callbacks import count_rows
from tests.examples import examples
from tests.receive.subscribers import nothing

Number = tuple[int, int]
"""An epoch and a sequence."""


class Heard:
    """Calls of a callback: the image, later messages, and the newest message of each topic."""

    def __init__(self, subscriber: Subscriber, prefix: bytes = b"") -> None:
        self.newest: dict[bytes, tuple[int, int, bytes]] = {}
        self.image: dict[bytes, Number] = {}
        self.followed: list[tuple[int, bytes, int]] = []
        """(epoch, key, sequence) of all messages after the image."""
        self.wrong: list[str] = []
        self.told: list[object] = []
        self._key_bytes = subscriber.feed.key_bytes
        subscriber.on_batch(prefix)(self._take)
        subscriber.on_gap(prefix)(self.told.append)
        subscriber.on_reset(lambda: self.told.append("reset"))

    def _take(self, batch: Batch) -> None:
        epoch = batch.block.epoch
        rows = zip(batch.topics_per_message(), batch.sequence.tolist(), batch.payload_list(), strict=True)
        for topic, number, payload in rows:
            if batch.is_image and (self.followed or topic in self.image or not batch.is_recorded):
                self.wrong.append(f"{topic!r} of the image was repeated, late or live")
            if (epoch, number) <= self.newest.get(topic, (0, 0))[:2]:
                self.wrong.append(f"{topic!r} {number} arrived after {self.newest[topic]}")
            if batch.is_image:
                self.image[topic] = epoch, number
            else:
                self.followed.append((epoch, topic[: self._key_bytes], number))
            self.newest.pop(topic, None)
            if payload is not None:
                self.newest[topic] = epoch, number, payload


def check(heard: Heard, told: Told, epoch: int, prefix: bytes = b"") -> None:
    """Check that the image and later messages are complete, in order and without duplicates."""
    assert heard.wrong == []
    assert heard.told == []
    assert heard.newest == {topic: each for topic, each in told.newest.items() if topic.startswith(prefix)}
    assert {run for run, _, _ in heard.followed} <= {epoch}
    if not prefix:
        found = sorted(number for _, _, number in heard.followed)
        assert found == list(range(told.following - len(found), told.following))


@pytest.mark.parametrize("workers", [0, 2])
def test_messages_after_the_image_have_no_duplicates_and_no_gaps(tmp_path: Path, workers: int) -> None:
    feed, told = archived_feed(key_bytes=1), Told(1)
    for run in range(2):  # the newest of some topics are of the previous epoch and begin no epoch
        with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
            told.new_run()
            told.publish(publisher, 1_000, 50 - 20 * run)
            wait_recorded(recorder, 1_000)
            if run == 1:
                before = {topic: each[:2] for topic, each in told.newest.items()}
                subscriber = Subscriber(feed, workers=workers)
                heard = Heard(subscriber)
                count = subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64))(count_rows)
                subscriber.start(snapshot="latest")
                told.publish(publisher, 500)
                subscriber.wait_live()
                told.publish(publisher, 500)
                publisher.close()
                subscriber.run(until_end=True)
    check(heard, told, publisher.epoch)
    assert heard.image == before
    assert len(heard.followed) == 1_000
    assert count.total()[0] == len(before) + 1_000


@settings(max_examples=examples(10), deadline=None)
@given(
    key_bytes=st.sampled_from([0, 1, 3]),
    prefix=st.sampled_from([b"", b"A", b"B1", b"C7."]),
    size=st.integers(1, 400),
    hwm_blocks=st.sampled_from([2, 128]),
    joins=st.integers(1, 3),
    seed=st.integers(0, 1_000),
)
def test_the_newest_of_each_topic_matches_a_slow_loop_during_publishing(
    key_bytes: int, prefix: bytes, size: int, hwm_blocks: int, joins: int, seed: int
) -> None:
    """Several subscribers join during publishing and end with the same newest messages as the publisher."""
    feed, told, over = archived_feed(key_bytes=key_bytes, block_bytes=8_192), Told(key_bytes, seed), threading.Event()
    with (
        tempfile.TemporaryDirectory() as directory,
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, directory, serve=True),
    ):

        def publish() -> None:
            while not over.wait(0.001):
                told.publish(publisher, size)

        thread = threading.Thread(target=publish)
        thread.start()
        subscribers, all_heard = [], []
        try:
            for _ in range(joins):
                at_least = told.published + 1_000
                wait_until(lambda at_least=at_least: told.published > at_least, 60)  # type: ignore[misc]
                subscriber = Subscriber(feed, hwm_blocks=hwm_blocks, on_gap="repair", repair_wait=600)
                all_heard.append(Heard(subscriber, prefix))
                subscribers.append(subscriber.start(snapshot="latest", timeout=200))
        finally:
            over.set()
            thread.join()
        told.publish(publisher, 10)
        publisher.close()
        for subscriber in subscribers:
            subscriber.run(until_end=True)
    for heard in all_heard:
        check(heard, told, publisher.epoch, prefix)


def publish_of_many_keys(publisher: Publisher, recorder: Recorder, keys: int) -> None:
    for number in range(keys):
        publisher.publish(b"%03d.t" % number, b"")
    publisher.flush()
    wait_recorded(recorder, keys)
    publisher.wait_recorded(60)


def test_there_is_no_position_during_an_image(tmp_path: Path) -> None:
    """A subscriber that continued there would never get the rest of the image."""
    feed, came, go_on = archived_feed(key_bytes=3), threading.Event(), threading.Event()
    numbers: list[int] = []
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_of_many_keys(publisher, recorder, 400)
        subscriber = Subscriber(feed, queue_blocks=1, workers=1)

        @subscriber.on_batch(b"")
        def _(batch: Batch) -> None:
            numbers.append(len(batch))
            came.set()
            assert go_on.wait(200)

        subscriber.start(snapshot="latest")
        assert came.wait(200)
        assert subscriber._supervisor.slices.running[0].status.position is None  # a checkpoint raises
        go_on.set()
        subscriber.wait_live()
        with subscriber.checkpoint() as positions:
            assert (positions, sum(numbers)) == ({0: (publisher.epoch, 400)}, 400)
        subscriber.stop()


def test_slow_callbacks_for_the_image_do_not_delay_the_confirmation(tmp_path: Path) -> None:
    feed, started, go_on = archived_feed(key_bytes=3), threading.Event(), threading.Event()
    with ExitStack() as recording:
        with Publisher(feed) as publisher:
            recorder = recording.enter_context(Recorder(feed, tmp_path, serve=True))
            publish_of_many_keys(publisher, recorder, 400)
        subscriber = Subscriber(feed, queue_blocks=1, workers=1)
        subscriber.on_batch(b"")(lambda batch: go_on.wait(200))

        def start() -> None:
            subscriber.start(snapshot="latest")
            started.set()

        thread = threading.Thread(target=start)
        thread.start()
        wait_until(lambda: any(each.status.is_ready for each in subscriber._supervisor.slices.running.values()))
        with Publisher(feed):
            assert started.wait(50)  # before any callback has returned
            go_on.set()
            subscriber.wait_live()
            thread.join()
            subscriber.stop()


def test_a_stream_has_no_position_during_an_image(tmp_path: Path) -> None:
    feed = archived_feed(key_bytes=3)
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_of_many_keys(publisher, recorder, 2)
        subscriber = Subscriber(feed)
        stream = subscriber.stream(b"")
        subscriber.start(snapshot="latest")
        subscriber.wait_live()
        assert stream.get(60).topic == b"000.t"
        with pytest.raises(SubscriberError, match="has not read the whole image yet"), subscriber.checkpoint():
            pass
        assert stream.get(60).topic == b"001.t"
        with subscriber.checkpoint() as positions:
            assert positions == {0: (publisher.epoch, 2)}
        subscriber.stop()


def test_a_conflating_subscriber_cannot_start_with_an_image() -> None:
    subscriber = Subscriber(archived_feed(), slow=SlowPolicy("conflate"))
    Heard(subscriber)
    with pytest.raises(ConfigError, match="snapshot was 'latest' with the policy 'conflate'"):
        subscriber.start(snapshot="latest")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"since": {0: (1, 1, 1)}}, ConfigError, r"\(1, 1, 1\)\}, expected the \(epoch, sequence\) of each"),
        ({"since": {0: (5.7, 1)}}, ConfigError, r"\(5\.7, 1\)\}, expected the \(epoch, sequence\) of each"),
        ({"since": {0: (5, -3)}}, ValueError, "sequence was -3, expected 0 to"),
        ({"since": {1: (1, 1)}}, ConfigError, r"since was for slices \[1\], expected some of 0 to 0"),
        ({"since": 0, "back": 5}, ConfigError, "start was given since 0 and back 5, expected one of them"),
        ({"back": 0}, ValueError, "back was 0, expected 1 to"),
        ({"since": "yesterday"}, ValueError, "time was 'yesterday', expected ns since 1970"),
        ({"back": 5}, ArchiveError, "did not answer"),
        ({"snapshot": "latest"}, ArchiveError, "no archive of feed 'tape' answered"),
    ],
)
def test_invalid_starts_are_rejected(options: dict[str, Any], error: type[Exception], text: str) -> None:
    subscriber = Subscriber(archived_feed(), repair_wait=0.01)
    subscriber.on(b"")(nothing)
    with pytest.raises(error, match=text):
        subscriber.start(timeout=0.1, **options)


def test_starts_and_repairs_without_archives_are_rejected() -> None:
    with pytest.raises(ConfigError, match="feed 'tape' had no archives"):
        Subscriber(archived_feed(0), on_gap="repair")
    for options in ({"since": 0}, {"snapshot": "latest"}):
        subscriber = Subscriber(archived_feed(0))
        subscriber.on(b"")(nothing)
        with pytest.raises(ConfigError, match="had no archives"):
            subscriber.start(**options)


def test_a_subscriber_can_end_during_its_image(tmp_path: Path) -> None:
    feed, told, came = archived_feed(key_bytes=3), Told(3), threading.Event()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path) as recorder:
        told.publish(publisher, 5_000, 1_000)
        wait_recorded(recorder, 5_000)
    with Publisher(feed), ArchiveServer(tmp_path / feed.name, feed.archives):
        subscriber = Subscriber(feed, queue_blocks=1)

        @subscriber.on_batch(b"")
        def _(batch: Batch) -> None:
            came.set()
            raise ValueError(f"{len(batch)} too many")

        with pytest.raises(CallbackError, match="too many"):
            subscriber.start(snapshot="latest")  # it may raise already
            subscriber.run()
        assert came.is_set()
