"""Recordings as Parquet: the same in each reader, pruned by statistics, renamed into place when complete."""

from __future__ import annotations

import datetime
import os
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import msgspec
import pandas
import polars
import pyarrow
import pytest
from blackbox_feeds.iex import Iex
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.synthetic import Synthetic
from pyarrow import compute, dataset
from pyarrow import parquet as files

from blackbox import ConfigError, Recording
from blackbox.archive.export import parquet
from blackbox.cli.ui.status import Status
from blackbox.errors import JournalError
from tests.cli.commands import invoke
from tests.damaged import damage_body
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import AS_SENT, recorded

ITCH = "itch50/runk_locate-13-10k.bin"
TOPS = "iex/goiex_TOPS16.pcapng.gz"
PLAIN = ("ts_event", "ts_out", "ts_recv", "sequence", "payload")
COLUMNS = (
    *("feed", "topic", "symbol", "type", "ts_event", "ts_out", "ts_recv", "event_time", "out_time", "recv_time"),
    *("epoch", "sequence"),
)


@pytest.fixture(scope="module")
def tops(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Recording:
    return recorded(tmp_path_factory.mktemp("tops"), lambda: Iex(shared_data / TOPS), slices=3, key_bytes=4)


@pytest.fixture(scope="module")
def itch(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Recording:
    return recorded(tmp_path_factory.mktemp("itch"), lambda: Itch50(shared_data / ITCH, date="2020-01-30"))


@pytest.fixture
def day(tmp_path: Path) -> Day:
    """Six messages in the first of two slices. The third block can be damaged."""
    day = Day(tmp_path / "recorded" / "2026-11-20", feed_of(2))
    rows = [(Row(b"A%d.t" % (k % 2), b"%d" % k, 1_000 * k),) for k in range(6)]
    day.put(0, *(Put(rows[k], sequence=k, ts_out=k + 10, ts_recv=k + 20) for k in range(6)))
    return day


def slice_by_slice(recording: Recording, **chosen: Any) -> pyarrow.Table:
    """Return `to_arrow` in the order of the files."""
    return pyarrow.concat_tables(
        [recording.to_arrow(slices=[each], **chosen, **AS_SENT) for each in range(len(recording.feed.slices))],
        promote_options="permissive",
    )


def whole(path: Path) -> pyarrow.Table:
    """Return the rows of all files below a directory."""
    return dataset.dataset(path, partitioning="hive").to_table()


def check_common(found: pyarrow.Table, told: pyarrow.Table, recording: Recording) -> None:
    for name in set(PLAIN) & set(told.column_names):
        assert found[name].equals(told[name]), name
    topics = told["topic"].to_pylist()
    assert found["topic"].to_pylist() == topics
    assert found["symbol"].to_pylist() == [topic.rpartition(".")[0] for topic in topics]
    assert found["type"].to_pylist() == [topic.rpartition(".")[2] for topic in topics]
    assert found["slice"].to_pylist() == told["slice"].to_pylist()
    assert found["epoch"].to_pylist() == told["epoch"].to_pylist()
    for name, clock in (("event_time", "ts_event"), ("out_time", "ts_out"), ("recv_time", "ts_recv")):
        assert found[name].cast(pyarrow.int64()).to_pylist() == [ns // 1_000 for ns in told[clock].to_pylist()]
    assert set(found["feed"].to_pylist()) == {recording.feed.name}
    assert set(found["date"].to_pylist()) == {str(recording.date)}


def test_files_of_real_days_match_the_recording(tops: Recording, itch: Recording, tmp_path: Path) -> None:
    for recording, messages in ((tops, 57_674), (itch, 10_000)):
        out = tmp_path / recording.schema.name
        done = recording.to_parquet(out)
        assert (done.messages, done.files) == (messages, len(recording.feed.slices))
        names = [f"date={recording.date}/slice={i}/part-00000.parquet" for i in range(done.files)]
        assert sorted(str(path.relative_to(out)) for path in out.rglob("*.parquet")) == names
        assert done.file_bytes == sum((out / name).stat().st_size for name in names)
        check_common(whole(out), slice_by_slice(recording), recording)
    group = files.read_metadata(out / names[0]).row_group(0)
    columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    times = itch.to_arrow(slices=[0], **AS_SENT)["ts_event"].to_numpy()
    assert (columns["ts_event"].statistics.min, columns["ts_event"].statistics.max) == (times.min(), times.max())
    assert columns["topic"].statistics.min.startswith("AAPL.")
    assert columns["ts_event"].has_column_index


def test_polars_duckdb_and_pandas_read_the_same(itch: Recording, tmp_path: Path) -> None:
    itch.to_parquet(tmp_path / "out")
    told = slice_by_slice(itch)
    frame = polars.scan_parquet(tmp_path / "out", hive_partitioning=True).collect()
    relation = duckdb.connect().from_query(f"SELECT * FROM read_parquet('{tmp_path}/out/*/*/*.parquet')")
    found = {
        "polars": frame.to_arrow(),
        "duckdb": relation.to_arrow_table(),
        "pandas": pyarrow.Table.from_pandas(pandas.read_parquet(tmp_path / "out"), preserve_index=False),
    }
    for reader, table in found.items():
        assert set(table.column_names) == {*COLUMNS, "payload", "date", "slice"}, reader
        for name in (*PLAIN, "slice"):
            assert table[name].to_pylist() == told[name].to_pylist(), (reader, name)
        assert compute.max(table["event_time"]).as_py() == compute.max(found["pandas"]["event_time"]).as_py()
    types = {"date": polars.Date, "slice": polars.Int64, "symbol": polars.String, "epoch": polars.Int64}
    assert {name: frame.schema[name] for name in types} == types
    assert frame.schema["event_time"] == polars.Datetime("us", "UTC")
    kinds = dict(zip(relation.columns, map(str, relation.types), strict=True))
    assert (kinds["date"], kinds["event_time"], kinds["topic"]) == ("DATE", "TIMESTAMP WITH TIME ZONE", "VARCHAR")


def test_messages_of_one_type_have_their_fields(tops: Recording, itch: Recording, tmp_path: Path) -> None:
    orders = ("message_type", "stock_locate", "timestamp", "buy_sell_indicator", "shares", "stock")
    for day, kind, count, fields in ((itch, "A", 4_758, orders), (tops, "T", 6_390, ("record_symbol", "timestamp"))):
        day.to_parquet(tmp_path / kind, message_type=kind)
        told, found = slice_by_slice(day, message_type=kind), whole(tmp_path / kind)
        check_common(found, told, day)
        assert found.num_rows == count
        for name in fields:
            assert found[name].to_pylist() == told[name].to_pylist(), name
            assert day is tops or found[name].type == told[name].type
        assert found["price"].type == pyarrow.decimal128(18, 4)
        assert found["price"].to_pylist() == [Decimal(price).scaleb(-4) for price in told["price"].to_pylist()]
    itch.to_parquet(tmp_path / "integer", message_type="A", prices="integer")
    assert whole(tmp_path / "integer")["price"].equals(slice_by_slice(itch, message_type="A")["price"])
    metadata = files.read_metadata(tmp_path / f"integer/date={itch.date}/slice=0/part-00000.parquet").metadata
    assert metadata[b"blackbox.decimals"] == b'{"price": 4}'
    assert metadata[b"blackbox.schema"] == b"itch50"
    ended = invoke("export", itch.path, "--parquet", "--out", tmp_path / "trades", "--message-type", "P")
    assert (ended.status, whole(tmp_path / "trades").num_rows) == (0, 240)


def rows_of(part: dataset.ParquetFileFragment) -> int:
    """Return the number of messages in the row groups that a reader would read."""
    return sum(group.num_rows for group in part.row_groups)


def test_statistics_prune_by_time_and_by_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "PART_ROWS", 2_048)
    recording = recorded(tmp_path, lambda: Synthetic(25_000, seed=1))
    told = slice_by_slice(recording)
    times = sorted(told["ts_event"].to_pylist())
    low, high = times[10_000], times[11_250]
    topic = told["topic"][12_500].as_py()
    conditions = {
        "time": (dataset.field("ts_event") >= low) & (dataset.field("ts_event") < high),
        "topic": dataset.field("topic") == topic,
    }
    share: dict[tuple[str, str], float] = {}
    for order in ("capture", "topic"):
        recording.to_parquet(tmp_path / order, order=order)
        parts = list(dataset.dataset(tmp_path / order, partitioning="hive").get_fragments())
        assert sum(rows_of(part) for part in parts) == 25_000
        for name, condition in conditions.items():
            found = sum(part.count_rows(filter=condition) for part in parts)
            assert found == (1_250 if name == "time" else told["topic"].to_pylist().count(topic))
            share[order, name] = sum(rows_of(part.subset(condition)) for part in parts) / 25_000
    assert share["capture", "time"] < 0.25
    assert share["capture", "topic"] == 1
    assert share["topic", "time"] < 0.5
    assert share["topic", "topic"] < 0.25
    monkeypatch.undo()
    recording.to_parquet(tmp_path / "sorted", order="topic")
    rows = sorted(told.select(["slice", "topic", "sequence"]).to_pylist(), key=lambda row: (row["slice"], row["topic"]))
    assert whole(tmp_path / "sorted")["sequence"].to_pylist() == [row["sequence"] for row in rows]


def test_a_selection_is_written(tops: Recording, tmp_path: Path) -> None:
    times = tops.to_arrow(**AS_SENT)["ts_event"]
    middle = times[len(times) // 2].as_py()
    done = tops.to_parquet(tmp_path / "out", b"A", stop=middle, slices=range(3))
    assert done.messages == tops.to_arrow(b"A", stop=middle).num_rows > 0
    assert {topic[0] for topic in whole(tmp_path / "out")["topic"].to_pylist()} == {"A"}
    with pytest.raises(ValueError, match="slices had 3, expected 0 to 2"):
        tops.to_parquet(tmp_path / "other", slices=[3])
    with pytest.raises(ConfigError, match="prices was 'long', expected one of: integer, float, decimal"):
        tops.to_parquet(tmp_path / "other", prices="long")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="order was 'time', expected one of: capture, topic"):
        tops.to_parquet(tmp_path / "other", order="time")  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_day_is_renamed_into_place_when_complete(day: Day, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "PART_ROWS", 2)
    recording, out = Recording.open(day.path), tmp_path / "out"
    told: list[int] = []

    def take(count: int) -> None:
        told.append(count)
        assert list(out.iterdir()) == []
        if count == 4 and len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recording.to_parquet(out, progress=take)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "recorded"]
    assert recording.to_parquet(out, progress=take).row_groups == 3
    assert told == [2, 4, 2, 4, 6]
    before = {each: each.stat().st_mtime_ns for each in out.rglob("*")}
    with pytest.raises(JournalError, match="date=2026-11-20 exists, expected a day that is not there yet"):
        recording.to_parquet(out)
    assert {each: each.stat().st_mtime_ns for each in out.rglob("*")} == before
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(JournalError, match="cannot be written"):
        recording.to_parquet(tmp_path / "file")
    wrong = Day(tmp_path / "wrong", msgspec.structs.replace(feed_of(), schema="itch50"))
    wrong.put(0, Put((Row(b"A.P", b"P12"),), schema=1))
    with pytest.raises(JournalError, match="is of type 'P' but has 3 bytes"):
        Recording.open(wrong.path).to_parquet(tmp_path / "none", message_type="P")
    assert list((tmp_path / "none").iterdir()) == []


def test_a_draft_that_a_killed_export_left_is_in_no_way(day: Day, tmp_path: Path) -> None:
    left = tmp_path / f".out.2026-11-20.{os.getpid()}.new"  # of a process with the same PID in another container
    left.mkdir()
    assert Recording.open(day.path).to_parquet(tmp_path / "out").messages == 6
    assert {path.name for path in tmp_path.iterdir()} == {left.name, "out", "recorded"}
    assert (tmp_path / "out" / "date=2026-11-20").stat().st_mode == left.stat().st_mode


def test_the_command_writes_several_days_to_a_directory(day: Day, tmp_path: Path) -> None:
    other = Day(day.path.parent / "2026-11-19", day.feed, date="2026-11-19")
    other.put(1, Put((Row(b"B.t", b"x"),)))
    words = ("export", day.path.parent, "--parquet", "--out", tmp_path / "out", "--order", "topic")
    ended = invoke(*words)
    assert ended.status == 0, ended.errors
    assert re.search(r"│ messages +│ +6 │", ended.out)
    frame = polars.scan_parquet(tmp_path / "out", hive_partitioning=True).collect()
    counts = frame.group_by("date", "slice").len().sort("date")
    assert counts.rows() == [(datetime.date(2026, 11, 19), 1, 1), (datetime.date(2026, 11, 20), 0, 6)]
    assert frame.filter(polars.col("date") == datetime.date(2026, 11, 19))["event_time"].to_list() == [None]
    assert frame["topic"].to_list()[1:] == ["A0.t"] * 3 + ["A1.t"] * 3
    again = invoke(*words)
    assert (again.status, "exists, expected a day that is not" in again.errors) == (Status.ERROR, True)
    for wrong in (
        [],
        ["--parquet"],
        ["--out", "x", "--message-type", "P"],
        ["--parquet", "--out", "x", "--prices", "x"],
    ):
        assert invoke("export", day.path, *wrong).status == Status.USAGE


def test_an_empty_day_has_files_without_rows(tmp_path: Path) -> None:
    empty = Recording.open(Day(tmp_path / "day", feed_of(2)).path)
    done = empty.to_parquet(tmp_path / "out")
    assert (done.messages, done.files, done.row_groups) == (0, 2, 0)
    assert whole(tmp_path / "out").num_rows == 0
    assert set(polars.read_parquet(tmp_path / "out").columns) == {*COLUMNS, "payload", "date", "slice"}
    assert duckdb.connect().from_query(f"SELECT count(*) FROM '{tmp_path}/out/*/*/*.parquet'").fetchall() == [(0,)]


def test_topics_without_a_type_and_without_utf8(tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, Put(tuple(Row(topic, b"") for topic in (b"plain", b"BRK.A.P", b"\xff.t", b"plain"))))
    Recording.open(day.path).to_parquet(tmp_path / "out")
    found = polars.read_parquet(tmp_path / "out")
    assert found["topic"].to_list() == ["plain", "BRK.A.P", "\\xff.t", "plain"]
    assert found["symbol"].to_list() == ["plain", "BRK.A", "\\xff", "plain"]
    assert found["type"].to_list() == [None, "P", "t", None]


@pytest.mark.parametrize("order", ["capture", "topic"])
def test_messages_without_a_value_are_null_and_not_empty(tmp_path: Path, order: Any) -> None:
    day = Day(tmp_path / "2026-11-20", feed_of())
    payloads = [b"1", None, b"", b"22", None]
    day.put(0, Put(tuple(Row(b"A", payload) for payload in payloads)), Put((Row(b"A", None),), 5))
    recording = Recording.open(day.path)
    recording.to_parquet(tmp_path / "out", order=order)
    told = recording.to_arrow()
    told.validate(full=True)
    files.write_table(told, tmp_path / "arrow.parquet")
    for table in (told, whole(tmp_path / "out"), files.read_table(tmp_path / "arrow.parquet")):
        assert table["payload"].to_pylist() == [*payloads, None]


def test_a_damaged_block_is_reported_and_left_out(day: Day, tmp_path: Path) -> None:
    damage_body(day.segments[0], 2)
    recording = Recording.open(day.path)
    assert recording.to_parquet(tmp_path / "api").messages == 5
    assert [each.messages for each in recording.damage] == [1]
    ended = invoke("export", day.path, "--parquet", "--out", tmp_path / "out")
    assert ended.status == Status.LOST
    assert "1 part damaged with 1 messages or more; they are not in" in ended.errors
    assert whole(tmp_path / "out")["sequence"].to_pylist() == [0, 1, 3, 4, 5]


def test_without_pyarrow_the_extra_is_named(day: Day, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.delitem(sys.modules, "blackbox.archive.export.parquet", raising=False)
    ended = invoke("export", day.path, "--parquet", "--out", tmp_path / "out")
    assert ended.status == Status.ERROR
    assert "pip install 'blackbox-md[arrow]'" in ended.errors


def test_a_day_is_one_commit_of_a_delta_table(itch: Recording, tmp_path: Path) -> None:
    table = tmp_path / "trades"
    assert itch.to_delta(table, message_type="R") == itch.to_parquet(tmp_path / "lake", message_type="R").messages
    found = polars.scan_delta(str(table)).sort("slice", "sequence").collect()
    expected = polars.read_parquet(tmp_path / "lake", hive_partitioning=True).sort("slice", "sequence")
    assert len(found) > 0
    assert found["date"].unique().to_list() == [itch.date]
    for name in expected.columns:
        if name not in ("date", "slice"):
            assert found[name].to_list() == expected[name].to_list()
    with pytest.raises(JournalError, match=rf"has rows of {itch.date}, expected a day that is not there"):
        itch.to_delta(table, message_type="R")
    assert len(deltalake.DeltaTable(table).history()) == 1
    for name, keys in (("apart", ["symbol"]), ("whole", None)):
        deltalake.write_deltalake(tmp_path / name, pyarrow.table({"symbol": ["A"], "size": [1]}), partition_by=keys)
        with pytest.raises(JournalError, match=rf"{name} is partitioned by {re.escape(str(keys or []))}, expected"):
            itch.to_delta(tmp_path / name)
    with pytest.raises(JournalError, match="cannot be written"):
        itch.to_delta(table / "_delta_log" / "00000000000000000000.json")
