"""Arguments, paths and files that a reader rejects."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox import ConfigError, Recording
from blackbox.block.layout import VERSION
from blackbox.errors import JournalError
from tests.archive.written_days import many
from tests.journals import Day, feed_of


def test_invalid_arguments_are_rejected_at_once(tmp_path: Path) -> None:
    Day(tmp_path, feed_of(2))
    recording = Recording.open(tmp_path)
    with pytest.raises(ValueError, match="slices had 2, expected 0 to 1"):
        recording.batches(slices=[0, 2])
    with pytest.raises(ValueError, match="by was 'time'"):
        recording.batches(by="time")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epoch was -1"):
        recording.runs(epoch=-1)
    with pytest.raises(ConfigError, match="prefix"):
        recording.batches(b"\0H")


def test_errors_of_wrong_paths_list_their_contents(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="was not found"):
        Recording.open(tmp_path / "nothing")
    with pytest.raises(JournalError, match=r"it has no manifest\.json"):
        Recording.open(tmp_path)
    for date in ("2026-11-20", "2026-11-21"):
        Day(tmp_path / date, feed_of())
    with pytest.raises(JournalError, match="holds 2 days, expected one of them: 2026-11-20, 2026-11-21"):
        Recording.open(tmp_path)


def test_an_unexpected_segment_is_rejected(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(2))
    first, second = day.put(0, *many(1)), day.put(1, *many(1, 1))
    good = first.path.read_bytes()
    for wrong, text in (
        (second.path.read_bytes(), "slice was 1, expected 0"),
        (b"X" + good[1:], "magic was b'XBOXJRNL', expected b'BBOXJRNL'"),
        (good[:8] + b"\1" + good[9:], f"version was 1, expected {VERSION}"),
        (good[:12] + b"\3" + good[13:], "segment was 3, expected 0"),
    ):
        first.path.write_bytes(wrong)
        with pytest.raises(JournalError, match=f"{first.path}: {text}"):
            Recording.open(tmp_path)
