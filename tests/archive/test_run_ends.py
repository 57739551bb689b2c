"""Subscribers get the gaps at the end of earlier epochs, and epochs that they missed, from archives."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from blackbox import Recorder, Subscriber
from blackbox.archive.consumer_positions import PositionFile
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.position import Position
from blackbox.receive.slices import catching_up
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.epochs import (
    FIRST,
    SECOND,
    SECOND_RUN,
    Order,
    Walk,
    begin_run,
    facts,
    from_start,
    lose,
    messages_in,
    send,
    told_by,
)
from tests.archive.recorders import feed_of, wait_recorded
from tests.examples import first_of


@pytest.mark.parametrize(("ends", "second", "since"), [(True, "recorded", "name"), (False, "unheard", "position")])
def test_a_joining_subscriber_gets_gaps_of_earlier_epochs(tmp_path: Path, ends: bool, second: str, since: str) -> None:
    """In order, before the first message of the live epoch. `unheard`: the recorder ended before it."""
    feed, elsewhere = archived_feed(heartbeat_ns=60 * SECOND), feed_of()
    with RawPublisher(elsewhere, FIRST) as publisher, ExitStack() as stack:
        recorder = stack.enter_context(Recorder(elsewhere, tmp_path))
        send(publisher, 10)
        wait_recorded(recorder, 10)
        lose(publisher, 5)
        publisher.heartbeat(end=ends)
        stack.enter_context(ArchiveServer(tmp_path / feed.name, feed.archives))
        client = ArchiveClient(feed, timeout=200)
        wait_until(lambda: told_by(client, FIRST) == (14, ends))
        if second == "unheard":
            recorder.stop()
        else:
            begin_run(publisher, SECOND_RUN)
            for _ in range(2):
                publisher.heartbeat()
            wait_until(lambda: len(client.about().slices[0].runs) == 2)
        live = stack.enter_context(RawPublisher(feed, SECOND_RUN))
        if second == "recorded":
            send(publisher, 3)
            wait_recorded(recorder, 13)
            live.sequences = [3]
        settings: Any = {}
        if since == "name":
            kept = PositionFile(tmp_path, "strategy-1")
            kept.own(0)
            kept.keep(feed.name, {0: Position(FIRST, 7)})
            kept.close()
            settings = {"name": "strategy-1", "positions": tmp_path}
        subscriber = Subscriber(feed, **settings)
        heard = Order(subscriber)
        subscriber.start(since={0: (FIRST, 7)} if since == "position" else None)
        live.heartbeat()
        subscriber.wait_live()
        send(live, 4)
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert heard.told == [
        *facts("came", FIRST, range(7, 10)),
        *facts("gone", FIRST, range(10, 15)),
        *facts("came", SECOND_RUN, range(7 if second == "recorded" else 4)),
    ]


@pytest.mark.parametrize("seed", first_of(range(4)))
def test_a_joining_subscriber_matches_a_plain_walk(tmp_path: Path, seed: int) -> None:
    """Epochs end and lose messages while recorders start and stop, over real sockets."""
    chance, walk = Random(seed), Walk()
    feed = archived_feed()
    elsewhere = msgspec.structs.replace(feed_of(), archives=feed.archives)
    client, recorded = ArchiveClient(feed, timeout=200), 0
    with RawPublisher(elsewhere, FIRST) as publisher:
        recorder = Recorder(elsewhere, tmp_path, serve=True).start()
        for _ in range(40):
            epoch, at = publisher.epoch, publisher.sequences[0]
            what = chance.choice(["send", "send", "lose", "lose", "hear", "end", "recorder"])
            many = chance.randint(1, 9)
            if what == "send":
                send(publisher, many)
                recorded += many
                wait_until(lambda: messages_in(client) == recorded)
                walk.log.append(("block", epoch, b"", at, at + many))
            elif what == "lose":
                lose(publisher, many)
            elif what in ("hear", "end") and at > 0:
                publisher.heartbeat(end=what == "end")
                wait_until(lambda: told_by(client, epoch)[0] == at - 1)
                walk.log.append(("told", epoch, b"", 0, at))
                if what == "end" or chance.random() < 0.3:
                    begin_run(publisher, epoch + 1)
                    for _ in range(2):
                        publisher.heartbeat()
                    wait_until(lambda: epoch + 1 in {run.epoch for run in client.about().slices[0].runs})
                    walk.log.append(("told", epoch + 1, b"", 0, 0))
            elif what == "recorder" and walk.log:
                recorder.stop()
                recorder = Recorder(elsewhere, tmp_path, serve=True).start()
                wait_until(lambda: client.about().slices[0].outages[-1].stop_ns > 0)
        with RawPublisher(feed, publisher.epoch) as live:
            live.sequences = list(publisher.sequences)
            start = Position(FIRST, chance.randint(0, 5))
            subscriber = Subscriber(feed, repair_wait=2)
            heard = Order(subscriber)
            subscriber.start(since={0: start})
            live.heartbeat()
            subscriber.wait_live()
            live.heartbeat(end=True)
            subscriber.run(until_end=True)
        recorder.stop()
    walk.log.append(("told", publisher.epoch, b"", 0, publisher.sequences[0]))
    assert heard.told == from_start(walk.walk(b"", start), start)


@pytest.mark.parametrize("begins", ["blocks", "heartbeat"])
def test_an_epoch_missed_completely_is_delivered_before_the_next_one(tmp_path: Path, begins: str) -> None:
    """As when a publisher is killed twice within a second; messages of all epochs are lost too."""
    feed, elsewhere = archived_feed(key_bytes=2, heartbeat_ns=60 * SECOND), feed_of(key_bytes=2)
    client, third, count = ArchiveClient(feed, timeout=200), SECOND_RUN + 1, 0
    with (
        RawPublisher(elsewhere, FIRST) as publisher,
        Recorder(msgspec.structs.replace(elsewhere, archives=feed.archives), tmp_path, serve=True) as recorder,
        RawPublisher(feed, FIRST) as live,
    ):
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
        heard = Order(subscriber)

        def hear() -> None:
            for _ in range(3):  # an epoch is accepted at its second heartbeat
                publisher.heartbeat()
            wait_until(lambda: told_by(client, publisher.epoch)[0] == publisher.sequences[0] - 1)

        def both(key: bytes, many: int) -> None:
            """Send messages that are recorded and received."""
            nonlocal count
            copy_state()
            send(publisher, many, key)
            count += many
            wait_recorded(recorder, count)
            send(live, many, key)

        def copy_state() -> None:
            live.epoch, live.sequences = publisher.epoch, list(publisher.sequences)
            live.ends = [dict(ends) for ends in publisher.ends]

        both(b"AA", 2)
        subscriber.start()
        both(b"AA", 3)
        both(b"AB", 3)
        wait_until(lambda: len(heard.told) == 6)
        for key, recorded, lost in ((b"AB", 2, 1), (b"BA", 4, 0)):
            send(publisher, recorded, key)
            lose(publisher, lost, key)
        hear()
        begin_run(publisher, SECOND_RUN)
        hear()
        for key, recorded, lost in ((b"AA", 4, 2), (b"AB", 1, 2)):
            send(publisher, recorded, key)
            lose(publisher, lost, key)
        hear()
        count += 11
        begin_run(publisher, third)
        hear()
        if begins == "heartbeat":
            copy_state()
            live.heartbeat()
            live.heartbeat()
        for key in (b"AB", b"BA", b"AB", b"BA"):
            both(key, 2)
        hear()
        copy_state()
        live.heartbeat()
        expected = [
            *facts("came", FIRST, range(2, 10)),
            *facts("gone", FIRST, range(10, 11)),
            *facts("came", FIRST, range(11, 15)),
            *facts("came", SECOND_RUN, range(4)),
            *facts("gone", SECOND_RUN, range(4, 6)),
            *facts("came", SECOND_RUN, range(6, 7)),
            *facts("gone", SECOND_RUN, range(7, 9)),
            *facts("came", third, range(8)),
        ]
        wait_until(lambda: heard.told == expected, what="all came")
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert heard.told == expected


def test_a_missing_archive_delays_an_epoch_only_like_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answered at the subscriber's start; a joining subscriber waits many times as long for it."""
    monkeypatch.setattr(catching_up, "_MOST_WAITS", 1_000)  # which would exceed the 60 s below
    feed, elsewhere = archived_feed(key_bytes=2), feed_of(key_bytes=2)
    with RawPublisher(elsewhere, FIRST) as publisher, Recorder(elsewhere, tmp_path) as recorder:
        send(publisher, 3)
        wait_recorded(recorder, 3)
    with RawPublisher(feed, FIRST) as live:
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=2)
        told = Order(subscriber).told
        with ArchiveServer(tmp_path / feed.name, feed.archives):
            subscriber.start()
            send(live, 3)
            wait_until(lambda: told)
        begin_run(live, SECOND_RUN)
        for _ in range(2):
            send(live, 1)
        live.heartbeat()
        wait_until(lambda: len(told) == 5)
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert told == [("came", FIRST, n) for n in range(3)] + [("came", SECOND_RUN, n) for n in range(2)]
