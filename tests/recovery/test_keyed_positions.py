"""Positions of feeds with keys: what is told at a checkpoint is where each key goes on, wherever it was taken."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blackbox import Feed, Publisher, Recorder, Subscriber
from blackbox.archive.consumer_positions import PositionFile
from blackbox.archive.serve.client import ArchiveClient
from blackbox.block.position import KeyPosition
from blackbox.errors import NotConfirmedError, PositionError, SubscriberError
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import feed_of, wait_recorded
from tests.archive.test_join_keys import Heard, Market, Run
from tests.lossy_proxy import LossyProxy
from tests.support import Script


def add(sent: dict[Run, list[int]], epoch: int, market: Market) -> None:
    """Add what was published in a run."""
    sent |= {(epoch, key): list(range(count)) for key, count in market.published.items()}


def begun(feed: Feed, since: Any, **settings: Any) -> tuple[Subscriber, Heard]:
    subscriber = Subscriber(feed, repair_wait=30, **settings)
    heard = Heard(subscriber)
    subscriber.start(timeout=60, since=since)
    return subscriber, heard


@pytest.mark.parametrize(
    ("seed", "share", "lines"),
    [
        *((1, 0.0, 1), (5, 0.5, 2)),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((2, 0.0, 2), (3, 0.3, 1), (4, 0.3, 1))),
    ],
)
def test_checkpoints_at_any_moment_lose_nothing_and_repeat_nothing(
    tmp_path: Path, seed: int, share: float, lines: int
) -> None:
    """While archives bring the past, as it goes over, and live; each time what came behind the checkpoint is undone."""
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
                subscriber, heard = begun(proxy.feed, positions, on_gap="repair")
                least = chance.choice((1, 50, 500))
                wait_until(lambda heard=heard, least=least: heard.count >= least, 60)  # type: ignore[misc]
                if chance.random() < 0.5:
                    subscriber.wait_live(60)
                with subscriber.checkpoint(60) as reached:
                    for run, numbers in heard.came.items():
                        done[run] += numbers
                    heard.came.clear()
                    positions = msgspec.json.decode(msgspec.json.encode(reached), type=dict[int, KeyPosition])
                subscriber.terminate()
                assert (heard.gaps, heard.untrue) == ({}, [])
        subscriber, heard = begun(proxy.feed, positions, on_gap="repair")
        subscriber.wait_live(60)
        publisher.close()
        subscriber.run(until_end=True)
    for run, numbers in heard.came.items():
        done[run] += numbers
    assert (heard.gaps, heard.untrue) == ({}, [])
    sent: dict[Run, list[int]] = {}
    add(sent, publisher.epoch, market)
    assert done == sent


def kept_once(subscriber: Subscriber, *, is_done: bool) -> dict[int, KeyPosition]:
    """Return the positions of a checkpoint; `is_done`: once a heartbeat has shown that all is there."""
    reached: dict[int, KeyPosition] = {}

    def is_kept() -> bool:
        with subscriber.checkpoint() as positions:
            reached.update(positions)
        return reached[0].done_ns > 0 or not is_done

    wait_until(is_kept, 60)
    return reached


def test_archives_are_asked_for_nothing_of_keys_that_are_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it begins behind shows later numbers of all keys: of others it does not matter what was before."""
    feed = archived_feed(key_bytes=2, heartbeat_ns=20_000_000)
    asked: set[bytes] = set()
    real = ArchiveClient.missing

    def missing(client: ArchiveClient, slice_id: int, ranges: Any, *arguments: Any, **settings: Any) -> Any:
        asked.update(each.key for each in ranges)
        return real(client, slice_id, ranges, *arguments, **settings)

    monkeypatch.setattr(ArchiveClient, "missing", missing)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        market, positions = Market(publisher), None
        for number in range(2):
            subscriber = Subscriber(feed, repair_wait=30)
            heard = [Heard(subscriber, prefix) for prefix in (b"1", b"4")]
            subscriber.start(since=positions)
            market.publish(range(60), 1_000)
            wait_recorded(recorder, market.count)
            if number == 0:
                positions = kept_once(subscriber, is_done=True)
                subscriber.terminate()
                market.publish(range(60), 1_000)
                wait_recorded(recorder, market.count)
        subscriber.wait_live(60)
        publisher.close()
        subscriber.run(until_end=True)
    assert {key for each in heard for _, key in each.came} == {b"%02d" % n for n in range(60) if n // 10 in (1, 4)}
    assert [(each.gaps, each.untrue) for each in heard] == [({}, [])] * 2
    assert {key for key in asked if not key.startswith((b"1", b"4"))} == set()


@pytest.mark.parametrize("is_done", [False, True])
def test_it_goes_on_over_runs_that_came_and_went_without_it(tmp_path: Path, is_done: bool) -> None:
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
                positions = kept_once(subscriber, is_done=is_done)
                subscriber.terminate()
            market.publish(range(90), 500)
            wait_recorded(recorder, 1_000 * (number + 1))
            add(sent, publisher.epoch, market)
            if number == 2:
                subscriber, second = begun(feed, positions)
                subscriber.wait_live(60)
                publisher.close()
                subscriber.run(until_end=True)
    recorder.stop()
    came = {run: first.came.get(run, []) + second.came.get(run, []) for run in first.came.keys() | second.came.keys()}
    assert came == sent
    assert (second.gaps, second.untrue) == ({}, [])


def test_what_was_sent_before_a_checkpoint_is_not_read_again(tmp_path: Path) -> None:
    """Once a heartbeat has shown that all is there; one key was quiet for long."""
    feed = archived_feed(key_bytes=2, heartbeat_ns=20_000_000)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        market = Market(publisher)
        market.publish(range(90), 5_000)
        market.publish(range(1, 90), 5_000)
        wait_recorded(recorder, 10_000)
        subscriber, _ = begun(feed, 0)
        subscriber.wait_live()
        reached = kept_once(subscriber, is_done=True)
        subscriber.terminate()
        before = dict(market.published)
        market.publish(range(90), 1_000)
        subscriber, heard = begun(feed, reached)
        subscriber.wait_live(60)
        publisher.close()
        subscriber.run(until_end=True)
    expected = {(publisher.epoch, key): list(range(before.get(key, 0), n)) for key, n in market.published.items()}
    assert heard.came == {run: numbers for run, numbers in expected.items() if numbers}
    received = subscriber.statistics().received
    assert (heard.gaps, heard.untrue, received.duplicates, received.stale) == ({}, [], 0, 0)


def test_who_began_live_goes_on_with_the_keys_that_it_wants(tmp_path: Path) -> None:
    """Keys that had sent before it began go on where it began; one that is new while it is away comes whole."""
    feed = archived_feed(key_bytes=2, heartbeat_ns=20_000_000)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        market = Market(publisher)
        market.publish(range(5, 15), 500)
        before = dict(market.published)
        first = Subscriber(feed)
        heard = Heard(first, b"1")
        first.start()
        market.publish(range(5, 17), 500)
        wanted = sum(count for key, count in market.published.items() if key[:1] == b"1")
        wanted -= sum(count for key, count in before.items() if key[:1] == b"1")
        wait_until(lambda: heard.count == wanted)
        positions = kept_once(first, is_done=True)
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
    came = {run: heard.came.get(run, []) + rest.came.get(run, []) for run in heard.came.keys() | rest.came.keys()}
    assert came == {
        (publisher.epoch, key): list(range(before.get(key, 0), count))
        for key, count in market.published.items()
        if key[:1] == b"1"
    }
    assert (heard.gaps, heard.untrue) == (rest.gaps, rest.untrue) == ({}, [])


def test_callbacks_for_more_than_its_positions_say_are_refused(tmp_path: Path) -> None:
    feed = archived_feed(key_bytes=2)
    with Publisher(feed):
        some = {0: KeyPosition(5, {b"A1": 3}, [b"A", b"C1"])}
        subscriber = Subscriber(feed)
        subscriber.on(b"A1.x")(print)
        subscriber.on(b"B")(print)
        with pytest.raises(PositionError, match=r"wanted keys that begin with \[b'A1', b'B'\], expected only those of"):
            subscriber.start(since=some)


def test_keys_of_new_callbacks_have_no_position_until_their_publisher_has_told_it() -> None:
    """It is not 0: what the publisher had sent before the callback came is not missing."""
    feed = feed_of(key_bytes=2)
    with RawPublisher(feed, 5) as publisher:
        publisher.send(publisher.encode([(b"K1.x", b"")] * 60))
        publisher.send(publisher.encode([(b"K2.x", b"")] * 100))
        subscriber = Subscriber(feed)
        subscriber.on(b"K1.")(print)
        subscriber.start()
        publisher.confirms = False
        subscriber.on(b"K2.")(print)
        with pytest.raises(SubscriberError, match="not confirmed what new callbacks want"), subscriber.checkpoint():
            pass
        publisher.confirms = True

        def is_confirmed() -> bool:
            publisher.heartbeat()  # after some it asks again
            with suppress(NotConfirmedError):
                subscriber.wait_confirmed(0.02)
                return True
            return False

        wait_until(is_confirmed)
        with subscriber.checkpoint() as positions:
            assert positions[0].next_sequences == {b"K1": 60, b"K2": 100}
            assert positions[0].prefixes == [b"K1", b"K2"]
        subscriber.terminate()


def test_a_named_consumer_goes_on_where_it_was(tmp_path: Path) -> None:
    feed = archived_feed(key_bytes=2)
    came: dict[Run, list[int]] = defaultdict(list)
    sent: dict[Run, list[int]] = {}

    def consumer() -> tuple[Subscriber, Heard]:
        subscriber = Subscriber(feed, name="strategy-1", positions=tmp_path / "positions")
        return subscriber, Heard(subscriber)

    recorder = Recorder(feed, tmp_path / "days", serve=True)
    count = 0
    for number in range(4):
        with Publisher(feed, when_full="wait") as publisher:
            if number == 0:
                recorder.start()
            publisher.wait_for_subscribers()
            market = Market(publisher, number)
            if number == 2:  # that run of the publisher comes and goes without it
                market.publish(range(80), 2_050)
            else:
                subscriber, heard = consumer()
                subscriber.start(since=0 if number == 0 else None)
                market.publish(range(20 * number, 90), 2_000)
                expected = 2_000 + (50 + 2_050 if number == 3 else 50 if number == 1 else 0)
                wait_until(lambda heard=heard, expected=expected: heard.count == expected, 60)  # type: ignore[misc]
                with subscriber.checkpoint():
                    for run, numbers in heard.came.items():
                        came[run] += numbers
                    assert (heard.gaps, heard.untrue) == ({}, [])
                market.publish(range(90), 50)  # it is gone before it keeps what it did with these
                subscriber.terminate()
            count += 2_050
            add(sent, publisher.epoch, market)
            wait_recorded(recorder, count)
    recorder.stop()
    last = publisher.epoch
    assert {run: numbers for run, numbers in came.items() if run[0] != last} == {
        run: numbers for run, numbers in sent.items() if run[0] != last
    }
    assert sum(map(len, came.values())) == count - 50


def test_positions_going_back_are_refused(tmp_path: Path) -> None:
    feed = archived_feed(key_bytes=2)
    file = PositionFile(tmp_path, "strategy-1")
    file.own(0)
    file.keep(feed.name, {0: KeyPosition(5, {b"A1": 100, b"A2": 7}, [b""])})
    file.close()
    for since in (
        KeyPosition(5, {b"A1": 99, b"A2": 7}, [b""]),
        KeyPosition(5, {b"A1": 200}, [b""]),
        KeyPosition(4, {b"A1": 200, b"A2": 7}, [b""]),
    ):
        subscriber = Subscriber(feed, name="strategy-1", positions=tmp_path)
        Heard(subscriber)
        with pytest.raises(PositionError, match="expected 2 keys of epoch 5 or later, where it has been"):
            subscriber.start(since={0: since})


def test_a_killed_consumer_goes_on_exactly_once(tmp_path: Path) -> None:
    """Its state and positions are replaced together; it is killed at any moment, while it catches up too."""
    feed = archived_feed(key_bytes=2, block_bytes=4_096, heartbeat_ns=50_000_000)
    code = f"""
        from blackbox.block.position import KeyPosition
        path = {str(tmp_path / "state")!r}
        positions, heard = 0, []
        if os.path.exists(path):
            with open(path, "rb") as file:
                positions, heard = msgspec.json.decode(
                    file.read(), type=tuple[dict[int, KeyPosition], list[tuple[str, int]]]
                )
        subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=100), on_gap="repair", repair_wait=10)
        subscriber.on(b"", fields=("topic", "sequence"))(lambda topic, n: heard.append((topic[:2].decode(), n)))
        subscriber.start(since=positions)
        say("started")
        while True:
            with subscriber.checkpoint() as positions:
                with open(path + ".new", "wb") as file:
                    file.write(msgspec.json.encode((positions, heard)))
                os.replace(path + ".new", path)
            say("kept", len(heard))
    """
    with Publisher(feed, when_full="drop") as publisher, Recorder(feed, tmp_path / "days", serve=True) as recorder:
        market = Market(publisher)
        market.publish(range(90), 100)
        wait_recorded(recorder, 100)
        for round_ in range(5):
            with Script(code, feed) as script:
                script.expect("started")
                for _ in range(20):
                    low = 10 * round_
                    market.publish(range(low, low + 50), 25)
                    if round_ % 2:
                        script.read()
                if round_ == 4:
                    wait_recorded(recorder, market.count)
                    while script.read() != f"kept {market.count}":
                        pass
                script.kill()
    came: dict[bytes, list[int]] = defaultdict(list)
    for key, number in msgspec.json.decode((tmp_path / "state").read_bytes())[1]:
        came[key.encode()].append(number)
    assert came == {key: list(range(count)) for key, count in market.published.items()}
