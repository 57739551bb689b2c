"""A consumer that ended because of lost messages is held until it is released; then it continues after the loss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blackbox import ConfigError, Feed, GapError, Recorder, Subscriber
from blackbox.archive.consumer_positions import Held, PositionFile
from blackbox.block.position import Position
from blackbox.errors import PositionError
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import wait_recorded
from tests.cli.commands import invoke
from tests.recovery.test_durable_consumers import consumer

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
        subscriber, got = consumer(feed, positions, on_gap="stop", release=not by_command)
        subscriber.start()
        wait_until(lambda: got == [(1, 1), (1, 5)])
        assert subscriber.statistics().received.gaps == 3
        with subscriber.checkpoint():
            pass
        lose(publisher, 1)
        send(publisher)
        with pytest.raises(GapError):
            subscriber.run()
        kept = PositionFile(positions, "strategy-1").read()
        assert kept is not None
        assert (kept.slices, kept.accepted) == ({0: Position(1, 6)}, {})
        assert kept.held == {0: Held(Position(1, 6), 1, is_upper_bound=False)}


def test_a_release_lasts_until_the_loss_is_passed(tmp_path: Path) -> None:
    feed = archived_feed()
    with recorded(feed, tmp_path) as (publisher, recorder):
        lose_and_end(feed, tmp_path, publisher)
        wait_recorded(recorder, 3)
        released, _ = consumer(feed, tmp_path / "positions", on_gap="stop", release=True)
        released.start()
        released.terminate()
        subscriber, got = consumer(feed, tmp_path / "positions", on_gap="stop")
        subscriber.start()
        wait_until(lambda: got == [(1, 1), (1, 5)])
        subscriber.stop()


def test_a_loss_in_the_process_of_a_slice_holds_the_consumer(tmp_path: Path) -> None:
    feed = archived_feed()
    with recorded(feed, tmp_path) as (publisher, _):
        lose_and_end(feed, tmp_path, publisher, processes=True)
        with pytest.raises(PositionError, match=LOST):
            consumer(feed, tmp_path / "positions")[0].start()


def test_a_held_consumer_is_listed_and_stays_held_when_moved(tmp_path: Path) -> None:
    file = PositionFile(tmp_path, "strategy-1")
    held = {0: Held(Position(1, 2), 3, is_upper_bound=True)}
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
    held, own = {0: Held(Position(1, 2), 3, is_upper_bound=False)}, PositionFile.own
    PositionFile(tmp_path, "strategy-1").keep("tape", {0: Position(1, 0)}, held)

    def store_and_own(file: PositionFile, wait_s: float) -> None:
        file.keep("tape", {0: Position(1, 1)}, held)
        own(file, wait_s)

    monkeypatch.setattr(PositionFile, "own", store_and_own)
    assert invoke("positions", tmp_path, "--release", "strategy-1").status == 0
    kept = PositionFile(tmp_path, "strategy-1").read()
    assert kept is not None
    assert (kept.slices, kept.held) == ({0: Position(1, 1)}, {})


def test_release_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="expected both"):
        Subscriber(archived_feed(), release=True)
