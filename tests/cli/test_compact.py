"""`blackbox compact`: its report on the day that it writes."""

from __future__ import annotations

from pathlib import Path

from blackbox import Feed, Recording
from blackbox.cli.ui.status import Status
from tests.cli.commands import invoke
from tests.cli.days import damage
from tests.journals import Day


def test_a_recording_is_compacted(day: Day, tmp_path: Path) -> None:
    ended = invoke("compact", day.path, "--out", tmp_path / "out", "--compression", "lz4", "--block-kib", 1)
    assert ended.status == 0, ended.errors
    assert ended.text("messages") == "40"
    assert Recording.open(tmp_path / "out").counts() == Recording.open(day.path).counts()
    assert invoke("compact", day.path, "--out", tmp_path / "out").status == Status.ERROR


def test_a_larger_copy_is_reported_as_larger(tmp_path: Path) -> None:
    columns = {"topic": ["A"] * 5_000, "ts_event": [1_767_614_400 * 10**9] * 5_000, "payload": [bytes(50)] * 5_000}
    packed = Recording.create(tmp_path, Feed.local("packed"), columns, compression="zstd").path
    for source, out, change in (
        (packed, tmp_path / "plain", "larger"),
        (tmp_path / "plain", tmp_path / "x", "smaller"),
    ):
        ended = invoke("compact", source, "--out", out, "--compression", "none" if change == "larger" else "zstd")
        before, after = ended.value("bytes before"), ended.value("bytes after")
        assert (after > before) == (change == "larger")
        assert f"{max(before, after) / min(before, after):.2f} times {change}, indexes included" in ended.out


def test_damage_is_left_out_of_the_copy(day: Day, tmp_path: Path) -> None:
    damage(day)
    ended = invoke("compact", day.path, "--out", tmp_path / "out")
    assert ended.status == Status.LOST
    assert ended.text("messages") == "38"
