"""`blackbox export` and `blackbox compact`: their reports on the files that they write."""

from __future__ import annotations

import json
from pathlib import Path

from blackbox import Feed, Recording
from blackbox.cli.ui.status import Status
from tests.cli.commands import assert_one_line, invoke
from tests.damaged import damage_body
from tests.journals import Day


def test_an_export_has_the_messages_of_its_symbols(day: Day, tmp_path: Path) -> None:
    ended = invoke("export", day.path, "--out", tmp_path / "day.itch")
    assert (ended.status, ended.text("messages")) == (0, "40"), ended.errors
    assert (
        "warning: 40 messages of equal times in different slices: their order is not certain; "
        "a feed of one slice keeps it" in ended.errors
    )
    assert (tmp_path / "day.itch").stat().st_size == 40 * 46
    chosen = ["--symbol", "AAPL", "--symbol", "AA"]
    ended = invoke("export", day.path, "--out", tmp_path / "two.itch", *chosen)
    assert (ended.status, ended.text("messages")) == (0, "20"), ended.errors
    ended = invoke("export", day.path, "--parquet", "--out", tmp_path / "two", *chosen, "--json")
    assert json.loads(ended.out)["messages"] == 20, ended.errors
    ended = invoke("export", day.path, "--out", tmp_path / "none.itch", "--symbol", "")
    assert_one_line(ended, "symbols had an empty one")


def test_damaged_messages_are_left_out(day: Day, tmp_path: Path) -> None:
    damage_body(day.segments[0], 3)
    ended = invoke("export", day.path, "--out", tmp_path / "day.itch", "--stop", "09:30:10")
    assert (ended.status, ended.text("messages")) == (Status.LOST, "18")
    assert "1 part damaged with 2 messages or more; they are not in" in ended.errors
    ended = invoke("compact", day.path, "--out", tmp_path / "out")
    assert (ended.status, ended.text("messages")) == (Status.LOST, "38")


def test_a_copy_is_reported_as_smaller_or_larger(day: Day, tmp_path: Path) -> None:
    ended = invoke("compact", day.path, "--out", tmp_path / "out", "--compression", "lz4", "--block-kib", 1)
    assert (ended.status, ended.text("messages")) == (0, "40"), ended.errors
    assert Recording.open(tmp_path / "out").counts() == Recording.open(day.path).counts()
    assert invoke("compact", day.path, "--out", tmp_path / "out").status == Status.ERROR

    columns = {"topic": ["A"] * 5_000, "ts_event": [1_767_614_400 * 10**9] * 5_000, "payload": [bytes(50)] * 5_000}
    packed = Recording.create(tmp_path / "packed", Feed.local("packed"), columns, compression="zstd").path
    for source, out, compression, change in (
        (packed, tmp_path / "plain", "none", "larger"),
        (tmp_path / "plain", tmp_path / "x", "zstd", "smaller"),
    ):
        ended = invoke("compact", source, "--out", out, "--compression", compression)
        before, after = ended.value("bytes before"), ended.value("bytes after")
        assert (after > before) == (change == "larger")
        assert f"{max(before, after) / min(before, after):.2f} times {change}, indexes included" in ended.out
