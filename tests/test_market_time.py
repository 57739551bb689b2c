"""How much market time a replay says went by."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox import Recording, Replay
from tests.journals import Day, Put, Row, feed_of

SECOND = 10**9
FIRST = 1_700_000_000 * SECOND


class Nobody:
    """Takes blocks."""

    reads_ahead = False
    looks = False

    def play(self, *_: object) -> None:
        pass

    def jump(self, *, is_back: bool) -> None:
        pass


@pytest.mark.parametrize("speed", [None, 1e6])
@pytest.mark.parametrize("rows_each", [1, 4, 8])
def test_market_time_of_messages_that_come_one_by_one(tmp_path: Path, speed: float | None, rows_each: int) -> None:
    """What is before the first message did not go by."""
    rows = [Row(b"AAPL.trade", b"189.98", FIRST + number * SECOND) for number in range(8)]
    puts = [
        Put(tuple(rows[first : first + rows_each]), sequence=first, ts_out=FIRST + first)
        for first in range(0, len(rows), rows_each)
    ]
    Day(tmp_path, feed_of()).put(0, *puts)
    replay = Replay(Recording.open(tmp_path), speed=speed, start=FIRST - 60 * SECOND)
    played = replay.run(Nobody())
    assert (played.messages, played.market_seconds) == (8, 7.0)
