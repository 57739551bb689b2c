"""The newest message of every topic of a recording, against a slow loop over all of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox.archive.recording import Recording
from blackbox.errors import JournalError
from tests.archive.written_days import days, few, made, told
from tests.archive.written_journals import block
from tests.journals import Day, Put, Row, Told, feed_of


def slow_newest(messages: list[Told]) -> dict[bytes, Told]:
    """Return the message with the highest sequence of the last epoch, by topic."""
    found: dict[bytes, Told] = {}
    for each in messages:
        before = found.get(each.topic)
        if before is None or (each.epoch, each.sequence) >= (before.epoch, before.sequence):
            found[each.topic] = each
    return {topic: each for topic, each in found.items() if each.payload is not None}


def same(each: Told) -> tuple[object, ...]:
    """Return the fields of a message in an image. A block's `ts_out` is the largest of its messages."""
    return each.slice_id, each.epoch, each.sequence, each.topic, each.payload, each.ts_event


@few
@given(days(), st.sampled_from([b"", b"A", b"AX", b"AXYZ.", b"B", b"CY.trade.of.more"]), st.none() | st.integers(0, 9))
def test_the_newest_messages_match_a_slow_loop(
    day: tuple[int, int, list[tuple[int, bool, list[Put]]]], prefix: bytes, until: int | None
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        written = made(directory, day)
        recording = Recording.open(directory)
        messages = [
            each for each in written.told() if each.topic.startswith(prefix) and (until is None or each.ts_recv < until)
        ]
        batches = list(recording.newest(prefix, until))
        assert all(batch.is_image and batch.is_recorded for batch in batches)
        found = told(iter(batches))
    assert sorted(map(same, found)) == sorted(map(same, slow_newest(messages).values()))
    runs = [(batch.block.slice_id, batch.block.epoch) for batch in batches]
    assert runs == sorted(runs)


def test_more_topics_or_bytes_than_the_limits_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Day(tmp_path / "many", feed_of(max_topics=3)).put(0, *(block(number, topic=b"T%d" % number) for number in range(4)))
    with pytest.raises(JournalError, match="slice 0 had more than 3 topics"):
        list(Recording.open(tmp_path / "many").newest())
    monkeypatch.setattr("blackbox.archive.serve.newest.MOST_BYTES", 1 << 20)
    puts = [Put((Row(b"T%d" % number, bytes(1 << 18)),), sequence=number) for number in range(5)]
    Day(tmp_path / "large", feed_of()).put(0, *puts)
    with pytest.raises(JournalError, match="slice 0 had newest messages of 1310720 bytes or more, expected at most"):
        list(Recording.open(tmp_path / "large").newest())
