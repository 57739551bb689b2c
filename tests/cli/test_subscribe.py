"""`blackbox subscribe`: its output, its counts, and its end."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import msgspec
import pytest
from blackbox_feeds.synthetic import Synthetic

from blackbox import Publisher
from blackbox.cli.ui import progress
from blackbox.cli.ui.status import Status
from blackbox.receive.slow_subscriber import EXIT_SLOW
from blackbox.testing import RawPublisher
from tests.cli.commands import Command, Place, Screen, assert_one_line, beside, invoke, succeed


def test_published_messages_are_shown_and_counted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)

    def publish() -> None:
        feed = msgspec.structs.replace(place.feed, schema="itch50")
        with Publisher(feed, when_full="wait") as publisher:
            publisher.wait_for_subscribers()
            Synthetic(20_000).publish(publisher)

    with beside(publish):
        ended = succeed("subscribe", "--feed", place.path, "--until-end", "--show", 3)
    assert ended.value("received") == ended.value("delivered") == 20_000
    assert (ended.text("schema"), ended.value("symbols")) == ("itch50", 999)
    assert [ended.value(name) for name in ("lost", "duplicated", "dropped", "malformed")] == [0, 0, 0, 0]
    assert re.search(r"│ lag p50 +│ .* │ lag: time from the publisher's sending to the callback", ended.out)
    assert "waiting for the publishers of feed 'cli' (2 slices)\n" in ended.errors
    assert re.search(r"^received [\d,]+ messages?, .*/s, .*B/s, lost 0, lag p99 ", ended.errors, re.MULTILINE)
    shown = [line for line in ended.out.splitlines() if " message_type=" in line]
    assert len(shown) == 3
    assert all(re.match(r"2026-01-05T\d\d:\d\d:\d\d\.\d{9}Z \S+\.\w message_type=\w ", line) for line in shown)


def test_prefixes_and_processes(place: Place) -> None:
    words = ("--prefix", "AAPL.", "--prefix", "MSFT.", "--processes", "--show", 2)
    with Command("subscribe", "--feed", place.path, "--until-end", *words) as subscriber:
        published = invoke("publish", "synthetic:20000", "--timeout", 200, "--feed", place.path)
        ended = subscriber.end()
    assert (published.status, ended.status) == (0, 0), published.errors + ended.errors
    assert (ended.text("schema"), ended.value("symbols")) == ("itch50", 2)
    assert 0 < ended.value("delivered") < 1_000
    assert len(re.findall(r"^\S+Z (AAPL|MSFT)\.", ended.out, re.MULTILINE)) == 2


def test_count_ends_a_subscription(place: Place) -> None:
    with Publisher(place.feed) as publisher:

        def publish() -> None:
            publisher.wait_for_subscribers()
            for number in range(500):
                publisher.publish(b"S%d.t" % (number % 7), b"payload")

        with beside(publish):
            ended = succeed("subscribe", "--feed", place.path, "--count", "500", "--json")
    assert json.loads(ended.out)["statistics"]["received"]["messages"] == 500


def test_tables_on_a_terminal_until_sigterm(place: Place, screen: Screen) -> None:
    words = ("subscribe", "--prefix", "AAPL.", "--feed", place.path)
    with Publisher(place.feed) as publisher, Command(*words, stderr=screen.program) as subscriber:
        publisher.wait_for_subscribers(b"AAPL.")
        publisher.publish(b"AAPL.trade", b"1")
        screen.wait(r"slices.*callbacks.*AAPL\..* 1 ")
        ended = subscriber.interrupt(signal.SIGTERM)
        screen.wait("terminated")
    assert ended.status == 143
    assert (ended.value("delivered"), ended.value("lost")) == (1, 0)


def test_slow_subscriber_exits_with_its_own_status(place: Place) -> None:
    with (
        Publisher(place.feed) as publisher,
        Command("subscribe", "--feed", place.path, "--max-lag", "0.000001", "--start-grace", "0") as subscriber,
    ):
        publisher.wait_for_subscribers()
        publisher.publish(b"AAPL.t", b"payload")
        ended = subscriber.end()
    assert Status.SLOW == EXIT_SLOW
    assert_one_line(ended, "slow subscriber: feed 'cli' slice . lags .* policy exit_process", EXIT_SLOW)


@pytest.mark.parametrize("command", ["subscribe", "record"])
def test_a_killed_publisher_is_not_waited_for_forever(command: str, place: Place, tmp_path: Path) -> None:
    where = ["--out", tmp_path / "recordings"] if command == "record" else []
    with RawPublisher(place.feed):  # it confirms, and sends no heartbeat
        ended = invoke(command, "--feed", place.path, *where, "--until-end", "--silence-timeout", 0.5)
    assert ended.status == Status.ERROR
    errors = " ".join(ended.errors.split())
    assert re.search(
        r"error: feed 'cli' slice \d: nothing came from the publisher at .* for 0.5 s, and it has not", errors
    )
