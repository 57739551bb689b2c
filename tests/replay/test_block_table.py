"""Split blocks of a block table, compared with plain Python."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from blackbox import Recording
from blackbox.archive.recordings import runs_of
from blackbox.feed.symbol_choice import ALL_TOPICS
from blackbox.replay.slice_numbering import ReplayedFeeds
from blackbox.replay.tables.block_table import BlockTable, Selection, block_tables
from tests.replay.audience import few, simple_day

OFFSETS = st.lists(st.integers(0, 9), min_size=1, max_size=30)


def table_of(path: str) -> BlockTable:
    """Return the only table of a small recording, measured."""
    recordings = [Recording.open(path)]
    runs = runs_of(recordings, bodies="unpacked")
    selection = Selection(0, ALL_TOPICS, "ts_event")
    (table,) = block_tables(runs, selection, ReplayedFeeds(recordings), is_measured=True)
    return table


def messages_of(table: BlockTable, rows: int) -> list[int]:
    """Return the numbers of the messages that a table plays, for a recording with `rows` messages per block."""
    fields = (table.rows[name].tolist() for name in ("place", "first_row", "stop_row"))
    return [place * rows + row for place, first, stop in zip(*fields, strict=True) for row in range(first, stop)]


@few
@given(OFFSETS, st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=6))
def test_split_returns_the_due_messages(times: list[int], grants: list[tuple[int, int]]) -> None:
    with TemporaryDirectory() as path:
        simple_day(Path(path), times, len(times))
        table = table_of(path)
        first = 0
        for until, messages in grants:
            stop = first
            while stop < len(times) and stop - first < messages and times[stop] <= until:
                stop += 1
            due = table.split(0, until, messages)
            assert messages_of(due, len(times)) == list(range(first, stop))
            assert due.rows["count"].tolist() == [stop - first]
            first = stop
            assert messages_of(table, len(times)) == list(range(first, len(times)))
            left = times[first:]
            assert table.rows["count"].tolist() == [len(left)]
            if left:
                assert [table.rows[name][0] for name in ("next_ns", "low_ns", "high_ns")] == [
                    left[0],
                    min(left),
                    max(left),
                ]
