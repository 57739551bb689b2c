"""Named consumers: each resumes at its stored positions after any kill, and one process owns a name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from blackbox import ConfigError, Feed, Publisher, Recorder, Subscriber
from blackbox.archive.consumer_positions import PositionFile
from blackbox.block.layout import VERSION
from blackbox.block.position import Position
from blackbox.errors import PositionError, SubscriberError
from blackbox.recovery.consumer import ConsumerLife
from blackbox.subscribe.supervisor import SubscriberLife
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import MIB, publish_numbered, wait_recorded
from tests.support import Script


def consumer(feed: Feed, positions: Path, **settings: Any) -> tuple[Subscriber, list[tuple[int, int]]]:
    """Return a named subscriber, and the (epoch, number) pairs that its callback receives."""
    subscriber = Subscriber(feed, name="strategy-1", positions=positions, **settings)
    got: list[tuple[int, int]] = []
    subscriber.on(b"", fields=("epoch", "sequence"))(lambda epoch, sequence: got.append((epoch, sequence)))
    return subscriber, got


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_a_consumer_resumes_after_its_last_checkpoint_over_epochs_and_segments(tmp_path: Path, key_bytes: int) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    came: list[tuple[int, int]] = []
    sent: list[tuple[int, int]] = []
    recorder = Recorder(feed, tmp_path / "days", serve=True, segment_bytes=MIB)
    for run in range(4):
        with Publisher(feed, when_full="wait") as publisher:
            if run == 0:
                recorder.start()
            publisher.wait_for_subscribers()
            if run == 2:  # the consumer is away during this epoch
                publish_numbered(publisher, 0, 15_050)
            else:
                subscriber, got = consumer(feed, tmp_path / "positions")
                subscriber.start(since=0 if run == 0 else None)
                publish_numbered(publisher, 0, 15_000)
                publisher.flush()
                wait_until(lambda: got[-1:] == [(publisher.epoch, 14_999)], 60)
                with subscriber.checkpoint() as positions:
                    assert positions == {0: (publisher.epoch, 15_000)}
                    came += got
                publish_numbered(publisher, 15_000, 50)  # the consumer ends before it stores that it handled these
                subscriber.terminate()
            sent += [(publisher.epoch, number) for number in range(15_050)]
            wait_recorded(recorder, len(sent))
    recorder.stop()
    assert came == sent[: len(came)]
    assert len(came) == len(sent) - 50


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_positions_are_stored_at_intervals_and_at_the_end(tmp_path: Path, key_bytes: int) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    file = PositionFile(tmp_path, "strategy-1")

    def kept() -> int:
        found = file.read()
        return 0 if found is None else found.slices[0].sequence

    with Publisher(feed, when_full="wait") as publisher:
        subscriber, got = consumer(feed, tmp_path, checkpoint_interval=0.01)
        subscriber.start()
        publish_numbered(publisher, 0, 500)
        wait_until(lambda: kept() == 500)
        publish_numbered(publisher, 500, 500)
        publisher.close()
        subscriber.run(until_end=True)
    assert len(got) == 1_000
    assert kept() == 1_000


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_a_killed_consumer_resumes_exactly_once(tmp_path: Path, key_bytes: int) -> None:
    """Its state and positions are one database transaction; it is killed at random moments."""
    feed = archived_feed(key_bytes=key_bytes, block_bytes=4_096)
    code = f"""
        import sqlite3
        database = sqlite3.connect({str(tmp_path / "state.db")!r}, isolation_level=None)
        database.execute("CREATE TABLE IF NOT EXISTS heard (number INTEGER)")
        database.execute("CREATE TABLE IF NOT EXISTS positions (slice PRIMARY KEY, epoch INTEGER, next INTEGER)")
        since = {{s: (e, n) for s, e, n in database.execute("SELECT * FROM positions")}} or 0
        heard = []
        subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=100), on_gap="repair", repair_wait=10)
        subscriber.on(b"", fields=("payload",))(lambda payload: heard.append(int.from_bytes(payload[:8], "little")))
        subscriber.start(since=since)
        say("started")
        while True:
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
        for round_ in range(5):
            with Script(code, feed) as script:
                script.expect("started")
                for _ in range(20):
                    publish_numbered(publisher, published, 25)
                    published += 25
                    publisher.flush()
                    if round_ % 2:
                        script.read()
                if round_ == 4:
                    wait_recorded(recorder, published)
                    while script.read() != f"kept {published}":
                        pass
                script.kill()
    import sqlite3

    with closing(sqlite3.connect(tmp_path / "state.db")) as database:
        heard = [number for (number,) in database.execute("SELECT number FROM heard ORDER BY rowid")]
    assert heard == list(range(published))


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_a_consumer_killed_before_its_first_checkpoint_skips_nothing(tmp_path: Path, key_bytes: int) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    code = f"""
        subscriber = Subscriber(feed, name="strategy-1", positions={str(tmp_path / "positions")!r})
        subscriber.on(b"", fields=("sequence",))(lambda sequence: say("got", sequence))
        subscriber.start()
        say("started")
        input()
    """
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_numbered(publisher, 0, 100)  # before it began
        publisher.flush()
        wait_recorded(recorder, 100)
        with Script(code, feed) as script:
            script.expect("started")
            publish_numbered(publisher, 100, 862)
            publisher.flush()
            script.expect("got 100")
            script.kill()
        wait_recorded(recorder, 962)
        subscriber, got = consumer(feed, tmp_path / "positions")
        subscriber.start()
        publish_numbered(publisher, 962, 38)
        publisher.flush()
        wait_until(lambda: got[-1:] == [(publisher.epoch, 999)])
        subscriber.stop()
    assert got == [(publisher.epoch, number) for number in range(100, 1_000)]


@pytest.mark.parametrize("key_bytes", [0, 4])
@pytest.mark.parametrize("past", [False, True])
def test_the_start_position_is_stored(tmp_path: Path, key_bytes: int, past: bool) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        publish_numbered(publisher, 0, 100)
        publisher.flush()
        wait_recorded(recorder, 100)
        subscriber, got = consumer(feed, tmp_path / "positions")
        subscriber.start(since={0: (publisher.epoch, 40)} if past else None)
        publish_numbered(publisher, 100, 50)
        publisher.flush()
        wait_until(lambda: got[-1:] == [(publisher.epoch, 149)])
        kept = PositionFile(tmp_path / "positions", "strategy-1").read()
        subscriber.terminate()
    assert kept is not None
    assert kept.slices == {0: (publisher.epoch, 40 if past else 100)}


def test_a_name_of_another_process_is_rejected_or_waited_for(tmp_path: Path) -> None:
    feed = archived_feed()
    code = f"""
        subscriber = Subscriber(feed, name="strategy-1", positions={str(tmp_path)!r})
        subscriber.on(b"")(print)
        subscriber.start()
        say("started")
        input()
    """
    with Publisher(feed), Script(code, feed) as script:
        script.expect("started")
        refused, _ = consumer(feed, tmp_path)
        with pytest.raises(PositionError, match=rf"'strategy-1' .* was process {script.process.pid}'s, expected"):
            refused.start()
        waited, _ = consumer(feed, tmp_path, name_wait=0.05)
        with pytest.raises(PositionError, match=r"for 0\.05 s, expected no other"):
            waited.start()
        patient, _ = consumer(feed, tmp_path, name_wait=30)
        script.tell("go")
        patient.start()
        patient.stop()
        again, _ = consumer(feed, tmp_path)
        with again:
            pass


@pytest.mark.parametrize("how", ["stop", "terminate", "fail"])
def test_the_name_is_free_again_however_it_ends(tmp_path: Path, how: str) -> None:
    feed = archived_feed()
    with Publisher(feed, when_full="wait") as publisher:
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
        again, _ = consumer(feed, tmp_path)
        with again:
            pass


def test_the_name_is_free_again_when_no_publisher_answers(tmp_path: Path) -> None:
    feed = archived_feed()
    for _ in range(2):
        subscriber, _ = consumer(feed, tmp_path)
        with pytest.raises(TimeoutError, match="confirmed the subscription"):
            subscriber.start(timeout=0.1)


def test_the_name_is_released_once_when_another_thread_ends_a_start(tmp_path: Path) -> None:
    feed = archived_feed()
    for _ in range(20):
        subscriber, _ = consumer(feed, tmp_path)
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(subscriber.start, 60.0)
            wait_until(lambda: subscriber.state is SubscriberLife.RUNNING)
            subscriber.terminate()
            with pytest.raises(SubscriberError, match="ended before"):
                starting.result(60)


def test_a_named_subscriber_starts_once_and_invalid_stages_are_rejected(tmp_path: Path) -> None:
    feed = archived_feed()
    subscriber, _ = consumer(feed, tmp_path)
    with Publisher(feed), subscriber:
        with pytest.raises(SubscriberError, match="start was called when running; a subscriber is used once"):
            subscriber.start()
        named = subscriber._consumer
        assert named is not None
        with pytest.raises(RuntimeError, match="'strategy-1' was to be named when it was keeping, expected ended"):
            named._enter(ConsumerLife.NAMED)
    assert named._life is ConsumerLife.ENDED
    with pytest.raises(SubscriberError, match="start was called when ended; a subscriber is used once"):
        subscriber.start()


def kept_at(directory: Path, feed: Feed, sequence: int) -> PositionFile:
    file = PositionFile(directory, "strategy-1")
    file.own(0)
    file.keep(feed.name, {0: Position(5, sequence)})
    file.close()
    return file


def test_earlier_positions_are_rejected(tmp_path: Path) -> None:
    feed = archived_feed()
    kept_at(tmp_path, feed, 100)
    for since in ({0: (5, 99)}, {0: (4, 1_000)}):
        subscriber, _ = consumer(feed, tmp_path)
        with pytest.raises(PositionError, match="expected 100 of epoch 5 or later, which is stored"):
            subscriber.start(since=since)
    for when, said in ((5, "5"), ("session", "'session'")):
        subscriber, _ = consumer(feed, tmp_path)
        given = f"start was given since {said}, but consumer 'strategy-1' has stored later positions"
        with pytest.raises(PositionError, match=given):
            subscriber.start(since=when)


def test_positions_of_another_feed_are_rejected(tmp_path: Path) -> None:
    feed = archived_feed()
    file = PositionFile(tmp_path, "strategy-1")
    file.own(0)
    file.keep("other", {0: Position(5, 1)})
    file.close()
    subscriber, _ = consumer(feed, tmp_path)
    with pytest.raises(PositionError, match=r"was of feed 'other' and slices \[0\], expected 'tape' and"):
        subscriber.start()
    file.own(0)
    file.keep(feed.name, {3: Position(5, 1)})
    file.close()
    with pytest.raises(PositionError, match=r"slices \[3\]"):
        subscriber.start()


@pytest.mark.parametrize("text", ["", '{"format": %d}', '{"format": %d, "feed": "tape", "slices": {"0": [1]}}', "\xff"])
def test_a_damaged_file_of_positions_is_rejected(tmp_path: Path, text: str) -> None:
    feed = archived_feed()
    kept_at(tmp_path, feed, 100).path.write_bytes(text.replace("%d", str(VERSION)).encode("latin-1"))
    subscriber, _ = consumer(feed, tmp_path)
    with pytest.raises(PositionError, match=r"strategy-1\.positions is damaged"):
        subscriber.start()


def test_a_file_of_positions_of_another_version_names_both_versions(tmp_path: Path) -> None:
    feed = archived_feed()
    path = kept_at(tmp_path, feed, 100).path
    path.write_text(path.read_text().replace(f'"format":{VERSION}', '"format":99'))
    subscriber, _ = consumer(feed, tmp_path)
    with pytest.raises(PositionError, match=rf"format was 99, expected {VERSION}: remove the file"):
        subscriber.start()


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
    kept = PositionFile(tmp_path, "strategy-1").read()
    assert kept is not None
    assert kept.slices == {0: (publisher.epoch, 0)}


def test_conflicting_settings_are_rejected(tmp_path: Path) -> None:
    feed = archived_feed()
    with pytest.raises(ConfigError, match="name was 'a' and positions None, expected both or neither"):
        Subscriber(feed, name="a")
    with pytest.raises(ConfigError, match="name was None and positions None, expected both or neither"):
        Subscriber(feed, checkpoint_interval=1)
    with pytest.raises(ConfigError, match="had no archives"):
        Subscriber(Feed.local("tape", slices=1), name="a", positions=tmp_path)
    with pytest.raises(ConfigError, match=r"name was '\.\./a'"):
        Subscriber(feed, name="../a", positions=tmp_path)
    with pytest.raises(ValueError, match="checkpoint_interval was 1e-09"):
        Subscriber(feed, name="a", positions=tmp_path, checkpoint_interval=1e-09)
    with suppress(PositionError):
        PositionFile(tmp_path, "none").forget()
