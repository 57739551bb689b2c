"""A subscriber that starts in the past reads archives, then continues live without a gap."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from blackbox import Batch, CallbackError, ConfigError, Publisher, Recorder, Subscriber
from blackbox.archive.serve.server import ArchiveServer
from blackbox.errors import ArchiveError, SubscriberError
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed, recorded
from tests.archive.recorders import feed_of, publish_numbered, wait_recorded
from tests.subscribe.subscribers import nothing


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


@pytest.mark.parametrize("key_bytes", [0, 2])
@pytest.mark.parametrize("on_gap", ["tell", "repair"])
def test_a_day_from_its_beginning_then_live(tmp_path: Path, on_gap: str, key_bytes: int) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        for start in range(0, 5_000, 500):
            publish_numbered(publisher, start, 500)
            publisher.flush()
        wait_recorded(recorder, 5_000)
        subscriber = Subscriber(feed, on_gap=on_gap)  # type: ignore[arg-type]
        heard = Heard(subscriber)
        subscriber.start(since=0)
        subscriber.wait_live()
        assert len(heard.numbers) <= 5_000
        publish_numbered(publisher, 5_000, 500)
        publisher.close()
        subscriber.run(until_end=True)
    assert heard.numbers == list(range(5_500))
    assert (heard.resets, heard.gaps) == ([], [])
    received = subscriber.statistics().received
    assert (received.repaired, received.gaps, received.catching_up) == (5_000, 0, 0)


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_epochs_before_the_live_one_come_first(tmp_path: Path, key_bytes: int) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    epochs = [recorded(tmp_path, feed, 1_000) for _ in range(2)]
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_numbered(publisher, 0, 700)
        publisher.flush()
        wait_recorded(recorder, 700)
        subscriber = Subscriber(feed)
        heard = Heard(subscriber)
        subscriber.start(since=0)
        publish_numbered(publisher, 700, 300)
        publisher.close()
        subscriber.run(until_end=True)
        epochs.append(publisher.epoch)
    assert heard.numbers == [*range(1_000)] * 3
    assert heard.epochs == [epoch for epoch in epochs for _ in range(1_000)]
    assert heard.resets == [1_000, 2_000]
    assert heard.gaps == []


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_from_a_position(tmp_path: Path, key_bytes: int) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        for start in range(0, 2_000, 500):
            publish_numbered(publisher, start, 500)
            publisher.flush()
        wait_recorded(recorder, 2_000)
        subscriber = Subscriber(feed)
        heard = Heard(subscriber)
        subscriber.start(since={0: (publisher.epoch, 777)})
        publish_numbered(publisher, 2_000, 500)
        publisher.close()
        subscriber.run(until_end=True)
    assert heard.numbers == list(range(777, 2_500))


@pytest.mark.parametrize("back", [1, 300, 700, 1_500, 9_000])
def test_a_number_of_messages_back_over_epochs(tmp_path: Path, back: int) -> None:
    feed = archived_feed()
    epochs = [recorded(tmp_path, feed, 1_000)]
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_numbered(publisher, 0, 700)
        publisher.flush()
        wait_recorded(recorder, 700)
        epochs.append(publisher.epoch)
        subscriber = Subscriber(feed)
        heard = Heard(subscriber)
        subscriber.start(back=back)
        publish_numbered(publisher, 700, 300)
        publisher.close()
        subscriber.run(until_end=True)
    published = [*((epochs[0], n) for n in range(1_000)), *((epochs[1], n) for n in range(1_000))]
    assert list(zip(heard.epochs, heard.numbers, strict=True)) == published[-300 - back :]
    assert heard.gaps == []


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


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_live_hook_is_called_between_messages(tmp_path: Path, workers: int) -> None:
    feed = archived_feed()
    live: list[tuple[int, int]] = []
    running = 0
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_numbered(publisher, 0, 5_000)
        publisher.flush()
        wait_recorded(recorder, 5_000)
        subscriber = Subscriber(feed, workers=workers)
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
        publisher.close()
        subscriber.run(until_end=True)
    assert heard == [5_500] * len(heard)
    assert live == [(0, 0)]


def test_an_error_in_the_live_hook_ends_the_subscriber(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_numbered(publisher, 0, 500)
        publisher.flush()
        wait_recorded(recorder, 500)
        subscriber = Subscriber(feed)
        subscriber.on_batch(b"")(nothing)

        @subscriber.on_live
        def _(slice_id: int) -> None:
            raise ValueError(f"not slice {slice_id}")

        with pytest.raises(CallbackError, match="slice 0: on_live raised ValueError: not slice 0"):
            subscriber.start(since=0)
            subscriber.run()


@pytest.mark.parametrize(
    "since",
    [
        "session",
        "00:00Z",
        datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1),
    ],
)
def test_since_accepts_times_as_text(tmp_path: Path, since: str | datetime.datetime) -> None:
    feed = archived_feed()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_numbered(publisher, 0, 700)
        publisher.flush()
        wait_recorded(recorder, 700)
        subscriber = Subscriber(feed)
        heard = Heard(subscriber)
        subscriber.start(since=since)
        publisher.close()
        subscriber.run(until_end=True)
    assert heard.numbers == list(range(700))


def test_a_publisher_that_has_sent_nothing_yet(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, 1_000)
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True):
        subscriber = Subscriber(feed)
        heard = Heard(subscriber)
        subscriber.start(since=0)
        subscriber.wait_live()
        publish_numbered(publisher, 0, 500)
        publisher.close()
        subscriber.run(until_end=True)
    assert heard.numbers == [*range(1_000), *range(500)]


def test_waiting_messages_belong_to_their_own_epoch(tmp_path: Path) -> None:
    feed = archived_feed(heartbeat_ns=50_000_000)
    first = recorded(tmp_path, feed, 33)
    place = tmp_path / feed.name
    elsewhere = feed_of()
    with ArchiveServer(place, feed.archives), RawPublisher(feed) as publisher:
        publisher.epoch = first + 1
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
        heard = Heard(subscriber)
        subscriber.start(since=0)
        wait_until(lambda: len(heard.numbers) == 33)
        block = publisher.encode([(b"A.x", b"payload")] * 80)

        def is_waiting() -> bool:
            publisher.send(block)
            return subscriber.statistics().received.held > 0

        wait_until(is_waiting)
        with RawPublisher(elsewhere, publisher.epoch) as other, Recorder(elsewhere, tmp_path) as recorder:
            other.send(other.encode([(b"A.x", b"payload")] * 80))
            wait_recorded(recorder, 80)
        subscriber.wait_live()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert heard.numbers == [*range(33), *range(80)]
    assert heard.epochs == [first] * 33 + [first + 1] * 80
    assert heard.gaps == []


@pytest.mark.parametrize("is_live", [True, False])
def test_last_messages_of_an_epoch_that_archives_lack_are_reported(tmp_path: Path, is_live: bool) -> None:
    """The last heartbeat shows them. Then the next epoch begins, and archives return what they have."""
    feed, elsewhere = archived_feed(), feed_of()
    with RawPublisher(feed) as publisher, RawPublisher(elsewhere) as other:
        other.epoch = publisher.epoch
        with Recorder(elsewhere, tmp_path) as recorder, ArchiveServer(tmp_path / feed.name, feed.archives):
            other.send(other.encode([(b"A.x", b"payload")] * 10))
            wait_recorded(recorder, 10)
            subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
            heard = Heard(subscriber)
            ten = publisher.encode([(b"A.x", b"payload")] * 10)
            subscriber.start(since=0)
            subscriber.wait_live()
            if is_live:
                publisher.send(ten)
            publisher.encode([(b"A.x", b"payload")] * 5)
            before = subscriber.statistics().received.control_blocks
            publisher.heartbeat()
            wait_until(lambda: subscriber.statistics().received.control_blocks > before)
            for each in (publisher, other):
                each.epoch, each.sequences, each.ends = 1 << 40, [0], [{}]
                each.send(each.encode([(b"A.x", b"payload")] * 3))
                each.send(each.encode([(b"A.x", b"payload")] * 3))
            wait_recorded(recorder, 16)
            publisher.heartbeat()
            wait_until(lambda: len(heard.numbers) == 16)
            publisher.heartbeat(end=True)
            subscriber.run(until_end=True)
    assert heard.numbers == [*range(10), *range(6)]
    assert heard.gaps == [(10, 5)]


def test_a_silent_epoch_is_live_only_after_the_one_before_is_recorded(tmp_path: Path) -> None:
    feed, elsewhere = archived_feed(), feed_of()
    with (
        RawPublisher(feed) as publisher,
        RawPublisher(elsewhere) as other,
        Recorder(elsewhere, tmp_path) as recorder,
        ArchiveServer(tmp_path / feed.name, feed.archives) as archive,
    ):
        publisher.epoch = 1 << 40
        other.send(other.encode([(b"A.x", b"payload")] * 10))
        wait_recorded(recorder, 10)
        subscriber = Subscriber(feed, repair_wait=60)
        heard = Heard(subscriber)
        subscriber.start(since=0)
        wait_until(lambda: len(heard.numbers) == 10)
        answered = archive.statistics().answered
        wait_until(lambda: archive.statistics().answered > answered + 3)
        assert subscriber.statistics().received.catching_up == 1
        other.send(other.encode([(b"A.x", b"payload")] * 5))
        wait_recorded(recorder, 15)
        other.epoch, other.sequences, other.ends = publisher.epoch, [0], [{}]
        other.heartbeat()
        other.heartbeat()
        subscriber.wait_live()
        publisher.send(publisher.encode([(b"A.x", b"payload")] * 3))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert heard.numbers == [*range(15), *range(3)]
    assert heard.gaps == []


def test_an_epoch_that_ends_before_the_first_answer_is_complete(tmp_path: Path) -> None:
    feed, elsewhere = archived_feed(), feed_of()
    with RawPublisher(feed) as publisher, RawPublisher(elsewhere) as other:
        publisher.encode([(b"A.x", b"payload")] * 10)
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
        heard = Heard(subscriber)
        subscriber.start(since={0: (publisher.epoch, 10)})
        subscriber.wait_live()
        publisher.encode([(b"A.x", b"payload")] * 10)
        with Recorder(elsewhere, tmp_path) as recorder, ArchiveServer(tmp_path / feed.name, feed.archives):
            other.send(other.encode([(b"A.x", b"payload")] * 20))
            for each in (other, publisher):
                each.epoch, each.sequences, each.ends = 1 << 40, [0], [{}]
                for _ in range(2):
                    each.send(each.encode([(b"A.x", b"payload")] * 3))
            wait_recorded(recorder, 26)
            publisher.heartbeat(end=True)
            subscriber.run(until_end=True)
    assert heard.numbers == [*range(10, 20), *range(6)]
    assert heard.gaps == []


def test_the_first_live_block_after_the_archived_ones_is_lost(tmp_path: Path) -> None:
    """The lost block is in neither the archive nor the live messages, and is reported once."""
    feed = archived_feed()
    elsewhere = feed_of()
    with RawPublisher(elsewhere) as publisher, Recorder(elsewhere, tmp_path) as recorder:
        for _ in range(4):
            publisher.send(publisher.encode([(b"A", b"")] * 5))
        wait_recorded(recorder, 20)
    subscriber = Subscriber(feed)
    heard = Heard(subscriber)
    with ArchiveServer(tmp_path / feed.name, feed.archives), RawPublisher(feed) as publisher:
        for _ in range(4):
            publisher.send(publisher.encode([(b"A", b"")] * 5))  # to no subscriber
        subscriber.start(since=0)
        subscriber.wait_live()
        publisher.encode([(b"A", b"lost")] * 3)
        publisher.send(publisher.encode([(b"A", b"")] * 5))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert heard.numbers == [*range(20), *range(23, 28)]
    assert heard.gaps == [(20, 3)]


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


@pytest.mark.parametrize("is_down", [False, True])
def test_the_end_of_an_epoch_is_read_from_the_archive_that_has_it(tmp_path: Path, is_down: bool) -> None:
    """With `is_down` the other archive is started late."""
    feed = archived_feed(2)
    for place, blocks in (("poor", (3, 2)), ("rich", (5, 2))):
        for epoch, many in enumerate(blocks, 1):
            elsewhere = feed_of()
            with RawPublisher(elsewhere, epoch=epoch) as publisher, Recorder(elsewhere, tmp_path / place) as recorder:
                for _ in range(many):
                    publisher.send(publisher.encode([(b"A.x", b"payload")] * 10))
                wait_recorded(recorder, 10 * many)
    with (
        ArchiveServer(tmp_path / "poor" / feed.name, feed.archives[:1]),
        RawPublisher(feed, epoch=2) as live,
        ExitStack() as stack,
    ):
        rich = ArchiveServer(tmp_path / "rich" / feed.name, feed.archives[1:])
        if not is_down:
            stack.enter_context(rich)
        live.sequences = [20]
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
        heard = Heard(subscriber)
        subscriber.start(since=0)
        wait_until(lambda: len(heard.numbers) >= 30, 60)
        if is_down:
            late = time.monotonic() + 2.5  # longer than the timeout of one answer
            wait_until(lambda: time.monotonic() > late)
            assert len(heard.numbers) == 30
            stack.enter_context(rich)
        subscriber.wait_live()
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert heard.numbers == [*range(50), *range(20)]
    assert heard.gaps == []
