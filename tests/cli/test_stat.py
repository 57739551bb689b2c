"""`blackbox stat`: figures from heartbeats, and its end."""

from __future__ import annotations

import os
import re

import msgspec

from blackbox import Publisher
from blackbox.cli.ui.status import Status
from tests.cli.commands import Command, Place, assert_one_line, invoke


def test_stat_reports_the_figures_of_heartbeats(place: Place) -> None:
    with Publisher(place.feed) as publisher:
        publisher.publish_many((b"A.t", b"B.t"), [0, 1, 0], b"abc", offsets=[0, 1, 2, 3])
        ended = invoke("stat", "--feed", place.path, "--once", "--json", "--timeout", "30")
        epoch = publisher.epoch
    assert ended.status == 0, ended.errors
    lines = msgspec.json.decode(ended.out)
    assert [(line["slice_id"], line["line"], line["epoch"]) for line in lines] == [(0, "A", epoch), (1, "A", epoch)]
    assert sum(line["messages"] for line in lines) == 3
    assert all(line["state"] == "alive" and line["messages_per_second"] == 0.0 for line in lines)
    assert all(0 < line["heartbeat_lag_ns"] < 10**9 and line["last_heard_ns"] > 0 for line in lines)


def test_stat_is_not_a_subscriber_and_prints_a_table(place: Place) -> None:
    with Publisher(place.feed) as publisher:
        ended = invoke("stat", "--feed", place.path, "--once", "--timeout", "30")
        assert publisher.statistics().subscribers == 0
    assert ended.status == 0, ended.errors
    assert re.search(r"│ 0 +│ A +│ tcp://127.0.0.1:\d+ +│ alive +│", ended.out)


def test_stat_without_a_publisher_is_an_error(place: Place) -> None:
    ended = invoke("stat", "--feed", place.path, "--once", "--timeout", "0.2")
    assert ended.status == Status.ERROR
    assert_one_line(ended, r"feed 'cli': no publisher was heard in 0\.2 s at tcp://")


def test_stat_that_runs_on_without_a_publisher_ends(place: Place, terminal: tuple[int, int]) -> None:
    reader, writer = terminal
    for options in ([], ["--json"]):
        ended = invoke("stat", "--feed", place.path, "--timeout", "0.2", *options)
        assert ended.status == Status.ERROR
        assert_one_line(ended, r"feed 'cli': no publisher was heard in 0\.2 s at tcp://")
    with Command("stat", "--feed", place.path, "--timeout", "0.2", stdout=writer) as stat:
        assert stat.end().status == Status.ERROR
    assert "tcp://" in os.read(reader, 65_536).decode(errors="replace")


def test_stat_ends_when_the_publisher_closes(place: Place) -> None:
    with (
        Publisher(place.feed) as publisher,
        Command("stat", "--feed", place.path, "--json", "--timeout", "30") as stat,
    ):
        stat.read_out('"state":"alive"', times=len(place.feed.slices))
        publisher.close()
        ended = stat.end()
    assert ended.status == 0, ended.errors
    assert "feed 'cli' (2 slices): the publisher has closed" in ended.errors
    assert all(line["state"] == "closed" for line in msgspec.json.decode(ended.out.splitlines()[-1]))


def test_stat_ends_when_the_publisher_was_killed(place: Place) -> None:
    with Command("publish", "synthetic:1000", "--feed", place.path) as publisher:
        publisher.read_error("waiting for 1 subscriber")
        with Command("stat", "--feed", place.path, "--json", "--timeout", "2") as stat:
            stat.read_out('"state":"alive"')
            publisher.process.kill()
            ended = stat.end()
    assert ended.status == Status.ERROR
    assert_one_line(ended, r"feed 'cli': no heartbeat of the publisher for 2 s at tcp://")
