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
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.dbn.records import SCHEMA as DBN
from blackbox_feeds.tape.records import SCHEMA as TAPE
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from blackbox import ConfigError, Feed, Recording, Subscriber
from blackbox.feed.schema import ABSENT
from tests.absent import FIELDS, I8, NOON, OTHER, SCHEMA, U8, Form, close, columns, raw, records, value, write_day
from tests.cli.commands import invoke
from tests.examples import examples
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import recorded

AS_SENT: dict[str, Any] = {"prices": "integer", "times": "integer"}


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


@pytest.mark.parametrize("prices", ["float", "decimal", "integer"])
@pytest.mark.parametrize("times", ["timestamp", "integer"])
def test_absent_values_are_null_in_arrow(tmp_path: Path, prices: Any, times: Any) -> None:
    made = records()
    recording = Recording.open(write_day(tmp_path / "2026-11-20", made).path)
    table = recording.to_arrow(message_type="of all", prices=prices, times=times)
    table.validate(full=True)
    expected = columns(made, Form(prices))
    assert_columns(table, expected)
    for name in ("price", "time", "seconds", "i8", "u1"):
        assert table.schema.field(name).nullable
        assert 0 < table[name].null_count < len(made)
    assert not table.schema.field("plain").nullable
    chunks = list(recording.arrow_chunks(rows=3, message_type="of all", prices=prices, times=times))
    assert_columns(pyarrow.Table.from_batches(chunks), expected)


def test_absent_values_are_null_in_frames_of_several_types(tmp_path: Path) -> None:
    made, others = records(), [(255, 0, 7), (3, -1, 0)]
    recording = Recording.open(write_day(tmp_path / "2026-11-20", made, others).path)
    table = recording.to_arrow(message_type=["of all", "O"], prices="integer")
    expected = columns(made, Form("integer"))
    assert plain(table, "u1") == [*expected["u1"], 255, 3], "255 is absent in one type only"
    assert plain(table, "i4") == [*expected["i4"], None, -1]
    assert plain(table, "own") == [None] * len(made) + [None, 0]
    assert plain(table, "price") == [*expected["price"], None, None]


def test_absent_values_are_null_in_pandas(tmp_path: Path) -> None:
    made = records()
    frame = Recording.open(write_day(tmp_path / "2026-11-20", made).path).to_pandas(message_type="of all", zone="UTC")
    for name, told in columns(made, Form("float")).items():
        column = frame[name]
        expected = told
        if column.dtype.kind == "M":
            # pandas always reads the lowest int64 as no time.
            expected = [None if each == -I8 - 1 else each for each in told]
            present = column.dropna().dt.tz_localize(None).to_numpy().view(numpy.int64).tolist()
        else:
            present = column.dropna().tolist()
        assert column.isna().tolist() == [each is None for each in expected], name
        assert close(present, [each for each in expected if each is not None]), name
    kinds = {name: str(kind) for name, kind in frame.dtypes.items()}
    assert [kinds[name] for name in ("i8", "u8", "u4", "i1")] == ["Int64", "UInt64", "UInt32", "Int8"]
    assert pandas.isna(frame["ts_event"][1]), "a message's time of 0 is unknown"


def test_absent_values_are_null_in_polars(tmp_path: Path) -> None:
    made = records()
    frame = Recording.open(write_day(tmp_path / "2026-11-20", made).path).to_polars(message_type="of all", zone="UTC")
    for name, expected in columns(made, Form("float")).items():
        column = frame[name]
        if name in ("seconds", "big_seconds", "free_seconds"):
            assert column.is_null().to_list() == [each is None for each in expected], name
            continue
        found = column.cast(polars.Int64).to_list() if column.dtype.is_temporal() else column.to_list()
        assert close(found, expected), name


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
        missing = duckdb.execute(f"select count(*) from '{path}' where {name} is null").fetchall()
        assert missing == [(expected[name].count(None),)]
    assert not table.schema.field("plain").nullable


def test_absent_values_are_none_in_records_of_messages(tmp_path: Path) -> None:
    made = records()
    recording = Recording.open(write_day(tmp_path / "2026-11-20", made).path)
    batches = list(recording.batches())
    found = [message.record for batch in batches for message in batch]
    copies = pickle.loads(pickle.dumps(found))
    for name, dtype in FIELDS.items():
        expected = [raw(int(each), dtype) for each in made[name]]
        assert [getattr(record, name) for record in found] == expected, name
        assert [getattr(record, name) for record in copies] == expected, name
    assert "u1=None" in repr(found[0])
    of_batches = b"".join(batch.records("A").tobytes() for batch in recording.batches())
    assert of_batches == made.tobytes(), "records of numpy are unchanged"


PRICES = [name for name, dtype in FIELDS.items() if "decimals" in (dtype.metadata or {})]


def money(record: Any, name: str, prices: str) -> Any:
    """Return a price in one of the forms, exactly; None for the absent value."""
    units = raw(int(record[name]), FIELDS[name])
    if units is None or prices == "integer":
        return units
    exact = Decimal(units).scaleb(-FIELDS[name].metadata["decimals"])  # type: ignore[index]
    return float(exact) if prices == "float" else exact


@pytest.mark.parametrize("prices", [None, "integer", "float", "decimal"])
def test_absent_values_are_none_in_callbacks_of_fields(tmp_path: Path, prices: Any) -> None:
    made = records()
    path = write_day(tmp_path / "2026-11-20", made, [(255, 0, 7), (3, -1, 0)]).path
    subscriber = Subscriber(Recording.open(path).feed)
    found: list[Any] = []
    subscriber.on(b"", fields=("i4", "u1", *PRICES), prices=prices)(lambda *values: found.append(values))
    subscriber.replay(Recording.open(path))
    none = (None,) * len(PRICES)
    expected = [
        (
            *(raw(int(record[name]), FIELDS[name]) for name in ("i4", "u1")),
            *(money(record, name, prices or "integer") for name in PRICES),
        )
        for record in made
    ]
    for mine, theirs in zip(found, [*expected, (None, 255, *none), (-1, 3, *none)], strict=True):
        assert close(mine, theirs)
        assert [*map(type, mine)] == [*map(type, theirs)]


def test_a_record_of_a_message_has_its_prices_as_floats(tmp_path: Path) -> None:
    made = records()
    recording = Recording.open(write_day(tmp_path / "2026-11-20", made).path)
    found = [message.record for batch in recording.batches() for message in batch]
    assert len(PRICES) > 4
    for name in PRICES:
        assert close((getattr(each, f"{name}_float") for each in found), (money(each, name, "float") for each in made))
        assert [getattr(each, name) for each in found] == [raw(int(each[name]), FIELDS[name]) for each in made]
    assert not hasattr(found[0], "i4_float")


def test_absent_values_are_null_in_json(tmp_path: Path) -> None:
    made = records()
    path = write_day(tmp_path / "2026-11-20", made).path
    found = [json.loads(line)["record"] for line in invoke("dump", path, "--json").out.splitlines()]
    for name, dtype in FIELDS.items():
        expected: list[Any] = [raw(int(each), dtype) for each in made[name]]
        if name in ("price", "low_price", "side", "wide_price", "free_price", "short_price"):
            assert [each[name] is None for each in found] == [each is None for each in expected]
        else:
            assert [each[name] for each in found] == expected, name
    assert found[0]["side"] is None
    lines = invoke("dump", path).out.splitlines()
    assert "u1=None" not in lines[0]


@pytest.mark.parametrize("form", ["to_arrow", "to_pandas", "to_polars"])
@pytest.mark.parametrize("prices", ["decimal", "integer"])
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


def test_a_null_is_rejected_if_the_schema_has_no_absent_value(tmp_path: Path) -> None:
    columns_of_one = {name: [7] for name in FIELDS} | {"topic": ["A"], "ts_event": [NOON]}
    columns_of_one["plain"] = [None]  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="column 'plain' had 1 nulls, expected none: the schema has no 'absent'"):
        Recording.create(tmp_path, Feed.local("absent", schema=SCHEMA), columns_of_one, message_type="of all")


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(*(st.integers(0, 2 ** (8 * dtype.itemsize) - 1) for dtype in FIELDS.values())), min_size=1))
def test_every_integer_except_the_absent_one_is_a_value(rows: list[tuple[int, ...]]) -> None:
    made = numpy.zeros(len(rows), records().dtype)
    made["kind"] = b"A"
    for place, (name, dtype) in enumerate(FIELDS.items()):
        unsigned = numpy.dtype(f"{dtype.byteorder}u{dtype.itemsize}")
        made[name] = numpy.array([row[place] for row in rows], unsigned).view(dtype)
    with TemporaryDirectory() as directory:
        recording = Recording.open(write_day(Path(directory) / "2026-11-20", made).path)
        assert_columns(recording.to_arrow(message_type="of all", **AS_SENT), columns(made, Form("integer")))
        assert_columns(recording.to_arrow(message_type="of all", prices="decimal"), columns(made, Form("decimal")))
        for batch in recording.batches():
            for record, message in zip(made, batch, strict=True):
                for name, dtype in FIELDS.items():
                    assert getattr(message.record, name) == raw(int(record[name]), dtype)


def test_a_block_s_times_of_zero_are_null_in_arrow(tmp_path: Path) -> None:
    recording = Recording.open(write_day(tmp_path / "2026-11-20", records()).path)
    (batch,) = recording.batches()
    times = batch.to_arrow()["ts_event"]
    times.validate(full=True)
    assert times.null_count == 1
    found = times.cast(pyarrow.int64()).to_pylist()
    assert found == [each or None for each in batch.ts_event.tolist()]
    later = next(recording.batches(start=NOON))
    assert later.to_arrow()["ts_event"].null_count == 0


def test_undefined_times_and_prices_of_dbn_are_null(tmp_path: Path, shared_data: Path) -> None:
    """The first of four real records has no time and no price."""
    path = shared_data.parent / "cases/dbn" / "opra_test_data.cbbo-1s.dbn.zst"
    recording = recorded(tmp_path, lambda: Dbn(path))
    table = recording.to_arrow(message_type="cbbo-1s")
    name = "record_ts_event"
    assert plain(table, name)[0] is None
    assert None not in plain(table, name)[1:]
    for frame in (recording.to_pandas(message_type="cbbo-1s"), recording.to_polars(message_type="cbbo-1s").to_pandas()):
        assert frame[name].isna().tolist() == [True, False, False, False]
        assert frame["price"].isna().tolist() == [True, False, False, False]
    records_of = [message.record for batch in recording.batches() for message in batch if b"cbbo" in message.topic]
    assert [record.ts_event for record in records_of] == plain(table, name)
    assert [record.price is None for record in records_of] == [True, False, False, False]
    recording.to_parquet(tmp_path / "out", message_type="cbbo-1s")
    written = pyarrow.concat_tables(map(parquet.read_table, (tmp_path / "out").rglob("*.parquet")))
    assert written[name].to_pylist() == plain(table, name)
    assert [each is None for each in written["price"].to_pylist()] == [True, False, False, False]


def test_a_missing_side_of_a_tape_quote_is_null() -> None:
    quote = numpy.zeros(1, TAPE.dtype("Q"))
    quote["bid_price"] = 12_300
    record = TAPE.record_type("Q").from_buffer_copy(quote.tobytes())
    assert (record.bid_price, record.ask_price) == (12_300, None)
    trade = TAPE.record_type("T").from_buffer_copy(numpy.zeros(1, TAPE.dtype("T")).tobytes())
    assert trade.price == 0, "a price of 0 is a price"
    assert DBN.arrow("mbo").field("price").nullable
    assert OTHER["own"].metadata == {"absent": 7}
    assert Feed.local("absent", schema=SCHEMA).schema == SCHEMA


@pytest.mark.parametrize("prices", ["integer", "float", "decimal"])
def test_prices_in_a_block_with_a_message_without_a_value_have_the_same_form(tmp_path: Path, prices: Any) -> None:
    made = records()
    day = Day(tmp_path / "2026-11-20", feed_of(schema="absent"))
    day.write_manifest(SCHEMA)
    day.put(0, Put((Row(b"X.A", None, NOON), *(Row(b"X.A", record.tobytes(), NOON) for record in made))))
    recording = Recording.open(day.path)
    found: list[Any] = []
    subscriber = Subscriber(recording.feed)
    subscriber.on(b"", fields=PRICES, prices=prices)(lambda *values: found.append(values))
    subscriber.replay(recording)
    expected = [(None,) * len(PRICES), *(tuple(money(record, name, prices) for name in PRICES) for record in made)]
    for mine, theirs in zip(found, expected, strict=True):
        assert close(mine, theirs)
        assert [*map(type, mine)] == [*map(type, theirs)]
