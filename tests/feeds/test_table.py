"""CSV and Parquet files as messages, against a slow reference, which looks up each value."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
from blackbox_feeds.table import Csv, Parquet, rejected, source
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Feed, Recording, Schema
from blackbox.archive.importing.import_days import import_days
from blackbox.errors import SourceError
from blackbox.feed.schema.schema import price
from tests.examples import examples

BEGIN = 1_767_623_400 * 10**9  # 2026-01-05T14:30 UTC
ABSENT = 2**63 - 1
TICK = numpy.dtype(
    [("type", "S1"), ("symbol", "S8"), ("price", price("<i8", 4, absent=ABSENT)), ("size", "<u4"), ("rate", "<f8")]
)
SCHEMA = Schema("own", 1_001, {"t": TICK}, names={"tick": "t"})
COLUMNS = {"ts_event": "when", "price": "px"}
BAD: Any = object()
VALUES: dict[str, dict[str, Any]] = {
    "when": {
        "2026-01-05T14:30:00.000000001": BEGIN + 1, "2026-01-05 15:30:00.5+01:00": BEGIN + 5 * 10**8,
        "2026-01-05T14:30:01Z": BEGIN + 10**9, "1767623402": BEGIN + 2 * 10**9, "1767623400.25": BEGIN + 25 * 10**7,
        "": 0, "noon": BAD, "2026-13-05T14:30": BAD, "1767623400.0000000001": BAD, "99999999999999": BAD,
    },
    "symbol": {
        "AAPL": b"AAPL", "BRK.A": b"BRK.A", "\u00e9": "\u00e9".encode(), "": BAD, "TOOLONGSYMBOL": BAD, "\u0100": BAD,
    },
    "px": {
        "189.98": 1_899_800, "-1": -10_000, "0.0001": 1, "1e2": 1_000_000, "5.00000": 50_000, "": ABSENT,
        "1.00001": BAD, "x": BAD, "1e30": BAD,
    },
    "size": {"1": 1, "4294967295": 2**32 - 1, "": BAD, "-1": BAD, "4294967296": BAD, "1.5": BAD},
    "rate": {"1.5": 1.5, "-inf": -numpy.inf, "7": 7.0, "y": BAD},
}  # fmt: skip
NAMES = ["when", "symbol", "px", "size", "rate"]
GOOD = {name: [text for text, value in VALUES[name].items() if value is not BAD] for name in NAMES}
ROWS = st.lists(
    st.one_of(
        st.tuples(*(st.sampled_from(GOOD[name]) for name in NAMES)),
        st.tuples(*(st.sampled_from(list(VALUES[name])) for name in NAMES)),
        st.just(("too", "few")),
    ),
    max_size=40,
)


def reference(rows: list[tuple[str, ...]]) -> tuple[list[tuple[Any, ...]], list[tuple[int, set[str]]]]:
    """Return the messages, and the rejected rows with their bad columns."""
    good, bad = [], []
    for number, row in enumerate(rows, 1):
        if len(row) < len(NAMES):
            bad.append((number, {""}))
            continue
        values = [VALUES[name][text] for name, text in zip(NAMES, row, strict=True)]
        if wrong := {name for name, value in zip(NAMES, values, strict=True) if value is BAD}:
            bad.append((number, wrong))
        else:
            good.append((values[1] + b".tick", values[0], values[1].decode().encode("latin-1"), *values[2:]))
    return good, bad


def messages_of(file: source.TableFile) -> list[tuple[Any, ...]]:
    found = []
    for chunk in file.chunks():
        records = chunk.payloads.view(TICK)
        assert chunk.starts.tolist() == [TICK.itemsize * row for row in range(len(records))]
        topics = [chunk.topics[place] for place in chunk.topic_index.tolist()]
        found += [
            (topic, time, *list(record)[1:])
            for topic, time, record in zip(topics, chunk.ts_event.tolist(), records.tolist(), strict=True)
        ]
    return found


def check(file: source.TableFile, rows: list[tuple[str, ...]]) -> None:
    good, bad = reference(rows)
    if rows and not good:
        with pytest.raises(SourceError, match="were rejected"):
            messages_of(file)
        return
    assert messages_of(file) == good
    assert file.rejected.count == len(bad)
    assert [each.row for each in file.rejected.rows] == [row for row, _ in bad]
    for each, (row, columns) in zip(file.rejected.rows, bad, strict=True):
        assert each.column in columns
        assert each.reason
        if each.column:
            assert each.value == repr(rows[row - 1][NAMES.index(each.column)] or None)
    assert (file.truncated is None) == (not bad)
    assert [note.split(": ")[1] for note in file.notes] == [f"row {row}" for row, _ in bad[:10]]


few = settings(max_examples=examples(40), suppress_health_check=list(HealthCheck), deadline=None)


@few
@given(ROWS, st.sampled_from([1 << 20, 150]))
def test_rows_that_fit_become_messages_and_others_are_reported(
    monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, ...]], block_bytes: int
) -> None:
    if rows and len(rows[0]) < len(NAMES):
        rows = rows[1:]
    monkeypatch.setattr(source, "_CSV_BYTES", block_bytes)
    text = io.StringIO()
    csv.writer(text).writerows([NAMES, *rows])
    with TemporaryDirectory() as directory:
        path = Path(directory) / "ticks.csv"
        path.write_text(text.getvalue())
        options: Any = {"schema": SCHEMA, "message_type": "tick", "columns": COLUMNS, "time_unit": "s"}
        check(Csv(str(path), **options), rows)
        whole = [row for row in rows if len(row) == len(NAMES)]
        columns = dict(zip(NAMES, zip(*whole, strict=True), strict=True)) if whole else dict.fromkeys(NAMES, ())
        table = pyarrow.table({name: pyarrow.array([v or None for v in c], "string") for name, c in columns.items()})
        pyarrow.parquet.write_table(table, path.with_suffix(".parquet"))
        check(Parquet(str(path.with_suffix(".parquet")), **options), whole)


def test_rejected_rows_are_described_in_order_and_in_our_words(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"ts_event,symbol,price,size,rate\n{BEGIN},A,1,1,1\nyesterday,A,1,1,1\n2600-01-01,A,1,1,1\nshort\n")
    file = Csv(str(path), schema=SCHEMA, message_type="tick")
    assert repr(file.rejected) == "<RejectedRows: 0>"
    assert len(messages_of(file)) == 1
    why = "expected a time of the years 1678 to 2261 such as 2026-01-05T14:30:00Z; without Z it is of the option zone"
    first = f"row 2: column 'ts_event' had 'yesterday': {why}"
    assert file.truncated == f"{path}: 3 rows rejected"
    assert file.notes == (
        f"{path}: {first}",
        f"{path}: row 3: column 'ts_event' had '2600-01-01': {why}",
        f"{path}: row 4: it was 'short': it had 1 columns, expected 5",
    )
    assert repr(file.rejected) == f"<RejectedRows: 3, the first: {first}>"


def test_typed_columns_of_parquet_are_taken_as_they_are(tmp_path: Path) -> None:
    from decimal import Decimal

    times = pyarrow.array([BEGIN // 1_000, None], pyarrow.timestamp("us"))
    for prices, units in (
        (pyarrow.array([1.25, 189.98]), [12_500, 1_899_800]),
        (pyarrow.array([12_500, None], pyarrow.int32()), [12_500, ABSENT]),
        (pyarrow.array([Decimal("1.25"), None], pyarrow.decimal128(9, 2)), [12_500, ABSENT]),
    ):
        columns = {"symbol": pyarrow.array(["A", "B"]).dictionary_encode(), "size": [1, 2], "rate": [0.5, 1.5]}
        table = pyarrow.table({"ts_event": times, "price": prices, **columns})
        pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
        file = Parquet(str(tmp_path / "a.parquet"), schema=SCHEMA, message_type="tick", zone="America/New_York")
        found = messages_of(file)
        assert [(row[0], row[1], row[3]) for row in found] == [
            (b"A.tick", BEGIN + 5 * 3_600 * 10**9, units[0]),
            (b"B.tick", 0, units[1]),
        ]


def test_a_file_is_imported_into_days(tmp_path: Path) -> None:
    times = [BEGIN + second * 10**9 for second in (0, 1, 86_400)]
    rows = [f"{time},{symbol},1899800,5,1" for time, symbol in zip(times, itertools.cycle(["A", "B"]), strict=False)]
    (tmp_path / "ticks.csv").write_text("\n".join(["ts_event;symbol;price;size;rate", *rows]).replace(",", ";"))
    file = Csv(str(tmp_path / "ticks.csv"), schema=SCHEMA, message_type="tick", prices="integer", delimiter=";")
    with pytest.raises(ConfigError, match="unknown"):
        Csv.from_spec("ticks.csv", schema="unknown", message_type="tick")
    done = import_days(Feed.local("own", schema=SCHEMA), tmp_path, [file])
    assert [(str(day.date), day.messages) for day in done] == [("2026-01-05", 2), ("2026-01-06", 1)]
    frame = Recording.open(done[0].path).to_polars(message_type="tick", times="integer").sort("ts_event")
    assert frame.select("ts_event", "symbol", "price").rows() == [(times[0], "A", 189.98), (times[1], "B", 189.98)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "lacked 'schema'"),
        ({"schema": SCHEMA}, "lacked 'message_type'"),
        ({"schema": SCHEMA, "message_type": "tick", "colums": ""}, "had 'colums'.*columns"),
        ({"schema": SCHEMA, "message_type": "tock"}, "message type was 'tock'"),
        ({"schema": SCHEMA, "message_type": "tick", "columns": "prise=px"}, "columns had 'prise'.*price"),
        ({"schema": SCHEMA, "message_type": "tick", "columns": "price"}, "expected pairs as in price=px,size=qty"),
        ({"schema": SCHEMA, "message_type": "tick", "time_unit": "m"}, "time_unit was 'm'"),
        ({"schema": SCHEMA, "message_type": "tick", "zone": "Mars"}, "time zone was 'Mars'"),
        ({"schema": SCHEMA, "message_type": "tick", "prices": "float"}, "prices was 'float'"),
        ({"schema": SCHEMA, "message_type": "tick", "delimiter": "||"}, "delimiter was"),
        ({"schema": SCHEMA, "message_type": "tick", "delimiter": "\u00a6"}, "expected one ASCII character"),
        ({"schema": SCHEMA, "message_type": "tick", "delimiter": "\0"}, "expected one ASCII character"),
        ({"schema": SCHEMA, "message_type": "tick", "topic": "{symbol"}, r"topic was '\{symbol', expected text with"),
        ({"schema": SCHEMA, "message_type": "tick", "topic": "ticks"}, "topic was 'ticks', expected text with columns"),
        ({"schema": SCHEMA, "message_type": "tick", "topic": "\udcff{symbol}"}, "topic was .*surrogates not allowed"),
    ],
)
def test_wrong_options_are_named(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Csv("x.csv", **options)


def test_a_column_that_occurs_twice_is_an_error(tmp_path: Path) -> None:
    names = ["ts_event", "symbol", "price", "size", "price", "rate"]
    path = tmp_path / "a.csv"
    path.write_text(",".join(names) + f"\n{BEGIN},A,1,1,2,1\n")
    table = pyarrow.table([pyarrow.array(["1"])] * len(names), names)
    pyarrow.parquet.write_table(table, path.with_suffix(".parquet"))
    for file in (Csv(str(path), schema=SCHEMA, message_type="tick"),
                 Parquet(str(path.with_suffix(".parquet")), schema=SCHEMA, message_type="tick")):  # fmt: skip
        with pytest.raises(SourceError, match="had column 'price' 2 times, expected once: rename the others"):
            messages_of(file)


def test_values_that_python_cannot_hold_reject_their_row(tmp_path: Path) -> None:
    columns = {"symbol": ["A", "B"], "price": [1.0, 2.0], "size": [1, 2], "rate": [0.5, 1.5]}
    times = pyarrow.array([BEGIN // 1_000, 4 * 10**17], pyarrow.timestamp("us"))  # the second one is of the year 14645
    pyarrow.parquet.write_table(pyarrow.table({"ts_event": times, **columns}), tmp_path / "a.parquet")
    file = Parquet(str(tmp_path / "a.parquet"), schema=SCHEMA, message_type="tick")
    assert [row[0] for row in messages_of(file)] == [b"A.tick"]
    assert str(file.rejected.rows[0]).startswith("row 2: column 'ts_event' had '[ 14645-06-30 15:06:40.000000 ]': ")


def test_an_import_ends_after_a_thousand_wrong_rows_from_the_first_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (source._MANY_ROWS, rejected._MOST_KEPT) == (1_000, 1_000)
    monkeypatch.setattr(source, "_MANY_ROWS", 100)  # a thousand rows take long
    monkeypatch.setattr(rejected, "_MOST_KEPT", 100)
    path = tmp_path / "a.csv"
    head = "ts_event,symbol,price,size,rate\n"
    good, bad = f"{BEGIN},A,1,1,1\n", f"{BEGIN},A,1,many,1\n"
    path.write_text(head + "short\n" + bad * 200)
    file = Csv(str(path), schema=SCHEMA, message_type="tick")
    with pytest.raises(SourceError, match="the first 100 rows were rejected, row 1: it was 'short'"):
        messages_of(file)
    assert file.rejected.count == 101  # with the row of the wrong length, which is found earlier
    path.write_text(head + bad * 99 + good + bad * 50 + good)
    assert len(messages_of(file)) == 2
    assert (file.rejected.count, len(file.rejected.rows), file.rejected.rows[-1].row) == (149, 100, 101)


def test_a_file_of_another_kind_or_without_a_column_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("ts_event,symbol,prize,size,rate\n")
    with pytest.raises(SourceError, match=r"lacked column 'price' for 'price'.* it has: ts_event, symbol, prize"):
        list(Csv(str(path), schema=SCHEMA, message_type="tick").chunks())
    for kind in (Csv, Parquet):
        with pytest.raises(SourceError, match="cannot be read"):
            list(kind(str(tmp_path / "none"), schema=SCHEMA, message_type="tick").chunks())
    with pytest.raises(SourceError, match="cannot be read"):
        list(Parquet(str(path), schema=SCHEMA, message_type="tick").chunks())
