"""A reader adds data recorded since, but no incomplete record."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox import Recording
from tests.archive.written_days import many, told
from tests.journals import Day, feed_of


@pytest.mark.parametrize("indexed", [True, False])
def test_a_reader_adds_data_recorded_since(tmp_path: Path, indexed: bool) -> None:
    day = Day(tmp_path, feed_of(2, key_bytes=2))
    recording = Recording.open(tmp_path)
    assert list(recording.batches()) == []
    segments = [day.segment(0), day.segment(1)]
    puts = [many(1_500), many(1_500, 1)]
    for part in range(15):
        running = recording.batches()
        started = next(running, None) is not None
        for slice_id in range(2):
            if part == 8:
                segments[slice_id].write_index()
                segments[slice_id] = day.segment(slice_id)
            segment = segments[slice_id]
            segment.append(*puts[slice_id][100 * part : 100 * (part + 1)])
            if indexed and part % 3:
                segment.write_index(len(segment.entries()) - part % 2)
        recording.refresh()
        assert told(recording.batches()) == day.told()
        assert len(told(running)) + started == 200 * part
        for slice_id in range(2):
            found = [len(segment.entries) for segment in dict(recording._segments_of())[slice_id]]
            assert found == [len(segment.entries()) for segment in day.segments if segment.slice_id == slice_id]
    assert recording.damage == recording.verify() == []


def test_a_segment_grows_while_the_next_one_is_ready(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(key_bytes=2))
    puts = many(30)
    first, second = day.segment(), day.segment()
    first.append(*puts[:10])
    recording = Recording.open(tmp_path)
    first.append(*puts[10:15])
    with first.path.open("ab") as file:
        file.write(b"BREC")
    recording.refresh()
    assert told(recording.batches()) == day.told()
    assert (recording.damage, recording.summary().torn_bytes) == ([], 4)
    first.path.write_bytes(first.path.read_bytes()[:-4])
    first.append(*puts[15:20])
    second.append(*puts[20:])
    recording.refresh()
    assert told(recording.batches()) == day.told()
    assert recording.damage == recording.verify() == []


def test_an_incomplete_block_is_not_read_until_it_is_complete(tmp_path: Path) -> None:
    segment = Day(tmp_path, feed_of()).put(0, *many(3, size=1), index=False)
    whole = segment.path.read_bytes()
    segment.path.write_bytes(b"")
    recording = Recording.open(tmp_path)
    for size in range(1, len(whole) + 1):
        with segment.path.open("ab") as file:
            file.write(whole[size - 1 : size])
        recording.refresh()
        blocks = [stop for _, stop in segment.places if stop <= size]
        whole_bytes = max(stop for stop in (0, 64, segment.places[0][0], *blocks) if stop <= size)
        assert len(told(recording.batches())) == len(blocks)
        assert recording.summary().torn_bytes == size - whole_bytes
    assert recording.damage == []
