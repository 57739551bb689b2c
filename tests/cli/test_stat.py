"""`blackbox stat`: figures from heartbeats, and its end."""

from __future__ import annotations

import re

import msgspec
import pytest

from blackbox import Publisher
from blackbox.block.form.format import HEARTBEAT_KEY
from blackbox.cli.ui.status import Status
from blackbox.testing import RawPublisher, wait_until
from tests.cli.commands import Command, Ended, Place, Screen, assert_one_line, beside, invoke


def test_figures_come_from_heartbeats_without_a_subscription(place: Place) -> None:
    def asked(*words: str) -> Ended:
        """Ask until no line is silent: on a busy machine heartbeats may be late."""
        found: list[Ended] = []

        def is_in_time() -> bool:
            found[:] = [invoke("stat", "--feed", place.path, "--once", "--timeout", "60", *words)]
            return "silent" not in found[0].out

        wait_until(is_in_time, 200, "no silent line")
        return found[0]

    with Publisher(place.feed) as publisher:
        publisher.publish_many((b"A.t", b"B.t"), [0, 1, 0], b"abc", offsets=[0, 1, 2, 3])
        ended, table = asked("--json"), asked()
        assert publisher.statistics().subscribers == 0
        epoch = publisher.epoch
    assert ended.status == 0, ended.errors
    lines = msgspec.json.decode(ended.out)
    assert [(line["slice_id"], line["line"], line["epoch"]) for line in lines] == [(0, "A", epoch), (1, "A", epoch)]
    assert sum(line["messages"] for line in lines) == 3
    assert all(line["state"] == "alive" and line["messages_per_second"] == 0.0 for line in lines)
    assert all(0 < line["heartbeat_lag_ns"] < 60 * 10**9 and line["last_heard_ns"] > 0 for line in lines)
    assert table.status == 0, table.errors
    assert re.search(r"│ 0 +│ A +│ tcp://127.0.0.1:\d+ +│ alive +│", table.out)


def test_without_a_publisher_it_ends_on_a_terminal_too(place: Place, screen: Screen) -> None:
    with Command("stat", "--feed", place.path, "--timeout", "0.2", stdout=screen.program) as stat:
        assert stat.end().status == Status.ERROR
        screen.wait("tcp://")


@pytest.mark.parametrize("has_closed", [True, False])
def test_it_ends_when_the_publisher_closes_or_falls_silent(place: Place, has_closed: bool) -> None:
    with RawPublisher(place.feed) as publisher:

        def beat() -> None:
            for slice_id in range(2):
                wait_until(lambda at=slice_id: HEARTBEAT_KEY in publisher.subscriptions(at))  # type: ignore[misc]
            publisher.heartbeat(end=has_closed)

        with beside(beat):
            ended = invoke("stat", "--feed", place.path, "--json", "--timeout", 30 if has_closed else 10)
    last = msgspec.json.decode(ended.out.splitlines()[-1])
    if has_closed:
        assert ended.status == 0, ended.errors
        assert "feed 'cli' (2 slices): the publisher has closed" in ended.errors
        assert all(line["state"] == "closed" for line in last)
    else:
        assert_one_line(ended, r"feed 'cli': no heartbeat of the publisher for 10 s at tcp://")
        assert all(line["epoch"] == 1 for line in last)
