"""The example in `configs/production`: real processes under supervisord, and each part killed in turn."""

from __future__ import annotations

import configparser
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
import typer

from blackbox import Batch, Feed, HubClient, SlowPolicy, Subscriber
from blackbox.cli.program import app
from blackbox.services.hub.settings import HubSettings
from blackbox.testing import wait_until
from tests.deploy.installation import EXAMPLE, METRICS, PATIENCE_S, VENUE, Installation, Venue, number_of


def programs() -> dict[str, str]:
    """Return the command of each program of the example."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(EXAMPLE / "supervisord.conf")
    sections = [each for each in parser.sections() if each.startswith("program:")]
    return {each.removeprefix("program:"): parser[each]["command"] for each in sections}


def test_the_commands_of_the_example_are_valid() -> None:
    found = programs()
    assert list(found) == [*METRICS, "console"]
    program = typer.main.get_command(app)
    for command in found.values():
        words = shlex.split(command)
        if words[0] == "sh":
            words = shlex.split(words[-1].partition("exec ")[2])
        name, *arguments = words[1:]
        program.commands[name].make_context(name, arguments)  # type: ignore[attr-defined]


def test_the_files_of_the_example_fit_together() -> None:
    feed, desk = Feed.load(EXAMPLE / "feed.toml"), Feed.load(EXAMPLE / "desk.toml")
    first, second = Feed.load(EXAMPLE / "relay-1.toml"), Feed.load(EXAMPLE / "relay-2.toml")
    assert {each.name for each in (feed, desk, first, second)} == {"itch"}
    for number, part in enumerate(desk.slices):
        assert part.endpoints == (first.slices[number].endpoints[0], second.slices[number].endpoints[1])
    assert feed.archives == desk.archives
    (order,) = re.findall(r"^BLACKBOX_FEED_ARCHIVES=(.*)$", (EXAMPLE / "recorder-2.env").read_text(), re.MULTILINE)
    assert tuple(order.split(",")) == feed.archives[::-1]
    pairs = [HubSettings.load(EXAMPLE / f"hub-{number}.toml").pair for number in (1, 2)]
    assert {each.link for each in pairs if each} == {each.peer for each in pairs if each}
    assert feed.monitor is not None
    assert [each.rpartition(":")[2] for each in feed.monitor.watch] == list(METRICS.values())
    for name, command in programs().items():
        assert re.findall(r"--metrics 127\.0\.0\.1:(\d+)", command) == [
            METRICS[each] for each in METRICS if each == name
        ]


def test_the_twin_of_the_page_has_the_options_of_the_example() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "production.md").read_text()
    (shown,) = re.findall(r"^    blackbox (publish .*)$", page, re.MULTILINE)
    _, url, *options = shlex.split(shown)
    assert "session=" in url
    example = shlex.split(shlex.split(programs()["twin-a"])[-1].partition("exec ")[2])
    own = example[3 : example.index("--metrics")]
    day = options[options.index("--epoch") + 1]
    assert sorted(options) == sorted(word.replace("$DAY", day) for word in own)


RECORDERS: Final = ("recorder-1", "recorder-2")


class Desk:
    """A subscriber behind the relays: slice, sequence and payload of what it got."""

    def __init__(self, feed: Feed) -> None:
        self.got: list[tuple[int, int, bytes]] = []
        self._lock = threading.Lock()
        self.subscriber = Subscriber(feed, on_gap="repair", slow=SlowPolicy(max_lag=3_600))
        self.subscriber.on_batch(b"")(self._take)

    def _take(self, batch: Batch) -> None:
        with self._lock:
            self.got += [(each.slice_id, each.sequence, bytes(each.payload or b"")) for each in batch]

    def check(self, sent: list[bytes]) -> None:
        """Assert that it got each message once, in the venue's order within each slice."""
        received = self.subscriber.statistics().received
        assert (received.gaps, received.malformed, received.stale) == (0, 0, 0)
        for slice_id in (0, 1):
            mine = [each for each in self.got if each[0] == slice_id]
            assert [sequence for _, sequence, _ in mine] == list(range(len(mine)))
            assert all(number_of(one) < number_of(two) for (*_, one), (*_, two) in pairwise(mine))
        assert sorted((payload for *_, payload in self.got), key=number_of) == sent


@contextmanager
def running(tmp_path: Path) -> Iterator[tuple[Installation, Venue, Desk]]:
    """Run the example and its venue with a subscriber, until each part does its work."""
    site = Installation(tmp_path)
    desk = Desk(site.load("desk.toml"))
    with Venue(site.ports[VENUE]) as venue, site.run():
        desk.subscriber.start(timeout=PATIENCE_S)
        for part in METRICS:
            site.wait_ready(part)
        site.wait_carries("relay-1", "A")
        site.wait_carries("relay-2", "B")
        yield site, venue, desk
        for recorder in RECORDERS:
            site.wait_recorded(recorder, len(venue.sent))
        desk.subscriber.stop()


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_no_message_is_lost_while_each_part_is_killed_in_turn(tmp_path: Path) -> None:
    with running(tmp_path) as (site, venue, desk):

        def go_on() -> None:
            venue.send(2_000)
            wait_until(lambda: len(desk.got) >= len(venue.sent), PATIENCE_S, "the desk has all messages")

        def wait_both_lines(recorder: str) -> None:
            """Send until a recorder has received more than was sent: messages come to it on both lines."""
            site.wait_recorded(recorder, len(venue.sent))
            received, sent = site.received(recorder), len(venue.sent)
            while site.received(recorder) - received <= len(venue.sent) - sent:
                go_on()

        go_on()
        for twin, relay, line in (("twin-a", "relay-1", "A"), ("twin-b", "relay-2", "B")):
            before = site.reconnects(relay)
            with site.killed(twin):
                go_on()
            site.wait_connected_again(relay, before)
            site.wait_carries(relay, line)
            for recorder in RECORDERS:
                wait_both_lines(recorder)
        with site.killed("relay-1"):
            go_on()
        site.wait_carries("relay-1", "A")
        with site.killed("recorder-1"):
            go_on()
        go_on()
        check_hubs(site, tmp_path)
        for part in METRICS:
            code, text = site.get(part, "/metrics")
            assert (code, "\nblackbox_ready{" in text) == (200, True)
    desk.check(venue.sent)
    assert site.recorded("recorder-1") == site.recorded("recorder-2") == venue.sent


def check_hubs(site: Installation, tmp_path: Path) -> None:
    """Kill the hub that leads between puts: each value is stored once, in order."""
    feed = site.load("orders.toml")
    values = [b"%d" % number for number in range(300)]
    with HubClient(feed, "writer") as writer, HubClient(feed, "reader", tmp_path / "reader") as reader:
        reader.subscribe(b"", PATIENCE_S)
        for value in values[:100]:
            writer.put(b"limit", value, timeout=PATIENCE_S)
        (active,) = (name for name in ("hub-1", "hub-2") if site.status(name)[0]["statistics"]["life"] == "active")
        with site.killed(active):
            for value in values[100:200]:
                writer.put(b"limit", value, timeout=PATIENCE_S)
        for value in values[200:]:
            writer.put(b"limit", value, timeout=PATIENCE_S)
        assert [reader.get(b"", timeout=PATIENCE_S).payload for _ in values] == values
