"""Block tables of a replay: time ranges, due messages and damage, compared with plain Python."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from blackbox import Recording
from blackbox.archive.reader import RUN_RECORDS
from blackbox.archive.recordings import runs_of
from blackbox.block.validate import FAULT_TEXT, Fault
from blackbox.feed.symbol_choice import ALL_TOPICS
from blackbox.replay.block_table import BEGINNING, END, BlockTable, Selection, block_tables
from blackbox.replay.feeds import ReplayedFeeds
from tests.damaged import damage_body
from tests.replay.audience import few, simple_day

OFFSETS = st.lists(st.integers(0, 9), min_size=1, max_size=30)


def table_of(path: Path | str, by: Any = "ts_event", start: int = BEGINNING, stop: int = END) -> BlockTable:
    """Return the only table of a small recording, measured."""
    recordings = [Recording.open(path)]
    runs = runs_of(recordings, bodies="unpacked")
    (table,) = block_tables(
        runs, Selection(0, ALL_TOPICS, by, start, stop), ReplayedFeeds(recordings), is_measured=True
    )
    return table


def messages_of(table: BlockTable, rows: int) -> list[int]:
    """Return the numbers of the messages that a table plays, for a recording with `rows` messages per block."""
    fields = (table.rows[name].tolist() for name in ("place", "first_row", "stop_row"))
    return [place * rows + row for place, first, stop in zip(*fields, strict=True) for row in range(first, stop)]


@few
@given(OFFSETS, st.integers(1, 6), st.integers(-1, 10), st.integers(-1, 10))
def test_a_time_range_selects_exactly_its_messages(times: list[int], rows: int, start: int, stop: int) -> None:
    expected = [number for number, time in enumerate(times) if start <= time < stop]
    with TemporaryDirectory() as path:
        simple_day(Path(path), times, rows)
        recordings = [Recording.open(path)]
        runs = runs_of(recordings, bodies="unpacked")
        selection = Selection(0, ALL_TOPICS, "ts_event", start, stop)
        tables = list(block_tables(runs, selection, ReplayedFeeds(recordings), is_measured=False))
        assert [number for table in tables for number in messages_of(table, rows)] == expected
        assert sum(int(table.rows["count"].sum()) for table in tables) == len(expected)


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


def test_damage_is_reported_for_the_whole_record(tmp_path: Path) -> None:
    day = simple_day(tmp_path, range(12), rows=3)
    damage_body(day.segments[0], 2)
    table = table_of(tmp_path, start=3)
    (damage,) = table.damages(0, len(table.rows))
    assert (damage.messages, damage.what) == (3, FAULT_TEXT[Fault.BODY_CHECKSUM])
    assert [damage] == Recording.open(tmp_path).verify()
    assert messages_of(table, 3) == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert table.rows["count"].tolist() == [3, 0, 3]


def test_ranges_of_sending_times_select_whole_blocks(tmp_path: Path) -> None:
    day = simple_day(tmp_path, [0] * 12, rows=3)
    sent = [message.ts_out for message in day.told()][::3]
    table = table_of(tmp_path, "ts_out", start=sent[1], stop=sent[3])
    assert messages_of(table, 3) == [3, 4, 5, 6, 7, 8]
    assert table.rows["next_ns"].tolist() == sent[1:3]


def test_a_table_releases_earlier_blocks_which_remain_readable(tmp_path: Path) -> None:
    simple_day(tmp_path, range(2 * RUN_RECORDS + 1))
    recordings = [Recording.open(tmp_path)]
    runs = runs_of(recordings, bodies="unpacked", kept=9)
    selection = Selection(0, ALL_TOPICS, "ts_event")
    tables = list(block_tables(runs, selection, ReplayedFeeds(recordings), is_measured=False))
    assert [table.played for table in tables] == [(), *(tuple(table.run.ranges()) for table in tables[:-1])]
    for table in tables:
        table.release_played()
    for table in tables:
        table.measure(0, len(table.rows))
    assert [int(table.rows["count"].sum()) for table in tables] == [RUN_RECORDS, RUN_RECORDS, 1]
