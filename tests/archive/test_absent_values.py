"""A field's integer that means "no value" is null in every reader, and every other integer is a value."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy
import pandas
import polars
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from blackbox import Feed, Recording, Subscriber
from blackbox.feed.schema.schema import ABSENT
from tests.absent import FIELDS, I8, NOON, RECORD, SCHEMA, U8, Form, close, columns, raw, records, value, write_day
from tests.cli.commands import invoke
from tests.examples import examples
from tests.journals import Put, Row


def plain(table: pyarrow.Table, name: str) -> list[Any]:
    """Return a column's values, times as integers."""
    column = table[name]
    values: list[Any] = (
        column.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(column.type) else column
    ).to_pylist()
    return values


def assert_columns(table: pyarrow.Table, expected: dict[str, list[Any]]) -> None:
    for name, values in expected.items():
        assert close(plain(table, name), values), name


def test_absent_values_are_null_in_frames_of_several_types(tmp_path: Path) -> None:
    made, others = records(), [(255, 0, 7), (3, -1, 0)]
    recording = Recording.open(write_day(tmp_path / "2026-11-20", made, others).path)
    table = recording.to_arrow(message_type=["of all", "O"], prices="integer")
    expected = columns(made, Form("integer"))
    assert plain(table, "u1") == [*expected["u1"], 255, 3], "255 is absent in one type only"
    assert plain(table, "i4") == [*expected["i4"], None, -1]
    assert plain(table, "own") == [None] * len(made) + [None, 0]
    assert plain(table, "price") == [*expected["price"], None, None]


def test_absent_values_are_null_in_pandas_and_polars(tmp_path: Path) -> None:
    made = records()
    recording = Recording.open(write_day(tmp_path / "2026-11-20", made).path)
    frame = recording.to_pandas(message_type="of all", zone="UTC")
    lean = recording.to_polars(message_type="of all", zone="UTC")
    for name, told in columns(made, Form("float")).items():
        column, expected = frame[name], told
        if column.dtype.kind == "M":
            # pandas always reads the lowest int64 as no time.
            expected = [None if each == -I8 - 1 else each for each in told]
            present = column.dropna().dt.tz_localize(None).to_numpy().view(numpy.int64).tolist()
        else:
            present = column.dropna().tolist()
        assert column.isna().tolist() == [each is None for each in expected], name
        assert close(present, [each for each in expected if each is not None]), name
        if "seconds" in name:
            assert lean[name].is_null().to_list() == [each is None for each in told], name
        else:
            found = lean[name].cast(polars.Int64) if lean[name].dtype.is_temporal() else lean[name]
            assert close(found.to_list(), told), name
    assert [str(frame.dtypes[name]) for name in ("i8", "u8", "u4", "i1")] == ["Int64", "UInt64", "UInt32", "Int8"]
    assert pandas.isna(frame["ts_event"][1]), "a message's time of 0 is unknown"


@pytest.mark.parametrize("prices", ["decimal", "float", "integer"])
def test_absent_values_are_null_in_parquet(tmp_path: Path, prices: Any) -> None:
    made = records()
    recording = Recording.open(write_day(tmp_path / "days" / "2026-11-20", made).path)
    recording.to_parquet(tmp_path / "out", message_type="of all", prices=prices)
    (path,) = (tmp_path / "out").rglob("*.parquet")
    table = parquet.read_table(path)
    expected = columns(made, Form(prices, seconds=10**6, signed=True))
    assert_columns(table, expected)
    assert polars.read_parquet(path)["time"].to_list() == expected["time"]
    for name in ("price", "time", "i4", "u1"):
        found = duckdb.execute(f"select {name} from '{path}'").fetchall()
        assert close((each for (each,) in found), expected[name])
    assert not table.schema.field("plain").nullable


LATE = NOON + 2 * 10**9
PRICES = [name for name, dtype in FIELDS.items() if "decimals" in (dtype.metadata or {})]


def money(record: Any, name: str, prices: str) -> Any:
    """Return a price in one of the forms, exactly; None for the absent value."""
    units = raw(int(record[name]), FIELDS[name])
    if units is None or prices == "integer":
        return units
    exact = Decimal(units).scaleb(-FIELDS[name].metadata["decimals"])  # type: ignore[index]
    return float(exact) if prices == "float" else exact


def test_absent_values_are_none_in_records_of_messages(tmp_path: Path) -> None:
    made = records()
    recording = Recording.open(write_day(tmp_path / "2026-11-20", made).path)
    found = [message.record for batch in recording.batches() for message in batch]
    copies = pickle.loads(pickle.dumps(found))
    for name, dtype in FIELDS.items():
        expected = [raw(int(each), dtype) for each in made[name]]
        assert [getattr(record, name) for record in found] == expected, name
        assert [getattr(record, name) for record in copies] == expected, name
    for name in PRICES:
        assert close((getattr(each, f"{name}_float") for each in found), (money(each, name, "float") for each in made))
    assert not hasattr(found[0], "i4_float")
    assert "u1=None" in repr(found[0])
    of_batches = b"".join(batch.records("A").tobytes() for batch in recording.batches())
    assert of_batches == made.tobytes(), "records of numpy are unchanged"


@pytest.mark.parametrize("prices", [None, "integer", "float", "decimal"])
def test_absent_values_are_none_in_callbacks_of_fields(tmp_path: Path, prices: Any) -> None:
    """Also in a block with a message without a value."""
    made = records()
    day = write_day(tmp_path / "2026-11-20", made, [(255, 0, 7), (3, -1, 0)])
    rows = (Row(b"X.A", None, LATE), *(Row(b"X.A", record.tobytes(), LATE) for record in made))
    day.put(0, Put(rows, sequence=len(made) + 2))
    subscriber = Subscriber(Recording.open(day.path).feed)
    found: list[Any] = []
    subscriber.on(b"", fields=("i4", "u1", *PRICES), prices=prices)(lambda *values: found.append(values))
    subscriber.replay(Recording.open(day.path))
    none = (None,) * len(PRICES)
    expected = [
        (
            *(raw(int(record[name]), FIELDS[name]) for name in ("i4", "u1")),
            *(money(record, name, prices or "integer") for name in PRICES),
        )
        for record in made
    ]
    expected += [(None, 255, *none), (-1, 3, *none), (None, None, *none), *expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert close(mine, theirs)
        assert [*map(type, mine)] == [*map(type, theirs)]


def test_absent_values_are_null_in_json(tmp_path: Path) -> None:
    made = records()
    path = write_day(tmp_path / "2026-11-20", made).path
    found = [json.loads(line)["record"] for line in invoke("dump", path, "--json").out.splitlines()]
    for name, dtype in FIELDS.items():
        expected: list[Any] = [raw(int(each), dtype) for each in made[name]]
        if name in PRICES:
            assert [each[name] is None for each in found] == [each is None for each in expected]
        else:
            assert [each[name] for each in found] == expected, name
    assert "u1=None" not in invoke("dump", path).out.splitlines()[0]


@pytest.mark.parametrize(
    ("form", "prices"), [("to_arrow", "decimal"), ("to_pandas", "integer"), ("to_polars", "decimal")]
)
def test_nulls_of_a_table_are_stored_as_the_absent_value(tmp_path: Path, form: str, prices: Any) -> None:
    made = records()
    made["time"][2], made["i4"][3], made["price"][4] = U8, (1 << 31) - 1, I8
    for name, dtype in FIELDS.items():  # a table cannot hold other types
        mine = [value(int(each), dtype, Form(prices)) for each in made[name]]
        lost = [
            (each is None and raw(int(number), dtype) is not None) or int(number) == -I8 - 1 or "seconds" in name
            for each, number in zip(mine, made[name], strict=True)
        ]
        made[name][lost] = dtype.metadata[ABSENT] if dtype.metadata and ABSENT in dtype.metadata else 7
    one = Recording.open(write_day(tmp_path / "2026-11-20", made).path)
    table = getattr(one, form)(message_type="of all", prices=prices)
    two = Recording.create(tmp_path / "two", Feed.local("absent", schema=SCHEMA), table, message_type="of all")
    again = numpy.concatenate([batch.records("A") for batch in two.batches()])
    for name in FIELDS:
        assert again[name].tolist() == made[name].tolist(), name


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(*(st.integers(0, 2 ** (8 * dtype.itemsize) - 1) for dtype in FIELDS.values())), min_size=1),
    st.sampled_from(["float", "decimal", "integer"]),
    st.sampled_from(["timestamp", "integer"]),
)
def test_every_integer_except_the_absent_one_is_a_value(rows: list[tuple[int, ...]], prices: Any, times: Any) -> None:
    known = records()
    made = numpy.zeros(len(rows) + len(known), RECORD)
    made["kind"], made[len(rows) :] = b"A", known
    drawn = made[: len(rows)]
    for place, (name, dtype) in enumerate(FIELDS.items()):
        unsigned = numpy.dtype(f"{dtype.byteorder}u{dtype.itemsize}")
        drawn[name] = numpy.array([row[place] for row in rows], unsigned).view(dtype)
    with TemporaryDirectory() as directory:
        recording = Recording.open(write_day(Path(directory) / "2026-11-20", made).path)
        table = recording.to_arrow(message_type="of all", prices=prices, times=times)
        table.validate(full=True)
        assert_columns(table, columns(made, Form(prices)))
        assert [table.schema.field(name).nullable for name in ("price", "time", "i8", "plain")] == [True] * 3 + [False]
        for batch in recording.batches():
            for record, message in zip(made, batch, strict=True):
                for name, dtype in FIELDS.items():
                    assert getattr(message.record, name) == raw(int(record[name]), dtype)


def test_a_block_s_times_of_zero_are_null_in_arrow(tmp_path: Path) -> None:
    recording = Recording.open(write_day(tmp_path / "2026-11-20", records()).path)
    (batch,) = recording.batches()
    times = batch.to_arrow()["ts_event"]
    times.validate(full=True)
    assert times.cast(pyarrow.int64()).to_pylist() == [each or None for each in batch.ts_event.tolist()]
    later = next(recording.batches(start=NOON))
    assert later.to_arrow()["ts_event"].null_count == 0
