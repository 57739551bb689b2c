"""Counts and rates of a recording."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from blackbox import Recording
from tests.archive.written_days import many
from tests.journals import Day, Put, Row, feed_of


def test_a_summary_has_the_counts_of_a_recording(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    rows = (Row(b"A", b"1", 50), Row(b"A", b"2", 30))
    puts = [Put(rows, 0, 5, 6, epoch=9, first_row=1), Put(rows, 2, 7, 8, epoch=9), Put(rows, 0, 9, 9, epoch=3, codec=2)]
    segment = day.put(0, *puts[:2])
    day.put(0, puts[2], index=False)
    summary = Recording.open(tmp_path).summary()
    body = len(puts[0].block(0)[1])
    assert (summary.messages, summary.blocks, summary.body_bytes) == (5, 3, 3 * body)
    assert (summary.first_ts_event, summary.last_ts_event) == (30, 50)
    assert (summary.first_ts_out, summary.last_ts_out) == (5, 9)
    assert (summary.epochs, summary.torn_bytes, summary.damage) == ((9, 3), 0, ())
    first, silent = summary.slices
    assert (silent.slice_id, silent.messages, silent.segments) == (1, 0, 0)
    assert (first.slice_id, first.messages, first.segments, first.epochs) == (0, 5, 2, (9, 3))
    assert first.file_bytes == segment.path.stat().st_size + day.segments[1].path.stat().st_size


def test_the_rate_is_a_histogram_of_sending_times(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    day.put(0, *many(700))
    day.put(1, *many(300, 1))
    rate = Recording.open(tmp_path).rate(13)
    times = [message.ts_out for message in day.told()]
    assert rate.times[0] <= min(times) <= max(times) < rate.times[-1]
    assert rate.counts.tolist() == numpy.histogram(times, rate.times)[0].tolist()
    with pytest.raises(ValueError, match="bins were 0"):
        Recording.open(tmp_path).rate(0)
