"""Queries on recordings against the same query on the whole day in memory."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import polars
import pyarrow
import pytest
from blackbox_feeds.synthetic import Synthetic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from blackbox import Recording
from blackbox.archive.export.dataset import Messages
from blackbox.archive.export.gathered import Gathered
from blackbox.archive.export.pushed import EARLIEST, LATEST, Pushed
from blackbox.archive.read import reader
from blackbox.archive.recordings import Recordings
from tests.archive.test_data_frames import BLOCKS, FORMS, made_day
from tests.examples import examples
from tests.journals import Row
from tests.recorded import recorded
from tests.spark.made_days import BEGIN, SECOND, make_day


@pytest.fixture(scope="module", autouse=True)
def small_runs() -> Iterator[None]:
    """Days are read in many runs, as large ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "CHECKED_RUN_BYTES", 1_000)
        yield


few = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow], deadline=None)


def column(name: str) -> polars.Expr:
    return polars.col(name)


SYMBOLS = ["A1", "A2", "B7", "B31", "AA", "A\\xff", "A.B", "none", ""]
TEXTS = st.one_of(
    st.builds(lambda name, text: column(name) == text, st.sampled_from(["symbol", "topic"]), st.sampled_from(SYMBOLS)),
    st.builds(lambda texts: column("symbol").is_in(texts), st.lists(st.sampled_from(SYMBOLS), max_size=3)),
    st.builds(
        lambda texts: column("topic").is_in(texts),
        st.lists(st.sampled_from(["A1.trade", "B7.quote", "AA.T", "AZ", "A\\xff.T", "nix.y"]), max_size=3),
    ),
    st.builds(lambda text: column("type") == text, st.sampled_from(["trade", "T", "Q"])),
    st.builds(lambda text: column("symbol") != text, st.sampled_from(SYMBOLS)),
)


def compared(column: polars.Expr, value: Any, how: str) -> polars.Expr:
    made: dict[str, polars.Expr] = {
        "==": column == value, "<": column < value, "<=": column <= value, ">": column > value, ">=": column >= value,
        "reversed": polars.lit(value) > column, "between": column.is_between(value, value + 3 * step(value)),
        "left": column.is_between(value, value + 5 * step(value), closed="left"),
        "in": column.is_in([value, value + step(value)]), "not": ~(column < value), "null": column.is_null(),
    }  # fmt: skip
    return made[how]


def step(value: Any) -> Any:
    return 1 if isinstance(value, int) else datetime.timedelta(seconds=1)


def times(ns: int, form: dict[str, Any]) -> Any:
    at = datetime.datetime.fromtimestamp(ns // SECOND, datetime.UTC)
    return ns if form.get("times") == "integer" else at


HOW = st.sampled_from(["==", "<", "<=", ">", ">=", "reversed", "between", "left", "in", "not", "null"])
SECONDS = st.integers(-1, 21).map(lambda second: BEGIN + second * SECOND)


def predicates(form: dict[str, Any]) -> st.SearchStrategy[polars.Expr]:
    numbers = st.builds(
        compared, st.sampled_from(["sequence", "slice"]).map(column), st.sampled_from([0, 1, 2, 9, 40, 900]), HOW
    )
    epochs = st.builds(compared, st.just(column("epoch")), st.sampled_from([3, 7, (1 << 62) + 5]), HOW)
    clocks = st.builds(
        compared,
        st.sampled_from(["ts_event", "ts_out", "ts_recv"]).map(column),
        SECONDS.map(lambda ns: times(ns, form)),
        HOW,
    )
    leaves = st.one_of(TEXTS, numbers, epochs, clocks)
    return st.recursive(
        leaves,
        lambda inner: st.builds(lambda one, two, how: one & two if how else one | two, inner, inner, st.integers(0, 3)),
    )


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Recording]:
    place = tmp_path_factory.mktemp("days")
    found = []
    for number, (slices, key_bytes) in enumerate([(2, 1), (3, 0), (2, 2)]):
        make_day(place / str(number), seed=number, slices=slices, key_bytes=key_bytes, sizes=(1, 5, 30))
        found.append(Recording.open(place / str(number)))
    return found


@few
@given(st.data())
def test_a_query_finds_the_rows_of_the_whole_day(days: list[Recording], data: st.DataObject) -> None:
    day = data.draw(st.sampled_from(days))
    form: dict[str, Any] = data.draw(st.fixed_dictionaries({}, optional={"times": st.just("integer")}))
    selection: dict[str, Any] = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "start": SECONDS, "by": st.sampled_from(["ts_event", "ts_out"]), "slices": st.just([1]),
                "epoch": st.just(3), "first_sequence": st.just(20), "symbols": st.just(["A1", "B7", "B8"]),
            },
        )
    )  # fmt: skip
    prefix = data.draw(st.sampled_from([b"", b"A", b"B"])) if "symbols" not in selection else b""
    where = data.draw(predicates(form))
    names = data.draw(st.lists(st.sampled_from(day.to_polars(slices=[]).columns), min_size=1, unique=True))
    whole = day.to_polars(prefix, **form, **selection).lazy().filter(where).select(names)
    found = day.scan_polars(prefix, **form, **selection).filter(where).select(names)
    assert_frame_equal(found.collect(), whole.collect(), categorical_as_str=True)
    rows = data.draw(st.integers(0, 40))
    assert_frame_equal(
        found.head(rows).collect(engine="streaming"), whole.head(rows).collect(), categorical_as_str=True
    )


@few
@given(BLOCKS, FORMS, st.data())
def test_a_query_on_fields_finds_the_fields_of_the_whole_day(
    blocks: list[list[Row]], form: dict[str, Any], data: st.DataObject
) -> None:
    kinds: Any = data.draw(st.sampled_from([None, "T", "quote", ["T", "quote"], ["quote", "T"]]))
    if isinstance(kinds, list) and form.get("prices") == "decimal":
        form = {**form, "prices": "float"}
    with TemporaryDirectory() as path:
        made_day(Path(path), blocks)
        recording = Recording.open(path)
        whole = recording.to_polars(message_type=kinds, **form)
        names = data.draw(st.lists(st.sampled_from(whole.columns), min_size=1, unique=True))
        lazy = recording.scan_polars(message_type=kinds, **form)
        assert lazy.collect_schema() == whole.schema
        assert_frame_equal(lazy.select(names).collect(), whole.select(names), categorical_as_str=True)
        if kinds is not None:
            where = column("price") > 1
            assert_frame_equal(lazy.filter(where).collect(), whole.filter(where), categorical_as_str=True)


SQL = [
    "symbol = 'A1'", "symbol IN ('A2', 'B7', 'none')", "symbol <> 'A1'", "topic = 'B7.quote'", "type IN ('trade')",
    "symbol LIKE 'A%'", "topic = 'A\"1\\.('", "sequence >= 12", "sequence BETWEEN 3 AND 40", "sequence < 7",
    "slice = 1", f"ts_event >= {BEGIN + 3 * SECOND}", f"ts_event < {BEGIN + 9 * SECOND}", "ts_event = 0",
    f"ts_out > {BEGIN + 5 * SECOND}", f"ts_recv <= {BEGIN + 12 * SECOND}", "epoch = 3", "epoch IN (3, 4)",
    "octet_length(payload) > 3",
]  # fmt: skip


@few
@given(st.data())
def test_a_query_in_sql_finds_the_rows_of_the_whole_day(days: list[Recording], data: st.DataObject) -> None:
    day = data.draw(st.sampled_from(days))
    parts = data.draw(st.lists(st.sampled_from(SQL), min_size=1, max_size=3))
    where = data.draw(st.sampled_from([" AND ", " OR "])).join(parts)
    names = ", ".join(data.draw(st.lists(st.sampled_from(day.to_polars(slices=[]).columns), min_size=1, unique=True)))
    query = f"SELECT {names}, count(*) FROM messages WHERE {where} GROUP BY ALL ORDER BY ALL"
    with duckdb.connect() as connection:
        tables: list[Any] = [day.to_duckdb(connection), connection.from_arrow(day.to_arrow(times="integer"))]
        found, whole = (table.query("messages", query).fetchall() for table in tables)
    assert found == whole


def test_a_query_passes_its_conditions_on(days: list[Recording]) -> None:
    pushed = []
    schema = days[0].to_arrow(slices=[], times="integer").schema

    def read(names: list[str] | None, conditions: Pushed) -> Iterator[pyarrow.RecordBatch]:
        pushed.append((names, conditions))
        return iter(())

    with duckdb.connect() as connection:
        messages = connection.from_arrow(Messages(schema, read))
        messages = messages.filter("symbol IN ('A', 'B') AND sequence >= 3 AND ts_event < 10")
        assert messages.aggregate("count(payload)").fetchall() == [(0,)]
    names, conditions = pushed[-1]
    assert set(names or ()) == {"symbol", "sequence", "ts_event", "payload"}
    assert set(conditions.bounds) == {("sequence", 3, LATEST), ("ts_event", EARLIEST, 9)}
    assert conditions.texts == (("symbol", frozenset(["A", "B"])),)


def test_a_query_reads_only_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_day(tmp_path, slices=2, key_bytes=0, codecs=(0,))
    last = max(tmp_path.glob("slice-00001/*.journal"))
    with last.open("r+b") as file:  # a message of the later half of a slice is damaged
        file.seek(last.stat().st_size - 64)
        file.write(b"damaged!")
    recording = Recording.open(tmp_path)
    monkeypatch.setattr(Gathered, "payloads", lambda _: pytest.fail("the payloads were read"))
    lazy = recording.scan_polars().drop("payload")
    early = datetime.datetime.fromtimestamp(BEGIN // SECOND + 5, datetime.UTC)
    known = len(recording.damage)
    for where in (column("symbol") == "A1", column("slice") == 0, column("ts_out") < early):
        assert len(lazy.filter(where).collect())
        assert len(recording.damage) == known
    lazy.collect()
    assert len(recording.damage) == known + 1


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_a_query_for_the_largest_values_and_a_join_with_itself(days: list[Recording], engine: Any) -> None:
    whole, lazy = days[0].to_polars(), days[0].scan_polars()
    where, keys = column("slice") == 1, ["ts_out", "epoch", "sequence"]
    top = lazy.filter(where).top_k(7, by=keys).select(keys).collect(engine=engine)
    assert_frame_equal(top, whole.filter(where).top_k(7, by=keys).select(keys), check_row_order=False)
    numbers = lazy.filter(column("sequence") > 3).select("slice", "epoch", "sequence")
    joined = lazy.join(numbers, on=["slice", "epoch", "sequence"], how="semi").collect(engine=engine)
    assert len(joined) == len(whole.filter(column("sequence") > 3))


def test_several_days_and_trades_are_queried_alike(tmp_path: Path) -> None:
    recording = recorded(tmp_path, lambda: Synthetic(3_000, seed=3), slices=2)
    whole = recording.trades.to_polars()
    middle = whole["ts_event"].sort()[len(whole) // 2]
    symbol = whole.filter(column("ts_event") >= middle)["symbol"][0]
    where = (column("ts_event") >= middle) & (column("symbol") == symbol)
    days = Recordings([recording])
    for ticks in (recording.trades, days.trades):
        found = ticks.scan_polars().filter(where).select("price", "size").collect()
        assert_frame_equal(found, whole.filter(where).select("price", "size"))
        assert len(found)
        for low in (10**8, 5 * 10**16, 10**17):  # in the filter of a query, any integer is a time in ns
            assert len(ticks.scan_polars(times="integer").filter(column("ts_event") > low).collect()) == len(whole)
    lazy = days.scan_polars(message_type="P").filter(where)
    assert_frame_equal(lazy.collect(), days.to_polars(message_type="P").filter(where), categorical_as_str=True)
