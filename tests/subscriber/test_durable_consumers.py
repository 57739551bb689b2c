"""Named consumers: each resumes at its stored positions after any kill; lost messages hold it until it is released."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from blackbox import ConfigError, Feed, GapError, Publisher, Recorder, Subscriber
from blackbox.archive.consumer_positions import Held, Kept, PositionFile
from blackbox.archive.serve.client import ArchiveClient
from blackbox.block.form.layout import VERSION
from blackbox.block.position import Position
from blackbox.errors import PositionError, SubscriberError
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import publish_numbered, wait_recorded
from tests.cli.commands import invoke
from tests.examples import first_of
from tests.support import Script


def consumer(feed: Feed, positions: Path, **settings: Any) -> tuple[Subscriber, list[tuple[int, int]]]:
    """Return a named subscriber, and the (epoch, number) pairs that its callback receives."""
    subscriber = Subscriber(feed, name="strategy-1", positions=positions, **settings)
    got: list[tuple[int, int]] = []
    subscriber.on(b"", fields=("epoch", "sequence"))(lambda epoch, sequence: got.append((epoch, sequence)))
    return subscriber, got


def kept(positions: Path) -> Kept:
    """Return what the consumer's file has."""
    found = PositionFile(positions, "strategy-1").read()
    assert found is not None
    return found


def test_positions_are_stored_at_intervals_and_at_the_end(tmp_path: Path) -> None:
    feed = archived_feed(key_bytes=2)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber, got = consumer(feed, tmp_path, checkpoint_interval=0.01)
        subscriber.start()
        publish_numbered(publisher, 0, 500)
        wait_until(lambda: kept(tmp_path).slices[0].sequence == 500)
        publish_numbered(publisher, 500, 500)
        publisher.close()
        subscriber.run(until_end=True)
    assert len(got) == 1_000
    assert kept(tmp_path).slices[0].sequence == 1_000


@pytest.mark.parametrize(("reader", "key_bytes"), first_of([("callback", 2), ("stream", 0)]))
def test_a_killed_consumer_resumes_exactly_once(tmp_path: Path, reader: str, key_bytes: int) -> None:
    """Its state and positions are one database transaction; it is killed at random moments."""
    feed = archived_feed(key_bytes=key_bytes, block_bytes=4_096)
    code = f"""
        import sqlite3
        database = sqlite3.connect({str(tmp_path / "state.db")!r}, isolation_level=None)
        database.execute("CREATE TABLE IF NOT EXISTS heard (number INTEGER)")
        database.execute("CREATE TABLE IF NOT EXISTS positions (slice PRIMARY KEY, epoch INTEGER, next INTEGER)")
        since = {{s: (e, n) for s, e, n in database.execute("SELECT * FROM positions")}} or 0
        heard, is_stream = [], {reader == "stream"}
        subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=100), on_gap="repair", repair_wait=600)
        take = lambda payload: heard.append(int.from_bytes(payload[:8], "little"))
        if is_stream:
            stream = subscriber.stream(b"", limit=100)
        else:
            subscriber.on(b"", fields=("payload",))(take)
        subscriber.start(since=since)
        say("started")
        while True:
            if is_stream:
                message = stream.get(60)
                take(message.payload)
                if len(heard) % 37 and (message.sequence + 1) % 500:
                    continue
            with subscriber.checkpoint() as positions:
                database.execute("BEGIN IMMEDIATE")
                database.executemany("INSERT INTO heard VALUES (?)", [(number,) for number in heard])
                database.executemany("REPLACE INTO positions VALUES (?, ?, ?)", [(s, *p) for s, p in positions.items()])
                database.execute("COMMIT")
                heard.clear()
            say("kept", positions[0].sequence)
    """
    with Publisher(feed, when_full="drop") as publisher, Recorder(feed, tmp_path / "days", serve=True) as recorder:
        published = 0
        for round_ in range(3):
            with Script(code, feed) as script:
                script.expect("started")
                for step in range(20):
                    publish_numbered(publisher, published, 25)
                    published += 25
                    publisher.flush()
                    if round_ == 1 and step % 2:  # of 50 more, a stream stores at least 37
                        script.read()
                if round_ == 2:
                    wait_recorded(recorder, published)
                    while script.read() != f"kept {published}":
                        pass
                script.kill()
    with closing(sqlite3.connect(tmp_path / "state.db")) as database:
        heard = [number for (number,) in database.execute("SELECT number FROM heard ORDER BY rowid")]
    assert heard == list(range(published))


@pytest.mark.parametrize(("key_bytes", "past"), [(0, True), (4, False)])
def test_a_consumer_that_ends_before_its_first_checkpoint_skips_nothing(
    tmp_path: Path, key_bytes: int, past: bool
) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_numbered(publisher, 0, 100)
        publisher.flush()
        wait_recorded(recorder, 100)
        first = 40 if past else 100
        for since in ({0: (publisher.epoch, 40)} if past else None, None):
            subscriber, got = consumer(feed, tmp_path / "positions")
            subscriber.start(since=since)
            count = publisher.published_count(0)
            publish_numbered(publisher, count, 50)
            publisher.flush()
            wait_until(lambda got=got, last=count + 49: got[-1:] == [(publisher.epoch, last)])  # type: ignore[misc]
            assert kept(tmp_path / "positions").slices == {0: (publisher.epoch, first)}
            subscriber.terminate()
    assert got == [(publisher.epoch, number) for number in range(first, 200)]


def test_a_name_in_use_is_rejected_or_waited_for(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed), ThreadPoolExecutor(1) as pool:
        owner, _ = consumer(feed, tmp_path)
        owner.start()
        with pytest.raises(SubscriberError, match="start was called when running; a subscriber is used once"):
            owner.start()
        refused, _ = consumer(feed, tmp_path)
        with pytest.raises(PositionError, match=rf"'strategy-1' .* was process {os.getpid()}'s, expected"):
            refused.start()
        waited, _ = consumer(feed, tmp_path, name_wait=0.05)
        with pytest.raises(PositionError, match=r"for 0\.05 s, expected no other"):
            waited.start()
        patient, _ = consumer(feed, tmp_path, name_wait=30)
        starting = pool.submit(patient.start)
        owner.stop()
        starting.result(200)
        patient.stop()


def test_the_name_is_free_again_however_it_ends(tmp_path: Path) -> None:
    feed = archived_feed()
    with pytest.raises(TimeoutError, match="confirmed the subscription"):
        consumer(feed, tmp_path)[0].start(timeout=0.1)
    with Publisher(feed, when_full="wait") as publisher:
        for how in ("fail", "terminate", "stop"):
            subscriber, _ = consumer(feed, tmp_path)
            if how == "fail":
                subscriber.on_batch(b"")(lambda batch: 1 / 0)
            subscriber.start()
            if how == "fail":
                publish_numbered(publisher, 0, 50)
                with pytest.raises(Exception, match="ZeroDivisionError"):
                    subscriber.run()
            else:
                getattr(subscriber, how)()
        with consumer(feed, tmp_path)[0]:
            pass


def test_the_name_is_released_once_when_another_thread_ends_a_start(tmp_path: Path) -> None:
    feed = archived_feed()
    for _ in range(8):
        subscriber, _ = consumer(feed, tmp_path)
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(subscriber.start, 60.0)
            wait_until(lambda: subscriber.state is SubscriberLife.RUNNING)
            subscriber.terminate()
            with pytest.raises(SubscriberError, match="ended before"):
                starting.result(200)


FORMAT = f'{{"format": {VERSION}'


@pytest.mark.parametrize(
    ("of", "slices", "text", "since", "error"),
    [
        ("tape", [0], None, {0: (5, 99)}, "expected 100 of epoch 5 or later, which is stored"),
        ("tape", [0], None, {0: (4, 1_000)}, "expected 100 of epoch 5 or later, which is stored"),
        ("tape", [0], None, 5, "start was given since 5, but consumer 'strategy-1' has stored later positions"),
        ("tape", [0], None, "session", "start was given since 'session', but consumer 'strategy-1' has stored later"),
        ("other", [0], None, None, r"was of feed 'other' and slices \[0\], expected 'tape' and"),
        ("tape", [3], None, None, r"slices \[3\]"),
        ("tape", [0], "", None, r"strategy-1\.positions is damaged"),
        ("tape", [0], FORMAT + "}", None, r"strategy-1\.positions is damaged"),
        ("tape", [0], FORMAT + ', "feed": "tape", "slices": {"0": [1]}}', None, r"strategy-1\.positions is damaged"),
        ("tape", [0], "\xff", None, r"strategy-1\.positions is damaged"),
        ("tape", [0], '{"format": 99}', None, f"format was 99, expected {VERSION}: remove the file"),
    ],
)
def test_other_positions_than_the_stored_ones_are_rejected(
    tmp_path: Path, of: str, slices: list[int], text: str | None, since: Any, error: str
) -> None:
    file = PositionFile(tmp_path, "strategy-1")
    file.own(0)
    file.keep(of, {slice_id: Position(5, 100) for slice_id in slices})
    file.close()
    if text is not None:
        file.path.write_bytes(text.encode("latin-1"))
    with pytest.raises(PositionError, match=error):
        consumer(archived_feed(), tmp_path)[0].start(since=since)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"name": "a"}, "name was 'a' and positions None, expected both or neither"),
        ({"checkpoint_interval": 1}, "name was None and positions None, expected both or neither"),
        ({"name": "../a", "positions": "x"}, r"name was '\.\./a'"),
        ({"name": "a", "positions": "x", "checkpoint_interval": 1e-09}, "checkpoint_interval was 1e-09"),
        ({"release": True}, "expected both"),
    ],
)
def test_conflicting_settings_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, ValueError), match=error):
        Subscriber(archived_feed(), **settings)
    with pytest.raises(ConfigError, match="had no archives"):
        Subscriber(Feed.local("tape", slices=1), name="a", positions="x")


def test_a_start_that_fails_to_write_positions_frees_the_name(tmp_path: Path) -> None:
    feed = archived_feed()
    (tmp_path / "strategy-1.new").mkdir()
    with Publisher(feed):
        subscriber, _ = consumer(feed, tmp_path)
        with pytest.raises(PositionError, match="cannot be kept: Is a directory"):
            subscriber.start()
        assert subscriber.state is SubscriberLife.ENDED
        (tmp_path / "strategy-1.new").rmdir()
        subscriber, _ = consumer(feed, tmp_path)
        subscriber.start()
        subscriber.stop()


def test_failing_to_write_positions_raises_and_keeps_the_old_ones(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed, when_full="wait") as publisher:
        subscriber, _ = consumer(feed, tmp_path)
        subscriber.start()
        with subscriber.checkpoint():
            pass
        publish_numbered(publisher, 0, 50)
        (tmp_path / "strategy-1.new").mkdir()
        with pytest.raises(PositionError, match="cannot be kept: Is a directory"):
            while True:
                with subscriber.checkpoint():
                    pass
        subscriber.stop()
    assert kept(tmp_path).slices == {0: (publisher.epoch, 0)}


LOST = "slice 0: lost 3 from 2 of epoch 1 on"


def send(publisher: RawPublisher, count: int = 1) -> None:
    publisher.send(publisher.encode([(b"A.x", b"")] * count))


def lose(publisher: RawPublisher, count: int) -> None:
    publisher.encode([(b"A.x", b"lost")] * count)


@contextmanager
def recorded(feed: Feed, place: Path) -> Iterator[tuple[RawPublisher, Recorder]]:
    """A publisher, and a recorder that misses what the publisher loses."""
    with RawPublisher(feed) as publisher, Recorder(feed, place / "days", serve=True) as recorder:
        yield publisher, recorder


def lose_and_end(feed: Feed, place: Path, publisher: RawPublisher, *, processes: bool = False) -> None:
    """Run a consumer until lost messages end it: the second message is delivered, but not committed."""
    subscriber, got = consumer(feed, place / "positions", on_gap="stop", processes=processes)
    subscriber.start()
    send(publisher)
    if not processes:
        wait_until(lambda: got == [(1, 0)])
        with subscriber.checkpoint():
            pass
    send(publisher)
    lose(publisher, 3)
    send(publisher)
    with pytest.raises(GapError):
        subscriber.run()


@pytest.mark.parametrize(("by_command", "key_bytes"), [(False, 0), (True, 0), (True, 1)])
def test_a_consumer_that_lost_messages_is_held_until_it_is_released(
    tmp_path: Path, by_command: bool, key_bytes: int
) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    positions = tmp_path / "positions"
    with recorded(feed, tmp_path) as (publisher, recorder):
        lose_and_end(feed, tmp_path, publisher)
        wait_recorded(recorder, 3)
        for policy in ("stop", "repair"):
            held, got = consumer(feed, positions, on_gap=policy)
            with pytest.raises(PositionError, match=rf"is held because it {LOST}.*--release strategy-1") as caught:
                held.start()
            assert f"blackbox positions {positions} --release strategy-1" in str(caught.value)
            assert got == []
        if by_command:
            assert invoke("positions", positions, "--release", "strategy-1").status == 0
        released, _ = consumer(feed, positions, on_gap="stop", release=not by_command)
        released.start()
        released.terminate()  # a release lasts until the loss is passed
        subscriber, got = consumer(feed, positions, on_gap="stop")
        subscriber.start()
        wait_until(lambda: got == [(1, 1), (1, 5)])
        assert subscriber.statistics().received.gaps == 3
        with subscriber.checkpoint():
            pass
        lose(publisher, 1)
        send(publisher)
        with pytest.raises(GapError):
            subscriber.run()
        found = kept(positions)
        assert (found.slices, found.accepted) == ({0: Position(1, 6)}, {})
        assert found.held == {0: Held(Position(1, 6), 7, 1, is_upper_bound=False)}


def test_a_released_loss_of_a_key_does_not_end_the_consumer_again(tmp_path: Path) -> None:
    feed = archived_feed(key_bytes=1)

    def consumer_of_a(**settings: Any) -> tuple[Subscriber, list[int]]:
        made = Subscriber(feed, name="strategy-1", positions=tmp_path / "positions", on_gap="stop", **settings)
        got = list[int]()
        made.on(b"A", fields=("sequence",))(got.append)
        return made, got

    with recorded(feed, tmp_path) as (publisher, recorder):
        subscriber, got = consumer_of_a()
        subscriber.start()
        send(publisher)
        wait_until(lambda: got == [0])
        publisher.heartbeat()
        with subscriber.checkpoint():
            pass
        publisher.send(publisher.encode([(b"B.x", b"")] * 3))
        lose(publisher, 1)
        send(publisher)
        with pytest.raises(GapError):
            subscriber.run()
        wait_recorded(recorder, 5)
        subscriber, got = consumer_of_a(release=True)
        subscriber.start()
        wait_until(lambda: got == [5])
        subscriber.stop()


def test_a_loss_in_the_process_of_a_slice_holds_the_consumer(tmp_path: Path) -> None:
    feed = archived_feed()
    with recorded(feed, tmp_path) as (publisher, _):
        lose_and_end(feed, tmp_path, publisher, processes=True)
        with pytest.raises(PositionError, match=LOST):
            consumer(feed, tmp_path / "positions")[0].start()


def test_a_held_consumer_is_listed_and_stays_held_when_moved(tmp_path: Path) -> None:
    file = PositionFile(tmp_path, "strategy-1")
    held = {0: Held(Position(1, 2), 5, 3, is_upper_bound=True)}
    file.keep("tape", {0: Position(1, 1)}, held)
    assert "lost at most 3 from 2 of epoch 1 on" in " ".join(invoke("positions", tmp_path).out.split())
    assert invoke("positions", tmp_path, "--name", "strategy-1", "--to", "0:1:0").status == 0
    (found,) = json.loads(invoke("positions", tmp_path, "--json").out)
    assert found["slices"] == [{"slice": 0, "epoch": 1, "sequence": 0}]
    assert found["held"] == [{"slice": 0, "epoch": 1, "sequence": 2, "count": 3}]
    (found,) = json.loads(invoke("positions", tmp_path, "--release", "strategy-1", "--json").out)
    assert found["held"] == []
    both = invoke("positions", tmp_path, "--release", "strategy-1", "--name", "strategy-1", "--forget")
    assert "choose one" in both.errors
    assert "'other'" in invoke("positions", tmp_path, "--release", "other").errors


def test_a_release_keeps_a_position_that_was_stored_until_the_name_was_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, own = {0: Held(Position(1, 2), 5, 3, is_upper_bound=False)}, PositionFile.own
    PositionFile(tmp_path, "strategy-1").keep("tape", {0: Position(1, 0)}, held)

    def store_and_own(file: PositionFile, wait_s: float) -> None:
        file.keep("tape", {0: Position(1, 1)}, held)
        own(file, wait_s)

    monkeypatch.setattr(PositionFile, "own", store_and_own)
    assert invoke("positions", tmp_path, "--release", "strategy-1").status == 0
    assert (kept(tmp_path).slices, kept(tmp_path).held) == ({0: Position(1, 1)}, {})


def test_a_consumer_stopped_before_archives_have_answered_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_yet(*arguments: Any, **_: Any) -> Iterator[Any]:
        is_over = arguments[5]
        wait_until(is_over)
        yield from ()

    feed, positions = archived_feed(), tmp_path / "positions"
    with Publisher(feed) as publisher, Recorder(feed, tmp_path / "days", serve=True) as recorder:
        publish_numbered(publisher, 0, 100)
        wait_recorded(recorder, 100)
        with monkeypatch.context() as late:
            late.setattr(ArchiveClient, "read", nothing_yet)
            subscriber, got = consumer(feed, positions, checkpoint_interval=3_600)
            subscriber.start(since={0: (publisher.epoch, 40)})
            publish_numbered(publisher, 100, 50)
            wait_until(lambda: subscriber.statistics().received.held > 0)
            subscriber.stop()
        assert (got, subscriber.statistics().received.gaps) == ([], 0)
        assert kept(positions).slices == {0: Position(publisher.epoch, 40)}
        wait_recorded(recorder, 150)
        subscriber, got = consumer(feed, positions)
        with subscriber.start():
            wait_until(lambda: len(got) >= 110)
        assert got == [(publisher.epoch, number) for number in range(40, 150)]
