"""A killed publisher never reports its end: `silence_timeout` limits the wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox import Feed, Recorder, Recording, Subscriber
from blackbox.errors import SilentPublisherError
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.archive.recorders import wait_recorded
from tests.subscribe.subscribers import one_slice


def test_run_gives_up_a_killed_publisher_and_delivers_received_messages() -> None:
    subscriber, got = Subscriber(feed := one_slice()), Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(10):
            publisher.send(publisher.encode([(b"T", b"%d" % number)]))
        got.wait(10)
    with pytest.raises(SilentPublisherError, match=r"slice 0: nothing came from the publisher at tcp:.* for 0.3 s"):
        subscriber.run(until_end=True, silence_timeout=0.3)
    assert [int(payload) for payload in got.payloads] == list(range(10))


def test_an_ended_publisher_is_not_silent_while_another_continues() -> None:
    feed = Feed.local("silence", slices=2)
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.heartbeat(end=True, slice_id=0)
        wait_until(lambda: subscriber._supervisor._slices[0].is_finished)
        with pytest.raises(SilentPublisherError, match="slice 1: nothing came"):
            subscriber.run(until_end=True, silence_timeout=0.5)


def test_a_recorder_gives_up_too_and_keeps_received_messages(tmp_path: Path) -> None:
    recorder = Recorder(feed := one_slice(), tmp_path)
    with RawPublisher(feed) as publisher:
        recorder.start()
        publisher.send(publisher.encode([(b"T", b"x")]))
        wait_recorded(recorder, 1)
    with pytest.raises(SilentPublisherError):
        recorder.run(until_end=True, silence_timeout=0.3)
    assert recorder.statistics().messages == 1
    day = next(recorder.directory.glob("*-*-*"))
    assert [message.payload for batch in Recording.open(day).batches() for message in batch] == [b"x"]
