"""Positions of feeds with keys: a subscriber resumes exactly at any checkpoint."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blackbox import Feed, Publisher, Recorder, Subscriber
from blackbox.archive.consumer_positions import PositionFile
from blackbox.archive.serve.pieces import Pieces
from blackbox.block.position import Position
from blackbox.errors import NotConfirmedError, SubscriberError
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import feed_of, wait_recorded
from tests.archive.test_join_keys import Heard, Market, Run, check_all
from tests.lossy_proxy import LossyProxy


def begun(feed: Feed, since: Any, prefix: bytes = b"", **settings: Any) -> tuple[Subscriber, Heard]:
    subscriber = Subscriber(feed, repair_wait=30, **settings)
    heard = Heard(subscriber, prefix)
    subscriber.start(timeout=60, since=since)
    return subscriber, heard


@pytest.mark.parametrize(
    ("seed", "share", "lines", "prefix"),
    [
        *((1, 0.0, 1, b""), (5, 0.5, 2, b""), (6, 0.5, 2, b"1")),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in ((2, 0.0, 2, b""), (3, 0.3, 1, b""), (4, 0.3, 1, b""), (7, 0.3, 1, b"1"), (8, 0.3, 2, b"1"))
        ),
    ],
)
def test_checkpoints_at_any_moment_lose_nothing_and_repeat_nothing(
    tmp_path: Path, seed: int, share: float, lines: int, prefix: bytes
) -> None:
    """Checkpoints while archives deliver, at the switch to live, and live; later deliveries are discarded each time.

    Over bad lines a subscriber of some keys may receive later messages of one key before repaired messages of another.
    """
    chance = random.Random(seed)
    feed = archived_feed(lines=lines, key_bytes=2, block_bytes=8_192, heartbeat_ns=50_000_000)
    done: dict[Run, list[int]] = defaultdict(list)
    positions: Any = 0
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, serve=True),
        LossyProxy(feed, share, seed) as proxy,
    ):
        with Market(publisher, seed) as market:
            wait_until(lambda: market.count > 3_000, 60)
            market.slowly.set()
            for _ in range(6):
                subscriber, heard = begun(proxy.feed, positions, prefix, on_gap="repair")
                least = chance.choice((1, 50, 500))
                wait_until(lambda heard=heard, least=least: heard.count >= least, 60)  # type: ignore[misc]
                if chance.random() < 0.5:
                    subscriber.wait_live(60)
                with subscriber.checkpoint(60) as reached:
                    for run, counts in heard.counts.items():
                        done[run] += counts
                    heard.counts.clear()
                    positions = msgspec.json.decode(msgspec.json.encode(reached), type=dict[int, Position])
                subscriber.terminate()
                assert heard.gaps == {}
                assert prefix or heard.untrue == []
        subscriber, heard = begun(proxy.feed, positions, prefix, on_gap="repair")
        subscriber.wait_live(60)
        publisher.close()
        subscriber.run(until_end=True)
    for run, counts in heard.counts.items():
        done[run] += counts
    assert heard.gaps == {}
    assert prefix or heard.untrue == []
    assert done == market.runs(prefix=prefix)


def joined(first: Heard, second: Heard) -> dict[Run, list[int]]:
    """Return the counts of two lives of a consumer."""
    runs = first.counts.keys() | second.counts.keys()
    return {run: first.counts.get(run, []) + second.counts.get(run, []) for run in runs}


def kept_once(subscriber: Subscriber) -> dict[int, Position]:
    """Return the positions of a checkpoint."""
    with subscriber.checkpoint() as positions:
        return dict(positions)


def test_a_consumer_resumes_over_epochs_that_it_missed(tmp_path: Path) -> None:
    feed = archived_feed(key_bytes=2, heartbeat_ns=20_000_000)
    sent: dict[Run, list[int]] = {}
    recorder = Recorder(feed, tmp_path, serve=True)
    for number in range(3):
        with Publisher(feed, when_full="wait") as publisher:
            if number == 0:
                recorder.start()
            publisher.wait_for_subscribers()
            market = Market(publisher, number)
            market.publish(range(10 * number, 60), 500)
            if number == 0:
                subscriber, first = begun(feed, 0)
                wait_until(lambda: first.count == 500, 60)
                positions = kept_once(subscriber)
                subscriber.terminate()
            market.publish(range(90), 500)
            wait_recorded(recorder, 1_000 * (number + 1))
            sent |= market.runs()
            if number == 2:
                subscriber, second = begun(feed, positions)
                subscriber.wait_live(60)
                publisher.close()
                subscriber.run(until_end=True)
    recorder.stop()
    assert joined(first, second) == sent
    assert (second.gaps, second.untrue) == ({}, [])


def test_what_was_sent_before_a_checkpoint_is_not_read_again(tmp_path: Path) -> None:
    """One key was quiet for long."""
    feed = archived_feed(key_bytes=2, heartbeat_ns=20_000_000)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        market = Market(publisher)
        market.publish(range(90), 5_000)
        market.publish(range(1, 90), 5_000)
        wait_recorded(recorder, 10_000)
        subscriber, _ = begun(feed, 0)
        subscriber.wait_live()
        reached = kept_once(subscriber)
        subscriber.terminate()
        before = market.count
        market.publish(range(90), 1_000)
        subscriber, heard = begun(feed, reached)
        subscriber.wait_live(60)
        publisher.close()
        subscriber.run(until_end=True)
    check_all(heard, market.runs(before))
    received = subscriber.statistics().received
    assert (received.duplicates, received.stale) == (0, 0)


def test_a_consumer_that_began_live_resumes_with_its_keys(tmp_path: Path) -> None:
    """Keys that had sent before resume at the live start; a key that is new meanwhile is delivered from its start."""
    feed = archived_feed(key_bytes=2, heartbeat_ns=20_000_000)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        market = Market(publisher)
        market.publish(range(5, 15), 500)
        before = market.count
        first = Subscriber(feed)
        heard = Heard(first, b"1")
        first.start()
        market.publish(range(5, 17), 500)
        wanted = sum(map(len, market.runs(before, b"1").values()))
        wait_until(lambda: heard.count == wanted)
        positions = kept_once(first)
        first.terminate()
        market.publish(range(5, 19), 500)
        wait_recorded(recorder, 1_500)
        second = Subscriber(feed, repair_wait=30)
        rest = Heard(second, b"1")
        second.start(since=positions)
        second.wait_live(60)
        market.publish(range(5, 20), 500)
        publisher.close()
        second.run(until_end=True)
    assert joined(heard, rest) == market.runs(before, b"1")
    assert (heard.gaps, heard.untrue) == (rest.gaps, rest.untrue) == ({}, [])


def test_keys_of_new_callbacks_have_no_position_until_the_publisher_confirms() -> None:
    """Messages sent before the callback was added are not missing."""
    feed = feed_of(key_bytes=2)
    with RawPublisher(feed, 5) as publisher:
        publisher.send(publisher.encode([(b"K1.x", b"")] * 60))
        publisher.send(publisher.encode([(b"K2.x", b"")] * 100))
        subscriber = Subscriber(feed)
        subscriber.on(b"K1.")(print)
        subscriber.start()
        publisher.confirms = False
        subscriber.on(b"K2.")(print)
        with pytest.raises(SubscriberError, match="new callbacks are not confirmed"), subscriber.checkpoint():
            pass
        publisher.confirms = True

        def is_confirmed() -> bool:
            publisher.heartbeat()  # after a few heartbeats it asks again
            with suppress(NotConfirmedError):
                subscriber.wait_confirmed(0.02)
                return True
            return False

        wait_until(is_confirmed)
        with subscriber.checkpoint() as positions:
            assert positions == {0: (5, 160)}
        subscriber.terminate()


def test_a_checkpoint_waits_for_the_end_of_a_publisher() -> None:
    """Its last heartbeat shows that nothing is missing. No other heartbeat follows."""
    feed, found = feed_of(key_bytes=2), list[dict[int, Position]]()
    with RawPublisher(feed, 5) as publisher:
        subscriber = Subscriber(feed)
        heard = Heard(subscriber, b"K1")
        subscriber.start()
        publisher.send(publisher.encode([(b"K1.x", b"")] * 5))
        publisher.send(publisher.encode([(b"K2.x", b"")] * 5))
        wait_until(lambda: heard.count == 5)
        thread = threading.Thread(target=lambda: found.append(kept_once(subscriber)))
        thread.start()
        wait_until(lambda: subscriber._supervisor._slices[0].state.wants_clean)
        publisher.heartbeat(end=True)
        thread.join()
        assert found == [{0: (5, 10)}]
        subscriber.terminate()


def test_a_stop_before_a_heartbeat_has_no_exact_position(tmp_path: Path) -> None:
    """A named consumer keeps its last exact position."""
    feed = archived_feed(key_bytes=2)
    with RawPublisher(feed, 5) as publisher:
        subscriber = Subscriber(feed, name="strategy-1", positions=tmp_path, checkpoint_interval=1_000)
        heard = Heard(subscriber, b"K1")
        subscriber.start()
        for count in (5, 10):
            publisher.send(publisher.encode([(b"K1.x", b"")] * 5))
            wait_until(lambda count=count: heard.count == count)  # type: ignore[misc]
            if count == 5:
                publisher.heartbeat()
                assert kept_once(subscriber) == {0: (5, 5)}
        subscriber.stop()
        with pytest.raises(SubscriberError, match="ended before a heartbeat had shown"):
            kept_once(subscriber)
    kept = PositionFile(tmp_path, "strategy-1").read()
    assert kept is not None
    assert kept.slices == {0: (5, 5)}


def test_a_checkpoint_waits_until_archives_find_the_start_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed, go_on, real = archived_feed(key_bytes=2), threading.Event(), Pieces.read

    def read(pieces: Pieces, *arguments: Any) -> Any:
        assert go_on.wait(60)
        return real(pieces, *arguments)

    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        market = Market(publisher)
        market.publish(range(20), 500)
        wait_recorded(recorder, 500)
        since = time.time_ns()
        market.publish(range(20), 500)
        wait_recorded(recorder, 1_000)
        monkeypatch.setattr(Pieces, "read", read)
        subscriber, heard = begun(feed, since)
        threading.Timer(0.2, go_on.set).start()
        positions = kept_once(subscriber)
        assert positions[0].epoch == publisher.epoch
        assert positions[0].sequence == 500 + heard.count
        subscriber.terminate()


def test_a_position_of_epoch_0_is_the_first_recorded_message(tmp_path: Path) -> None:
    """Messages sent before the recorder started are not a gap."""
    feed = archived_feed(key_bytes=2)
    with Publisher(feed, when_full="wait") as publisher:
        market = Market(publisher)
        market.publish(range(20), 500)
        with Recorder(feed, tmp_path, serve=True) as recorder:
            market.publish(range(20), 500)
            wait_recorded(recorder, 500)
            subscriber, heard = begun(feed, {0: (0, 0)})
            subscriber.wait_live(60)
            publisher.close()
            subscriber.run(until_end=True)
    check_all(heard, market.runs(500))
