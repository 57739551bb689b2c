"""Records and tables arrive like messages of a loop of `publish`; without a time they happened now."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy
import pandas
import polars
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blackbox.publish.publisher
from blackbox import ConfigError, Feed, Publisher, Schema
from blackbox.feed.schema.schema import price, utc_time
from tests.examples import examples
from tests.publish.subscribers import delivered, one_slice

QUOTE = numpy.dtype(
    [
        ("type", "S1"),
        ("symbol", "S6"),
        ("bid", price("<i8", 4, absent=2**63 - 1)),
        ("ask", price("<u4", 2)),
        ("size", "<u2"),
        ("at", utc_time("<i8", "ns")),
        ("rate", "<f8"),
        ("up", "?"),
    ]
)
QUOTES = Schema("quotes", 1_009, {"q": QUOTE, "r": QUOTE}, names={"quote": "q"})
NOON = 1_767_614_400 * 10**9
Got = list[tuple[bytes, int, bytes | None]]


def published(publish: Callable[[Publisher], object], schema: str | Schema = QUOTES, **form: Any) -> Got:
    """Return topic, time and payload of the messages that arrive."""
    with delivered(one_slice(schema=schema, **form)) as (publisher, got):
        publish(publisher)
    return [(message.topic, message.ts_event, message.payload) for message in got.messages]


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "symbol": st.sampled_from(["AAPL", "BRK.B", "X"]),
            "bid": st.none() | st.integers(-(10**9), 10**9).map(lambda units: units / 10_000),
            "ask": st.integers(0, 2**32 - 1).map(lambda units: units / 100),
            "size": st.integers(0, 65_535),
            "at": st.integers(NOON, NOON + 10**9),
            "rate": st.floats(allow_nan=False, allow_infinity=False),
            "up": st.booleans(),
            "ts_event": st.sampled_from([0, NOON, NOON + 1]),
        }
    ),
    max_size=7,
)
FORMS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "lists": lambda columns: columns,
    "numpy": lambda columns: {
        name: numpy.array(values, float if name == "bid" else None) for name, values in columns.items()
    },
    "arrow": pyarrow.table,
    "batch": pyarrow.RecordBatch.from_pydict,
    "pandas": pandas.DataFrame,
    "polars": polars.DataFrame,
    "decimals": lambda columns: {
        **columns,
        "bid": [None if value is None else Decimal(repr(value)) for value in columns["bid"]],
    },
}


class Kept(Publisher):
    """Records the columns passed to `publish_many`."""

    def publish_many(self, topics: Any, index: Any, payloads: Any, times: Any, *_: Any, **__: Any) -> int:  # type: ignore[override]
        self.kept: Got = getattr(self, "kept", [])
        self.kept += [
            (topics[place], int(ts), bytes(payload)) for place, ts, payload in zip(index, times, payloads, strict=True)
        ]
        return len(index)


@given(rows=ROWS, form=st.sampled_from(list(FORMS)), most=st.integers(1, 4))
@settings(max_examples=examples(100), deadline=None)
def test_a_table_is_published_as_its_rows_would_be(rows: list[dict[str, Any]], form: str, most: int) -> None:
    expected = [
        (
            row["symbol"].encode() + b".quote",
            row["ts_event"],
            QUOTES.pack({name: value for name, value in row.items() if name != "ts_event"}, "quote"),
        )
        for row in rows
    ]
    columns = {name: [row[name] for row in rows] for name in ("ts_event", *(QUOTE.names or ())) if name != "type"}
    if not rows and form not in ("lists", "numpy"):
        return  # these columns have no types
    publisher = Kept(Feed.local("typed", slices=1, schema=QUOTES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blackbox.publish.publisher, "WINDOW_ROWS", most)
        assert publisher.publish_table(FORMS[form](columns), "quote") == len(rows)
    assert publisher.kept == expected


def test_the_topic_is_made_of_columns() -> None:
    columns = {"place": ["N", "Q", "N"], "symbol": ["A  ", "B", "C"], "payload": ["1", None, "3"], "type": "xyx"}

    def topics(table: Any, **given: Any) -> list[bytes]:
        form = {"symbol": given.pop("symbol", "before_last"), "separator": given.pop("separator", ".")}
        got = published(lambda publisher: publisher.publish_table(table, **given), "raw", **form)
        assert [payload for _, _, payload in got] == [b"1", None, b"3"]
        return [topic for topic, _, _ in got]

    table = {**columns, "type": list("xyx")}
    del table["place"]
    assert topics(table) == [b"A.x", b"B.y", b"C.x"]
    assert topics(table, separator="{") == [b"A{x", b"B{y", b"C{x"]
    assert topics({"symbol": table["symbol"], "payload": table["payload"]}, symbol="whole") == [b"A", b"B", b"C"]
    table |= {"place": columns["place"]}
    assert topics(table, topic="{place}/{symbol}") == [b"N/A", b"Q/B", b"N/C"]
    assert topics({**table, "topic": list("uvw")}, topic="{place}!") == [b"N!", b"Q!", b"N!"]
    del table["place"], table["symbol"]
    assert topics({**table, "topic": list("uvw")}) == [b"u", b"v", b"w"]


GOOD: dict[str, Any] = {"topic": ["A.q"], "symbol": ["A"], "bid": [1.5], "ask": [2.5], "size": [1], "at": [NOON]}
GOOD |= {"rate": [0.5], "up": [True]}


@pytest.mark.parametrize(
    ("table", "given", "text"),
    [
        ({**GOOD, "bids": [1]}, {}, r"had column 'bids' \(did you mean 'bid'\?\), expected: topic, type, symbol"),
        ({name: GOOD[name] for name in GOOD if name != "bid"}, {}, "the table lacked column 'bid'"),
        ({**GOOD, "bid": [1.00001]}, {}, "column 'bid' held 1.00001, expected a price with at most 4 decimals"),
        ({**GOOD, "bid": [float(2**63 - 1) / 10_000]}, {}, "column 'bid' held .*, expected a price with at most 4"),
        ({**GOOD, "ask": [None]}, {}, "column 'ask' had 1 nulls, expected none"),
        ({**GOOD, "size": [70_000]}, {}, "column size ran from 70000 to 70000, expected uint16"),
        ({**GOOD, "symbol": ["ABCDEFG"]}, {}, "column 'symbol' held b'ABCDEFG', expected bytes, 0 to 6 of them"),
        ({**GOOD, "bid": [1.5, 1.5]}, {}, "column 'bid' had 2 values, expected 1 as 'topic'"),
        ({**GOOD, "topic": "A"}, {}, "column 'topic' was 'A', expected a list or an array"),
        ({**GOOD, "bid": 1.5}, {}, "column 'bid' was 1.5, expected a list or an array"),
        ({**GOOD, "bid": numpy.array(1.5)}, {}, r"column 'bid' was array\(1.5\), expected a list or an array"),
        ({**GOOD, "topic": [["A"]]}, {}, r"column 'topic' held \['A'\], expected text or bytes"),
        (GOOD, {"topic": "fixed"}, "topic was 'fixed', expected text with columns in braces"),
        (GOOD, {"topic": "{symbol!r}"}, "topic was '{symbol!r}', expected text with columns in braces"),
        (GOOD, {"topic": "{symbol"}, "topic was '{symbol', expected text with columns in braces"),
        (GOOD, {"topic": "{desk}.{symbol}"}, "the table lacked column 'desk'"),
    ],
)  # fmt: skip
def test_errors_in_a_table_name_the_column(table: Any, given: Any, text: str) -> None:
    publisher = Kept(Feed.local("typed", slices=1, schema=QUOTES))
    with pytest.raises(ConfigError, match=text):
        publisher.publish_table(table, "quote", **given)


def test_a_price_equal_to_the_null_price_is_refused() -> None:
    zero = Schema("zero", 1_010, {"q": numpy.dtype([("type", "S1"), ("bid", price("<i8", 4, absent=0))])})
    publisher = Kept(Feed.local("typed", slices=1, schema=zero))
    assert publisher.publish_table({"topic": ["A", "B"], "bid": [None, 1.0]}, "q") == 2
    assert publisher.publish_table({"topic": ["A"], "bid": [0]}, "q") == 1, "an integer is the venue's own value"
    with pytest.raises(ConfigError, match="column 'bid' held a price of 0 units, expected null for no price"):
        publisher.publish_table({"topic": ["A"], "bid": [0.0]}, "q")
    with pytest.raises(TypeError, match="table was 5, expected a dict of columns, an Arrow table or a data frame"):
        publisher.publish_table(5)


def test_ts_event_defaults_to_now_and_0_means_unknown() -> None:
    none = numpy.zeros(2, numpy.int32)
    two = numpy.zeros((2, 1), numpy.uint8)

    def publish(publisher: Publisher) -> None:
        publisher.publish(b"A", b"x")
        publisher.publish(b"A", None)
        publisher.publish(b"A", b"x" * (16 << 20))
        publisher.publish(b"A", bytearray(b"x"))  # type: ignore[arg-type]
        publisher.publish_many((b"A",), none, two)
        publisher.publish_table({"topic": ["A"], "payload": ["x"]})
        publisher.publish(b"A", b"x", 0)
        publisher.publish(b"A", None, 0)
        publisher.publish_many((b"A",), none, two, [0, 7])
        publisher.publish_table({"topic": ["A"] * 2, "payload": ["x"] * 2, "ts_event": [0, NOON]})

    before = time.time_ns()
    got = [ts for _, ts, _ in published(publish, "raw")]
    after = time.time_ns()
    assert all(before <= ts <= after for ts in got[:7])
    assert got[7:] == [0, 0, 0, 7, 0, NOON]

    record = {name: GOOD[name][0] for name in GOOD if name != "topic"}

    def publish_records(publisher: Publisher) -> None:
        publisher.publish_record(b"A", record, "q")
        publisher.publish_record(b"A", record, "q", 0)
        publisher.publish_record(b"A", record, "q", ts_event=NOON)

    before = time.time_ns()
    (topic, first, payload), (_, second, _), (_, third, _) = published(publish_records)
    assert (topic, payload) == (b"A", QUOTES.pack(record, "q"))
    assert before <= first <= time.time_ns()
    assert (second, third) == (0, NOON)
