"""`blackbox subscribe`: its output, its counts, and its end."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from blackbox import Publisher
from blackbox.block.format import ACCEPT_KEY
from blackbox.cli.ui import progress
from blackbox.cli.ui.status import Status
from blackbox.subscribe.slow_subscriber import EXIT_SLOW
from blackbox.testing import RawPublisher, wait_until
from tests.cli.commands import Command, Ended, Place, assert_one_line, beside, invoke
from tests.examples import first_of


def accepts(filters: frozenset[bytes]) -> bool:
    """Return True if a subscriber has its confirmation, which it accepts some microseconds later."""
    return any(prefix.startswith(ACCEPT_KEY) for prefix in filters)


def receive(place: Place, source: str, *options: str) -> tuple[Ended, Ended]:
    """Publish a source to `subscribe --until-end` in another process; return the results of both."""
    with Command("subscribe", "--feed", place.path, "--until-end", *options) as subscriber:
        return invoke("publish", source, "--feed", place.path), subscriber.end()


def test_published_messages_are_shown_and_counted(place: Place) -> None:
    publisher, subscriber = receive(place, "synthetic:20000", "--show", "3")
    assert (publisher.status, subscriber.status) == (0, 0), publisher.errors + subscriber.errors
    assert publisher.value("messages") == subscriber.value("received") == subscriber.value("delivered") == 20_000
    assert publisher.value("symbols") == subscriber.value("symbols") == 999
    assert publisher.value("topics") == subscriber.value("topics")
    assert [publisher.value(name) for name in ("unwanted", "discarded")] == [0, 0]
    assert [subscriber.value(name) for name in ("lost", "duplicated", "dropped", "malformed")] == [0, 0, 0, 0]
    for side in (publisher, subscriber):
        assert re.search(r"│ schema +│ +itch50 │", side.out)
    assert "waiting for the publishers of feed 'cli' (2 slices)\n" in subscriber.errors
    shown = [line for line in subscriber.out.splitlines() if " message_type=" in line]
    assert len(shown) == 3
    assert re.search(r"│ unwanted +│ +0 │ not sent: they had no subscriber", publisher.out)
    assert re.search(r"│ discarded +│ +0 │ not sent: a subscriber did not take them", publisher.out)
    assert re.search(r"│ delivered +│ +20,000 │ to callbacks: counted once for each --prefix", subscriber.out)
    assert re.search(r"│ lag p50 +│ .* │ lag: time from the publisher's sending to the callback", subscriber.out)
    assert all(re.match(r"2026-01-05T\d\d:\d\d:\d\d\.\d{9}Z \S+\.\w message_type=\w ", line) for line in shown)


def test_prefixes_and_processes(place: Place) -> None:
    words = ("--prefix", "AAPL.", "--prefix", "MSFT.", "--processes", "--show", "2")
    publisher, subscriber = receive(place, "synthetic:20000", *words)
    assert (publisher.status, subscriber.status) == (0, 0), publisher.errors + subscriber.errors
    assert subscriber.value("symbols") == 2
    assert re.search(r"│ schema +│ +itch50 │", subscriber.out)
    assert 0 < subscriber.value("delivered") < 1_000
    shown = re.findall(r"^\S+Z (AAPL|MSFT)\.", subscriber.out, re.MULTILINE)
    assert len(shown) == 2


def test_a_real_day_is_received_without_a_gap(place: Place, shared_data: Path) -> None:
    publisher, subscriber = receive(place, f"iex:{shared_data / 'iex' / 'goiex_DEEP10.pcap.gz'}")
    assert (publisher.status, subscriber.status) == (Status.LOST, 0), publisher.errors + subscriber.errors
    assert publisher.value("messages") == subscriber.value("delivered") == 391_999
    assert publisher.value("symbols") == subscriber.value("symbols") == 7_802
    assert subscriber.value("lost") == 0
    assert re.search(r"^lost: the source is incomplete: .* inside the pcap record", publisher.errors, re.MULTILINE)


def test_count_ends_a_subscription(place: Place) -> None:
    with Publisher(place.feed) as publisher:

        def publish() -> None:
            publisher.wait_for_subscribers(timeout=60)
            for number in range(500):
                publisher.publish(b"S%d.t" % (number % 7), b"payload")

        with beside(publish):
            ended = invoke("subscribe", "--feed", place.path, "--count", "500")
    assert ended.status == 0, ended.errors
    assert ended.value("delivered") == 500


def test_live_tables_on_a_terminal(place: Place, terminal: tuple[int, int]) -> None:
    reader, writer = terminal
    with (
        Publisher(place.feed) as publisher,
        Command("subscribe", "--prefix", "AAPL.", "--feed", place.path, "--until-end", stderr=writer) as subscriber,
    ):
        publisher.wait_for_subscribers(b"AAPL.", timeout=60)
        publisher.publish(b"AAPL.trade", b"1")
        seen = ""
        while not re.search(r"slices.*callbacks.*AAPL\..* 1 ", seen, re.DOTALL):
            seen += os.read(reader, 65_536).decode(errors="replace")
        publisher.close()
        assert subscriber.end().status == 0


def test_progress_is_printed_as_lines_without_a_terminal(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with Publisher(place.feed) as publisher:

        def publish_one() -> None:
            publisher.wait_for_subscribers(timeout=60)
            publisher.publish(b"AAPL.t", b"payload")
            publisher.close()

        with beside(publish_one):
            received = invoke("subscribe", "--feed", place.path, "--until-end")
    assert received.status == 0
    assert re.search(
        r"^received (?:0 messages|1 message), .*/s, \d+ [kM]?B/s, lost 0, lag p99 ", received.errors, re.MULTILINE
    )
    ended = invoke("publish", "synthetic:300000", "--feed", place.path, "--wait-for", "0")
    assert re.search(r"^messages so far: 131,072(?: \([\d,]+ unwanted\))?, .*/s, 0 B/s$", ended.errors, re.MULTILINE)


def test_slow_subscriber_exits_with_its_own_status(place: Place) -> None:
    with (
        Publisher(place.feed) as publisher,
        Command("subscribe", "--feed", place.path, "--max-lag", "0.000001", "--start-grace", "0") as subscriber,
    ):
        publisher.wait_for_subscribers(timeout=60)
        publisher.publish(b"AAPL.t", b"payload")
        ended = subscriber.end()
    assert ended.status == Status.SLOW
    assert ended.status == EXIT_SLOW
    assert_one_line(ended, "slow subscriber: feed 'cli' slice . lags .* policy exit_process")


def test_lost_messages_have_their_own_status(place: Place) -> None:
    with RawPublisher(place.feed) as raw:

        def publish() -> None:
            for slice_id in range(2):
                wait_until(lambda at=slice_id: accepts(raw.subscriptions(at)), 60, "the acceptance")  # type: ignore[misc]
            at = place.feed.slice_of(b"AAPL.t")
            for sequence in (0, 5):
                raw.send(raw.encode([(b"AAPL.t", b"payload")], slice_id=at, sequence=sequence))
            raw.heartbeat(end=True)

        with beside(publish):
            ended = invoke(
                "subscribe", "--feed", place.path, "--until-end", "--max-lag", 60
            )  # not slow, even while compiling
    assert ended.status == Status.LOST, ended.errors
    assert (ended.value("delivered"), ended.value("lost")) == (2, 4)
    assert "lost: 4 messages were lost" in ended.errors


@pytest.mark.parametrize(("number", "status"), first_of([(signal.SIGINT, 130), (signal.SIGTERM, 143)]))
def test_signals_end_a_subscriber_with_its_statistics(place: Place, number: signal.Signals, status: int) -> None:
    with Publisher(place.feed) as publisher, Command("subscribe", "--feed", place.path) as subscriber:
        subscriber.read_error("subscribed")
        publisher.publish(b"AAPL.t", b"payload")
        ended = subscriber.interrupt(number)
    assert ended.status == status, ended.errors
    assert ended.value("lost") == 0
    assert "Traceback" not in ended.errors


def test_no_publisher_is_an_error(place: Place) -> None:
    ended = invoke("subscribe", "--feed", place.path, "--timeout", "0.1")
    assert (ended.status, ended.out) == (Status.ERROR, "")
    assert_one_line(ended, "slice 0: no publisher at tcp://.* confirmed the subscription in 0.1 s")


@pytest.mark.parametrize("command", ["subscribe", "record"])
def test_a_killed_publisher_is_not_waited_for_forever(command: str, place: Place, tmp_path: Path) -> None:
    where = ["--out", tmp_path / "recordings"] if command == "record" else []
    with RawPublisher(place.feed):  # it confirms, and sends no heartbeat
        ended = invoke(command, "--feed", place.path, *where, "--until-end", "--silence-timeout", 0.5)
    assert ended.status == Status.ERROR
    told = " ".join(ended.errors.split())
    assert re.search(
        r"error: feed 'cli' slice \d: nothing came from the publisher at .* for 0.5 s, and it has not", told
    )
