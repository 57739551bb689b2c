"""A subscriber that starts in the past reads archives, then continues live without a gap."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from blackbox import Batch, CallbackError, ConfigError, Publisher, Recorder, Subscriber
from blackbox.archive.serve.server import ArchiveServer
from blackbox.errors import ArchiveError, SubscriberError
from blackbox.testing import RawPublisher
from tests.archive.archives import archived_feed, publish_parts, recorded
from tests.archive.recorders import feed_of, publish_numbered, wait_recorded
from tests.receive.subscribers import nothing


class Heard:
    """Epoch and sequence of all messages in a batch callback."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.epochs: list[int] = []
        self.numbers: list[int] = []
        self.resets: list[int] = []
        self.gaps: list[tuple[int, int]] = []
        subscriber.on_batch(b"")(self._batch)
        subscriber.on_reset(lambda: self.resets.append(len(self.numbers)))
        subscriber.on_gap(b"")(lambda gap: self.gaps.append((gap.sequence, gap.count)))

    def _batch(self, batch: Batch) -> None:
        self.epochs += [batch.block.epoch] * len(batch)
        self.numbers += batch.sequence.tolist()


@contextmanager
def recorded_now(tmp_path: Path, count: int, **settings: Any) -> Iterator[tuple[Publisher, Subscriber]]:
    """Yield a publisher of this many recorded messages, and a subscriber, which is run to the publisher's end."""
    feed = archived_feed()
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_parts(publisher, 0, count)
        wait_recorded(recorder, count)
        subscriber = Subscriber(feed, **settings)
        yield publisher, subscriber
        publisher.close()
        subscriber.run(until_end=True)


@pytest.mark.parametrize(
    "since",
    [
        lambda epoch: 0,
        lambda epoch: "session",
        lambda epoch: "00:00Z",
        lambda epoch: datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1),
        lambda epoch: {0: (epoch, 777)},
    ],
)
def test_from_a_start_in_the_past_then_live(tmp_path: Path, since: Callable[[int], Any]) -> None:
    with recorded_now(tmp_path, 5_000, on_gap="repair") as (publisher, subscriber):
        heard, start = Heard(subscriber), since(publisher.epoch)
        subscriber.start(since=start)
        subscriber.wait_live()
        assert len(heard.numbers) <= 5_000
        publish_numbered(publisher, 5_000, 500)
    assert heard.numbers == list(range(777 if isinstance(start, dict) else 0, 5_500))
    assert (heard.resets, heard.gaps) == ([], [])
    received = subscriber.statistics().received
    assert (received.repaired, received.gaps, received.catching_up) == (len(heard.numbers) - 500, 0, 0)


@pytest.mark.parametrize("workers", [0, 3])
def test_the_live_hook_is_called_between_messages(tmp_path: Path, workers: int) -> None:
    live: list[tuple[int, int]] = []
    running = 0
    with recorded_now(tmp_path, 5_000, workers=workers) as (publisher, subscriber):
        heard = [0] * 6

        def count(number: int) -> Callable[[Batch], None]:
            def take(batch: Batch) -> None:
                nonlocal running
                running += 1
                heard[number] += len(batch)
                running -= 1

            return take

        for number in range(len(heard)):
            subscriber.on_batch(b"")(count(number))

        @subscriber.on_live
        def _(slice_id: int) -> None:
            live.append((slice_id, running))
            assert heard == [5_000] * len(heard)

        subscriber.start(back=5_000)
        subscriber.wait_live()
        publish_numbered(publisher, 5_000, 500)
    assert heard == [5_500] * len(heard)
    assert live == [(0, 0)]


def test_an_error_in_the_live_hook_ends_the_subscriber(tmp_path: Path) -> None:
    failure = "slice 0: on_live raised ValueError: not slice 0"
    with pytest.raises(CallbackError, match=failure), recorded_now(tmp_path, 500) as (_, subscriber):
        subscriber.on_batch(b"")(nothing)

        @subscriber.on_live
        def _(slice_id: int) -> None:
            raise ValueError(f"not slice {slice_id}")

        subscriber.start(since=0)


@pytest.mark.parametrize("before", [0, 100])
def test_messages_that_archives_lack_before_live_are_a_gap(tmp_path: Path, before: int) -> None:
    """The archives have an earlier epoch or nothing, and no recorder is running."""
    feed = archived_feed(heartbeat_ns=60_000_000_000)  # a longer silence would cause a reconnect
    recorded(tmp_path, feed, before)
    subscriber = Subscriber(feed, repair_wait=2)
    heard = Heard(subscriber)
    with ArchiveServer(tmp_path / feed.name, feed.archives), RawPublisher(feed, epoch=time.time_ns()) as publisher:
        publisher.send(publisher.encode([(b"A", b"")] * 3))
        subscriber.start(since=0)
        publisher.heartbeat()
        subscriber.wait_live()
        publisher.send(publisher.encode([(b"A", b"")] * 2))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert heard.numbers == [*range(before), 3, 4]
    assert heard.gaps == [(0, 3)]


def test_a_subscriber_that_needs_an_absent_archive_ends() -> None:
    subscriber = Subscriber(feed := archived_feed(), repair_wait=0.4)
    subscriber.on(b"")(nothing)
    with (
        RawPublisher(feed),
        pytest.raises(SubscriberError, match="slice 0 could not catch up: no archive of feed 'tape' answered"),
    ):
        subscriber.start(since=0).wait_live()


def test_invalid_starts_are_rejected() -> None:
    with pytest.raises(ConfigError, match="had no archives"):
        Subscriber(feed_of()).start(since=0)
    with pytest.raises(ConfigError, match=r"since was \{0: \(1, 1, 1\)\}, expected the \(epoch, sequence\) of each"):
        Subscriber(archived_feed(key_bytes=2)).start(since={0: (1, 1, 1)})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"since was for slices \[1\], expected some of 0 to 0"):
        Subscriber(archived_feed()).start(since={1: (1, 1)})
    with pytest.raises(ConfigError, match="start was given since 0 and back 5, expected one of them"):
        Subscriber(archived_feed()).start(since=0, back=5)
    with pytest.raises(ValueError, match="back was 0, expected 1 to"):
        Subscriber(archived_feed()).start(back=0)
    with pytest.raises(ValueError, match="time was 'yesterday', expected ns since 1970"):
        Subscriber(archived_feed()).start(since="yesterday")
    with pytest.raises(ArchiveError, match="did not answer"):
        Subscriber(archived_feed(), repair_wait=0.01).start(back=5, timeout=0.1)


def test_an_archive_that_does_not_answer_at_first_is_asked_again(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 1_000)
    subscriber = Subscriber(feed)
    heard = Heard(subscriber)
    starting = threading.Thread(target=subscriber.start, kwargs={"timeout": 60, "back": 300})
    with Publisher(feed):
        with zmq.Context() as context, context.socket(zmq.ROUTER) as deaf:
            deaf.bind(feed.archives[0])
            starting.start()
            assert deaf.poll(60_000)
        with ArchiveServer(tmp_path / feed.name, feed.archives):
            starting.join()
            subscriber.wait_live()
    subscriber.run(until_end=True)
    assert heard.numbers == list(range(700, 1_000))
