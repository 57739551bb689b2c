"""`blackbox tap` and `blackbox trace`: messages and times of a running feed."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable

import msgspec
from blackbox_feeds.synthetic import Synthetic

from blackbox import Feed, Publisher, Relay
from blackbox.testing import wait_until
from tests.cli.commands import Ended, Place, beside, invoke, succeed, write_feed
from tests.cli.conftest import HEARTBEAT_NS


def tapped(place: Place, publish: Callable[[Publisher], object], *words: object, slices: int = 2) -> Ended:
    """Run `blackbox tap` at a publisher that publishes once the tap has subscribed to some slices."""
    feed = msgspec.structs.replace(place.feed, schema="itch50")
    path = write_feed(feed, place.path)

    def run(publisher: Publisher) -> None:
        def taps() -> int:
            return sum(peer.is_tap and peer.subscriptions > 2 for peer in publisher.statistics().peers)

        wait_until(lambda: taps() == slices)
        publish(publisher)
        publisher.flush()

    with Publisher(feed) as publisher, beside(lambda: run(publisher)):
        return succeed("tap", path, *words)


def test_messages_are_shown_decoded_with_the_chosen_fields(place: Place) -> None:
    ended = tapped(place, Synthetic(20_000).publish, "--count", 6_000, "--field", "price", "--field", "shares")
    lines = ended.out.splitlines()
    assert len(lines) == 6_000
    assert all(
        re.match(r"2026-01-05T\d\d:\d\d:\d\d\.\d{9}Z \S+\.\w( shares=\d+)?( price=\S+)?$", line) for line in lines
    )
    assert any("shares=" in line and "price=" in line for line in lines)
    assert "tapping\n" in ended.errors


def test_json_has_all_fields_of_the_chosen_messages(place: Place) -> None:
    ended = tapped(place, Synthetic(20_000).publish, "--prefix", "AAPL.", "--count", 5, "--json", slices=1)
    found = [json.loads(line) for line in ended.out.splitlines()]
    assert len(found) == 5
    assert all(each["topic"].startswith("AAPL.") and each["record"]["message_type"] for each in found)


def test_rates_count_all_messages_by_symbol(place: Place) -> None:
    def publish(publisher: Publisher) -> None:
        for number in range(600):
            publisher.publish_many(
                (b"A.x", b"B.x", b"B.y"), [number % 3], bytes(3), offsets=[0, 3], checks_records=False
            )

    ended = tapped(place, publish, "--rate", "--count", 600, "--json")
    counts, lines = Counter[str](), [json.loads(line) for line in ended.out.splitlines()]
    for line in lines:
        counts.update(line["counts"])
    assert counts == {"A": 200, "B": 400}
    assert sum(line["received"] for line in lines) == 600
    assert sum(line["missed"] for line in lines) == 0
    ended = tapped(place, publish, "--rate", "--count", 600)
    assert re.search(r"^\S+Z \S+( k)?/s: B [\d.,]+( k)?/s, A [\d.,]+( k)?/s$", ended.out, re.MULTILINE), ended.out


def test_a_trace_has_the_times_of_each_hop(place: Place) -> None:
    below = msgspec.structs.replace(Feed.local("cli"), heartbeat_ns=HEARTBEAT_NS, trace_every=8)
    path = write_feed(below, place.path.with_name("below.toml"))
    is_over = False

    def publish(publisher: Publisher) -> None:
        publisher.wait_for_subscribers()
        while not is_over:
            publisher.publish(b"A.x", b"payload")
            time.sleep(0.0005)  # a full queue would drop what the relay sends

    relay = Relay(place.feed, below, name="london")
    with Publisher(place.feed, when_full="wait") as publisher, relay, beside(lambda: publish(publisher)):
        try:
            ended = invoke("trace", path, "--every", 8, "--count", 20, "--json")
        finally:
            is_over = True
    assert ended.status == 0, ended.errors
    found = {each["hop"]: each for each in json.loads(ended.out)}
    assert list(found) == [
        "venue to publish",
        "publish to send",
        "send to relay london in",
        "relay london in to relay london out",
        "relay london out to receive",
        "receive to match",
        "match to callback",
        "venue to callback",
        "publish to callback",
    ]
    for each in found.values():
        assert each["p50_ns"] <= each["p99_ns"] <= each["max_ns"]
        assert each["samples"] == found["match to callback"]["samples"] >= 20
