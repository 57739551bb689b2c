"""The state of an installation as rows: rates, percentiles, losses, the tree, and consumers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from blackbox.cli.watch.tables import PEERS, PROCESSES, TOPICS, details
from blackbox.services.monitor.heartbeats import LineState
from blackbox.services.monitor.serve.status import ProcessStatus
from blackbox.services.monitor.watch.installation import Installation
from blackbox.services.monitor.watch.snapshot import ConsumerPosition, Line
from blackbox.services.monitor.watch.view import TopicRow, View, view_of
from tests.monitor.stories import START_NS, S, Story, status


def receiver(blocks: int, gaps: int, p99_ns: int, *, delivered: int = 1, **more: object) -> dict[str, object]:
    """Return statistics of a receiver of one slice."""
    received = {"messages": 10 * blocks, "blocks": blocks, "body_bytes": 1_000 * blocks, "gaps": gaps, "repaired": 2}
    lag = {"last_ns": p99_ns // 2, "p50_ns": p99_ns // 4, "p99_ns": p99_ns, "age_p50_ns": 7, "age_p99_ns": 2 * p99_ns}
    drops = {"dropped": 3, "conflated": 4, "discarded": 0}
    one = {"slice_id": 0, "received": received, "lag": lag, "delivery": {"delivered": delivered, **drops}}
    return {**one, "slices": [one], **more}


def shown() -> tuple[Story, View]:
    story = Story()
    story.lines[0].messages_per_second, story.lines[0].messages = 500.0, 9_000
    story.lines[1].state = LineState.SILENT
    for second in range(4):
        parts = {
            "http://a:1": [status("publisher", {"messages": 500 * second, "body_bytes": 40_000 * second, "peers": []})],
            "http://b:1": [relay(("london", "desk"), second)],
            "http://c:1": [relay(("london",), 0), status("archive", {"answered": second})],
            "http://d:1": [status("subscriber", receiver(second, 5 + second, 4_000_000), pid=8)],
            "http://e:1": [status("recorder", receiver(2 * second, 1, 9_000_000, lost=6), pid=9)],
        }
        for url, statuses in parts.items():
            story.answer(*statuses, url=url)
        story.look()
    story.fail("refused", "Connection refused", url="http://e:1")
    story.look()
    return story, view_of(story.installation, story.conditions.now)


def relay(path: tuple[str, ...], gaps: int) -> ProcessStatus:
    peers = [
        {"slice_id": 0, "line": "A", "address": f"10.0.0.{place}:5", "key": "", "subscriptions": 1, "behind_s": place}
        for place in range(3)
    ]
    line = {"slice_id": 0, "line": "A", "source": "tcp://a:1", "path": list(path), "gaps": gaps}
    return status("relay", {"messages": 7, "lines": [line], "peers": peers, "other_peers": 4}, host=path[-1])


def test_a_slice_has_its_rate_and_the_worst_figures_of_its_receivers() -> None:
    _, view = shown()
    (row,) = view.slices
    assert (row.feed, row.slice_id, row.lines) == ("quotes", 0, {"A": "alive", "B": "silent"})
    assert (row.messages, row.messages_per_second, row.bytes_per_second) == (9_000, 500.0, 2_000.0)
    assert (row.lag_p50_ns, row.lag_p99_ns, row.age_p99_ns) == (2_250_000, 9_000_000, 18_000_000)
    assert (row.lost, row.repaired, row.receivers) == (8 + 1, 4, 2)
    assert (view.messages_per_second, view.bytes_per_second, view.lost, view.repaired) == (500.0, 40_000.0, 9, 4)
    assert view.lag_p99_ns == 9_000_000


def test_a_recorder_has_no_lag_at_delivery() -> None:
    story = Story()
    for second in range(4):
        story.answer(status("recorder", receiver(second, 0, 0, delivered=0)), url="http://e:1")
        story.look()
    view = view_of(story.installation, story.conditions.now)
    assert (view.lag_p99_ns, view.slices[0].lag_p50_ns, view.slices[0].age_p99_ns) == (None, None, None)
    assert [row.lag_p99_ns for row in view.processes] == [None]


def test_processes_are_a_tree_with_their_losses() -> None:
    _, view = shown()
    tree = [(row.depth, row.label, row.lost, row.dropped, row.state) for row in view.processes]
    assert tree == [
        (0, "publisher 7 desk", 0, 0, "ok"),
        (1, "relay london london", 0, 0, "warning"),
        (2, "relay desk desk", 3, 0, "error"),
        (1, "recorder 9 desk", 1 + 6, 7, "refused"),
        (1, "archive 7 desk", 0, 0, "ok"),
        (1, "subscriber 8 desk", 8, 7, "ok"),
    ]
    rates = [row.messages_per_second for row in view.processes]
    assert rates == [500.0, 0.0, 0.0, 20.0, 1.0, 10.0]
    assert [row.peers for row in view.processes[:3]] == [0, 7, 7]
    assert [(peer.address, peer.behind_s) for peer in view.peers[:3]] == [
        ("10.0.0.2:5", 2),
        ("10.0.0.2:5", 2),
        ("10.0.0.1:5", 1),
    ]


@pytest.mark.parametrize(
    ("counters", "rate", "lost"),
    [
        ({"added": 10, "known": 1, "missing": 2}, 10.0, 6),
        ({"clients": 1, "sent": 20}, 20.0, 0),
        ({"clients": 1, "put": 30}, 30.0, 0),
        ({"messages put": 40, "unwanted": 1, "told missing": 3}, 40.0, 9),
        ({"messages published": 50, "told missing": 4}, 50.0, 12),
        ({"of another kind": 1}, None, 0),
    ],
)
def test_each_kind_of_bridge_has_its_rate_and_its_losses(
    counters: dict[str, Any], rate: float | None, lost: int
) -> None:
    story = Story()
    for second in range(4):
        story.see(status("bridge", {name: second * count for name, count in counters.items()}))
    (row,) = view_of(story.installation, story.conditions.now).processes
    assert (row.messages_per_second, row.lost) == (rate, lost)


def test_a_view_is_json_and_back() -> None:
    _, view = shown()
    assert msgspec.json.decode(msgspec.json.encode(view), type=View) == view
    assert view_of(Installation(), []).slices == ()


def test_consumers_are_behind_in_messages_and_in_time() -> None:
    story = Story()
    for second in range(20):
        line = story.lines[0]
        line.epoch, line.messages, line.last_heard_ns = 3, 100 * second, START_NS + story.at_ns
        story.look()
    positions = [
        ConsumerPosition("current", "quotes", 0, 3, 1_900, START_NS),
        ConsumerPosition("late", "quotes", 0, 3, 1_450, START_NS),
        ConsumerPosition("ancient", "quotes", 0, 3, 0, START_NS),
        ConsumerPosition("yesterday", "quotes", 0, 2, 5, START_NS),
        ConsumerPosition("other feed", "orders", 0, 3, 5, START_NS),
    ]
    last = story.installation.now
    story.installation.take(last._replace(consumers=tuple(positions)))
    rows = {row.name: (row.behind_messages, row.behind_s) for row in view_of(story.installation, []).consumers}
    assert rows == {
        "current": (0, 0.0),
        "late": (450, 4.0),
        "ancient": (1_900, 18.0),
        "yesterday": (None, None),
        "other feed": (None, None),
    }
    assert last.now_ns - (START_NS + story.began_ns) == 19 * S
    assert all(isinstance(line, Line) for line in last.lines)


def test_texts_of_others_cannot_control_a_terminal() -> None:
    topic = TopicRow(feed="f", topic="A\x1b[2J", messages_per_second=1.0, share=1.0)
    assert TOPICS.columns[0].cell(topic) == "A?[2J"
    assert ("topic", "A?[2J") in details(topic)
    story = Story()
    story.answer(status("publisher", {"peers": [{"address": "\x1b]0;x\x07"}]}, host="a\r"), url="http://a:1")
    story.look()
    view = view_of(story.installation, story.conditions.now)
    assert [PROCESSES.columns[0].cell(row) for row in view.processes] == ["publisher 7 a?"]
    assert [PEERS.columns[2].cell(row) for row in view.peers] == ["?]0;x?"]
