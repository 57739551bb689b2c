"""`blackbox publish`: its wait for subscribers, its refusals, and its end."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path

import msgspec
import pytest
import zmq

from blackbox import Feed, Subscriber
from blackbox.cli.live.publish import print_summary, warn_of_unwanted
from blackbox.cli.ui import progress
from blackbox.cli.ui.feeds import LOCAL, feed_for, open_with_options
from blackbox.cli.ui.source_publisher import SourcePublisher
from blackbox.cli.ui.status import Status
from blackbox.feed.endpoint import _free_ports
from blackbox.testing import wait_until
from tests.cli.commands import Command, Ended, Place, assert_one_line, beside, invoke, succeed, write_feed
from tests.feeds.build import ethernet, itch, mold, pcap


def capture(path: Path, *numbers: int) -> str:
    """Write a capture with the messages of these numbers; return it as a source."""
    path.write_bytes(pcap([ethernet(mold(number, [itch("A", ns=number)])) for number in numbers]))
    return f"itch50:{path}"


def publish(place: Place, *words: object) -> tuple[Ended, Subscriber, list[int]]:
    """Publish to a subscriber; return how the command ended, the subscriber and the times of its messages."""
    subscriber = Subscriber(msgspec.structs.replace(place.feed, schema="itch50"))
    received: list[int] = []
    subscriber.on(b"")(lambda message: received.append(message.ts_event))
    with beside(lambda: subscriber.run(until_end=True, timeout=200)):
        ended = invoke("publish", *words, "--timeout", 200, "--feed", place.path)
    return ended, subscriber, received


def test_published_messages_are_counted(place: Place) -> None:
    ended, _, received = publish(place, "synthetic:2000")
    assert ended.status == 0, ended.errors
    assert ended.value("messages") == len(received) == 2_000
    assert [ended.value(name) for name in ("unwanted", "discarded")] == [0, 0]
    assert ended.value("symbols") == 99
    assert re.search(r"│ schema +│ +itch50 │", ended.out)
    assert re.search(r"│ unwanted +│ +0 │ not sent: they had no subscriber", ended.out)
    assert re.search(r"│ discarded +│ +0 │ not sent: a subscriber did not take them", ended.out)


def test_publish_without_waiting_for_subscribers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    ended = succeed("publish", "synthetic:300000", "--feed", place.path, "--wait-for", "0")
    assert (ended.value("messages"), ended.value("unwanted")) == (0, 300_000)
    assert "warning: no message was sent: all 300,000 messages had no subscriber" in ended.errors
    assert re.search(r"^messages so far: 131,072(?: \([\d,]+ unwanted\))?, .*/s, 0 B/s$", ended.errors, re.MULTILINE)


def test_a_publisher_that_waits_names_the_slices_that_lack_subscribers(place: Place) -> None:
    with Command("publish", "synthetic:1000", "--timeout", 300, "--feed", place.path) as publisher:
        publisher.read_error(
            "feed 'cli' (2 slices): slice 0 has 0, slice 1 has 0; to publish without them: --wait-for 0"
        )
        subscriber = Subscriber(place.feed)
        subscriber.on(b"AAPL.")(lambda _: None)
        with subscriber.start(60.0):
            other = 1 - place.feed.slice_of(b"AAPL.t")
            publisher.read_error(f"feed 'cli' (2 slices): slice {other} has 0; to publish without them: --wait-for 0")


@pytest.mark.long
@pytest.mark.parametrize("leaves", [False, True])
def test_a_hung_subscriber_does_not_stop_ctrl_c_and_one_that_leaves_is_reported(place: Place, leaves: bool) -> None:
    with Command("publish", "synthetic:3000000", "--feed", place.path) as publisher:
        with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
            subscriber.rcvhwm = 1
            for feed_slice in place.feed.slices:
                subscriber.connect(feed_slice.endpoints[0])
            subscriber.subscribe(b"")
            while subscriber.recv_multipart()[0]:
                pass  # heartbeats; the key of data is empty
            if not leaves:
                ended = publisher.interrupt()
        ended = publisher.end() if leaves else ended
    assert ended.status == (Status.LOST if leaves else Status.INTERRUPTED), ended.errors
    assert 0 < ended.value("messages") < 3_000_000
    left = r"^lost: subscribers left before the end: slice 0 has 0, slice 1 has 0, expected 1; [\d,]+ messages had no"
    assert bool(re.search(left, ended.errors, re.MULTILINE)) == leaves


def test_a_truncated_source_is_reported(place: Place, tmp_path: Path, shared_data: Path) -> None:
    cut = tmp_path / "cut.pcap.gz"
    cut.write_bytes((shared_data / "iex" / "goiex_DEEP10.pcap.gz").read_bytes()[:200_000])
    ended = invoke("publish", f"iex:{cut}", "--feed", place.path, "--wait-for", "0")
    assert ended.status == Status.LOST, ended.errors
    assert re.search(r"^lost: the source is incomplete: ", ended.errors, re.MULTILINE)


def test_messages_that_a_capture_lacks_are_published_as_gaps_and_status_4(place: Place, tmp_path: Path) -> None:
    source = capture(tmp_path / "20260105.pcap", 1, 2, 3, 10, 11)
    ended, subscriber, received = publish(place, source)
    assert ended.status == Status.LOST, ended.errors
    assert "6 messages missing in the source, published as gaps" in " ".join(ended.errors.split())
    assert (len(received), subscriber.statistics().received.gaps) == (5, 6)


def test_a_capture_of_a_session_from_its_middle_is_whole(place: Place, tmp_path: Path) -> None:
    ended, subscriber, _ = publish(place, capture(tmp_path / "20260105.pcap", 100, 101))
    assert ended.status == 0, ended.errors
    assert "messages sent before the first one of the input: 99" in " ".join(ended.errors.split())
    assert subscriber.statistics().received.gaps == 99  # its books lack messages sent before


def test_several_sources_are_published_in_the_order_of_their_first_messages(place: Place, tmp_path: Path) -> None:
    sources = [capture(tmp_path / "20260106.pcap", 4, 5, 6, 7, 8), capture(tmp_path / "20260105.pcap", 1, 2, 3)]
    ended, _, received = publish(place, *sources, "--json")
    assert ended.status == 0, ended.errors
    found = json.loads(ended.out)
    assert (found["sources"], found["missing"], found["statistics"]["messages"]) == (sources, 0, 8)
    assert (len(received), received) == (8, sorted(received))


def test_sources_of_different_schemas_are_refused(place: Place, shared_data: Path) -> None:
    iex = f"iex:{shared_data}/iex/goiex_DEEP10.pcap.gz"
    ended = invoke("publish", "synthetic:10", iex, "--feed", place.path)
    assert_one_line(ended, f"source '{re.escape(iex)}' has schema '.*', but 'synthetic:10' has 'itch50': publish them")


def test_topics_follow_the_feeds_template() -> None:
    feed = msgspec.structs.replace(LOCAL, topic="x.{type}.{symbol}")
    (chunk,) = open_with_options("synthetic:10", None, feed).chunks()
    assert all(topic.startswith(b"x.") for topic in chunk.topics)


def test_unwanted_messages_are_reported_next_to_sent_ones(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    source = open_with_options("synthetic:2000", [], place.feed)
    feed = feed_for(place.feed, source, "synthetic:2000")
    first = next(
        b"%c%c" % (a, b) for a in range(65, 91) for b in range(65, 91) if feed.slice_of(b"%c%c.t" % (a, b)) == 0
    )
    subscriber = Subscriber(feed)
    subscriber.on(first + b".")(lambda _: None)
    with SourcePublisher(feed) as publisher:
        subscriber.start(timeout=200)
        source.publish(publisher)
        publisher.flush()
        print_summary([source], publisher, 1.0)
        done = publisher.statistics()
        warn_of_unwanted(done)
    subscriber.run(until_end=True)
    assert done.messages > 0
    assert done.unwanted > 0
    assert done.messages + done.unwanted == 2_000
    said = f"{done.messages:,} messages were sent; {done.unwanted:,} were not: they had no subscriber"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("second", "missing", "number", "status"),
    [
        (5, 3, signal.SIGINT, Status.LOST),
        pytest.param(2, 0, signal.SIGTERM, 143, marks=pytest.mark.long),
    ],
)
def test_live_source_is_published_until_a_signal(
    place: Place, second: int, missing: int, number: signal.Signals, status: int
) -> None:
    (port,) = _free_ports(1)
    subscriber = Subscriber(msgspec.structs.replace(place.feed, schema="itch50"))
    received: list[int] = []
    subscriber.on(b"")(lambda message: received.append(message.ts_event))
    words = ["publish", f"moldudp64://127.0.0.1:{port}?hold=0.05&stale=60", "--option", "date=2019-12-30"]
    with (
        beside(lambda: subscriber.run(until_end=True, timeout=300)),
        Command(*words, "--feed", place.path, "--json") as publisher,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as venue,
    ):

        def is_received() -> bool:
            for first in (1, second)[: 1 + len(received)]:  # the first datagram heard begins the session
                venue.sendto(mold(first, [itch("A", ns=first)]), ("127.0.0.1", port))
            return len(received) >= 2

        wait_until(is_received, 300)
        ended = publisher.interrupt(number)
    assert ended.status == status, ended.errors
    assert ("lost: 3 messages missing in the source, published as gaps" in ended.errors) == (missing > 0)
    live = json.loads(ended.out)["live"]
    assert (live["messages"], live["gaps"], live["missing"]) == (2, int(missing > 0), missing)
    assert (len(received), subscriber.statistics().received.gaps) == (2, missing)


def test_a_twin_publishes_one_line_in_the_given_epoch_and_ends_if_its_source_lacks_messages(tmp_path: Path) -> None:
    feed = write_feed(msgspec.structs.replace(Feed.local("twins", lines=2), schema="itch50"), tmp_path / "feed.toml")
    words = ["--feed", feed, "--line", "b", "--epoch", "2026-01-05", "--wait-for", 0, "--option", "date=2019-12-30"]
    ended = invoke("publish", capture(tmp_path / "day.pcap", 1, 2, 3), *words)
    assert (ended.status, ended.value("unwanted")) == (0, 3), ended.errors
    ended = invoke("publish", capture(tmp_path / "day.pcap", 1, 2, 4), *words)
    assert_one_line(ended, "line B: the source lacks 1 messages; expected none")
