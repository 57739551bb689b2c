"""`blackbox export` and `blackbox compact`: their reports on the files that they write."""

from __future__ import annotations

import json
from pathlib import Path

from deltalake import DeltaTable

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


def test_days_are_appended_to_a_delta_table_once(day: Day, tmp_path: Path) -> None:
    table = tmp_path / "trades"
    ended = invoke("export", day.path, "--delta", "--out", table, "--message-type", "P", "--symbol", "AAPL", "--json")
    assert json.loads(ended.out) == {
        "recording": str(day.path),
        "out": str(table),
        "messages": 20,
        "file_bytes": None,
    }, ended.errors
    rows = DeltaTable(table).to_pyarrow_table()
    assert sorted(rows["shares"].to_pylist()) == list(range(20))
    assert {str(price) for price in rows["price"].to_pylist()} == {"12.3450"}
    again = invoke("export", day.path, "--delta", "--out", table, "--message-type", "P")
    assert_one_line(again, "has rows of 2026-11-20, expected a day that is not there yet")
    ended = invoke("export", day.path.parent, "--delta", "--out", tmp_path / "all")
    assert (ended.status, ended.text("messages")) == (0, "40"), ended.errors


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
