"""Twins: two publishers of the same messages on lines A and B. Each message arrives once while one of them lives."""

from __future__ import annotations

import re
import time
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
import numpy
import pytest

from blackbox import Feed, Publisher
from blackbox.errors import ConfigError, PublisherError
from blackbox.feed.with_line import with_line
from blackbox.publish.twin import Twin
from blackbox.testing import Collector, wait_until
from tests.cli.commands import write_feed
from tests.publish.subscribers import collected

TOPICS = tuple(b"%c.t" % letter for letter in b"ABCDEFGH")
EPOCH = time.time_ns()
PAGE = Path(__file__).resolve().parents[2] / "docs" / "production.md"


def twins_feed(name: str = "twins") -> Feed:
    return msgspec.structs.replace(Feed.local(name, slices=2, lines=2), heartbeat_ns=200_000_000)


def publish(publisher: Publisher, first: int, stop: int, random: Random) -> None:
    """Publish numbers in parts of random size, some one by one: twins read the venue in different parts."""
    while first < stop:
        part = numpy.arange(first, min(stop, first + random.randrange(1, 700)))
        if random.random() < 0.2:
            publisher.publish(TOPICS[first % 8], int(first).to_bytes(8, "little"), ts_event=1)
            first += 1
            continue
        payloads = part.view(numpy.uint8).reshape(-1, 8)
        publisher.publish_many(TOPICS, (part % 8).astype(numpy.int32), payloads, ts_event=numpy.ones(len(part), int))
        first = int(part[-1]) + 1


def check(got: Collector, count: int) -> None:
    """Assert that the numbers below `count` came once, and in order within each topic."""
    came = [(each.topic, int.from_bytes(each.payload, "little")) for each in got.messages]
    assert len(came) == count
    for number, topic in enumerate(TOPICS):
        assert [value for its, value in came if its == topic] == list(range(number, count, 8))


def twin(feed: Feed, line: Literal["A", "B"]) -> Publisher:
    return Publisher(feed, when_full="wait", twin=Twin(line, EPOCH))


def test_each_message_arrives_once_while_twins_end_and_start_again() -> None:
    feed, random = twins_feed(), Random(5)
    subscriber, got = collected(feed)
    with twin(feed, "A") as first:
        second = twin(feed, "B").start()
        subscriber.start()
        publish(first, 0, 5_000, random)
        publish(second, 0, 4_000, random)
        wait_until(lambda: len(got) == 5_000)
        second.close()  # to subscribers the same as a kill
        publish(first, 5_000, 9_000, random)
        wait_until(lambda: len(got) == 9_000)
        with twin(feed, "B") as second:
            second.wait_for_subscribers()
            publish(second, 0, 12_000, random)  # from the first message on
            wait_until(lambda: len(got) == 12_000)
            first.close()
            publish(second, 12_000, 15_000, random)
            wait_until(lambda: len(got) == 15_000)
            with twin(feed, "A") as third:
                publish(third, 0, 15_000, random)
                assert not subscriber.is_finished
                for each in (second, third):
                    each.close(says_end=True)
        subscriber.run(until_end=True)
    check(got, 15_000)
    received = subscriber.statistics().received
    assert (received.gaps, received.stale, received.malformed) == (0, 0, 0)
    assert received.duplicates >= 4_000


def test_a_twin_refuses_what_would_make_it_differ() -> None:
    feed = twins_feed()
    with twin(feed, "B") as publisher:
        with pytest.raises(PublisherError, match="line B: the source lacks 3 messages; .*start this twin again"):
            publisher.skip(3)
        with pytest.raises(PublisherError, match="line B: a new epoch was begun"):
            publisher.new_epoch()


def test_a_twin_publishes_a_line_whose_subscribers_have_an_interface() -> None:
    feed = twins_feed()
    slices = tuple(msgspec.structs.replace(part, interface="127.0.0.1") for part in feed.slices)
    feed = msgspec.structs.replace(feed, slices=slices)
    assert [part.interface for part in with_line(feed, "A").slices] == ["127.0.0.1"] * 2
    with twin(feed, "B") as publisher:
        publisher.publish(TOPICS[0], b"x")


@pytest.mark.parametrize(
    ("change", "twin", "outbox", "error"),
    [
        ({}, Twin("C", EPOCH), None, "line was 'C'"),  # type: ignore[arg-type]
        ({}, Twin("A", 0), None, "epoch was 0"),
        ({}, Twin("A", EPOCH + 25 * 3_600 * 10**9), None, "at most 24 hours after now"),
        ({}, Twin("A", EPOCH), "outbox", "twin and outbox were both given"),
        ({"key_bytes": 4}, Twin("A", EPOCH), None, "had key_bytes or channels"),
        ({"slices": Feed.local("one").slices}, Twin("A", EPOCH), None, "expected line A and line B"),
    ],
)
def test_a_twin_that_cannot_be(change: dict[str, object], twin: Twin, outbox: str | None, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        Publisher(msgspec.structs.replace(twins_feed(), **change), outbox=outbox, twin=twin)


def test_the_twin_of_the_page_publishes_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_feed(Feed.local("twins", lines=2), tmp_path / "feed.toml")
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "the page", "exec"), names)
    publisher = names["publisher"]
    assert (publisher.epoch, publisher.statistics().unwanted) == (1_764_460_800 * 10**9, 1)
