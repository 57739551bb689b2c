"""A replay to a venue server: each message once, in the venue's order, of one schema and day."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from blackbox import Recording
from blackbox.errors import ConfigError
from blackbox.replay.controls import Controls
from blackbox.replay.play.to_venue import VenuePlayer, order_for_venue
from blackbox.replay.play.venue_server import VenueMessages, VenueServer, check_schemas
from blackbox.replay.replay import Replay
from tests.journals import Day, Put, Row, feed_of


class Collected(VenueServer):
    """Keeps topics, times and payloads."""

    schemas: ClassVar[frozenset[str]] = frozenset(("raw",))

    def __init__(self) -> None:
        self.got: list[tuple[bytes, int, bytes]] = []
        self.jumps: list[bool] = []

    def send(self, messages: VenueMessages) -> None:
        topics = [messages.topics[number] for number in messages.topic_index.tolist()]
        self.got += zip(topics, messages.ts_event.tolist(), messages.payloads(), strict=True)

    def jump(self, *, is_back: bool) -> None:
        self.jumps.append(is_back)


def played(recordings: list[Recording], **settings: Any) -> Collected:
    server = Collected()
    Replay(recordings, order=order_for_venue(recordings), **settings).run(VenuePlayer(server, recordings))
    return server


def test_slices_are_merged_by_the_venues_times(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of(slices=2))
    for slice_id in (0, 1):
        for place in range(3):
            rows = tuple(
                Row(b"%d.%d" % (slice_id, place), b"%d" % (10 * place + at), 2 * (10 * place + at) + slice_id + 1)
                for at in range(10)
            )
            day.put(slice_id, Put(rows, 10 * place))
    server = played([Recording.open(day.path)], loops=2)
    expected = [
        (b"%d.%d" % (slice_id, at // 10), 2 * at + slice_id + 1, b"%d" % at) for at in range(30) for slice_id in (0, 1)
    ]
    assert server.got == expected * 2
    assert server.jumps == [True]


def test_one_slice_is_played_as_published_even_if_times_go_back(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    times = [5, 3, 9, 1, 7, 7, 2]
    day.put(0, *(Put((Row(b"A", b"%d" % at, at),), place, ts_out=place + 1) for place, at in enumerate(times)))
    assert [int(payload) for _, _, payload in played([Recording.open(day.path)]).got] == times


def test_a_message_of_several_topics_is_sent_once_and_one_without_payload_never(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    rows = (Row(b"A", b"both", 1), Row(b"B", b"both", 1), Row(b"A", b"a", 2), Row(b"B", None, 3), Row(b"B", b"b", 4))
    day.put(0, Put(rows, 0, same=(0, 1, 0, 0, 0)))
    recordings = [Recording.open(day.path)]
    assert played(recordings).got == [(b"A", 1, b"both"), (b"A", 2, b"a"), (b"B", 4, b"b")]
    assert played(recordings, prefix=b"B").got == [(b"B", 1, b"both"), (b"B", 4, b"b")]


def test_a_step_does_not_cut_a_message_of_several_topics(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    rows = (Row(b"A", b"both", 1), Row(b"B", b"both", 1), Row(b"A", b"a", 2))
    day.put(0, Put(rows, 0, same=(0, 1, 0)))
    recordings, controls, server = [Recording.open(day.path)], Controls(), Collected()
    sent: list[int] = []

    def step(messages: VenueMessages) -> None:
        Collected.send(server, messages)
        sent.append(len(server.got))
        controls.step()

    server.send = step  # type: ignore[method-assign]
    controls.step()
    Replay(recordings, order="sent", controls=controls).run(VenuePlayer(server, recordings))
    assert (server.got, sent) == ([(b"A", 1, b"both"), (b"A", 2, b"a")], [1, 2])


def test_days_and_schemas_that_cannot_be_served_are_one_error(tmp_path: Path) -> None:
    days = [Day(tmp_path / date, feed_of(), date=date) for date in ("2026-11-20", "2026-11-21")]
    for day in days:
        day.put(0, Put((Row(b"A", b"a", 1),)))
    recordings = [Recording.open(day.path) for day in days]
    with pytest.raises(ConfigError, match="of the days 2026-11-20 to 2026-11-21 were to be served, expected one"):
        order_for_venue(recordings)
    other = Recording.open(Day(tmp_path / "itch", msgspec.structs.replace(feed_of(), schema="itch50")).path)
    with pytest.raises(ConfigError, match="has payloads of schema 'itch50', but x:// serves raw"):
        check_schemas(Collected, "x", [other])


def test_a_seek_continues_from_its_time(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put(tuple(Row(b"A", b"%d" % at, at) for at in range(1, 10)), 0))
    controls = Controls()
    controls.seek(7)
    server = played([Recording.open(day.path)], controls=controls)
    assert [int(payload) for _, _, payload in server.got] == [7, 8, 9]
