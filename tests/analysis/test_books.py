"""Order books of recorded ITCH days compared with plain Python: changes of the best levels, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from blackbox_feeds.dbn.book import BOOK as MBO
from blackbox_feeds.iex.book import BOOK as DEEP
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.synthetic import Synthetic
from pyspark.sql import DataFrame, SparkSession, functions

from blackbox.analysis import order_book, order_book_counts
from blackbox.analysis.measures.books import payloads_of
from blackbox.book.book import COUNTERS, counters
from blackbox.book.feed import BookFeed
from tests.book.applied import applied
from tests.feeds.build import messages_of
from tests.feeds.test_itch50_book import all_levels, slow_book
from tests.recorded import record

RUNK = "itch50/runk_locate-13-10k.bin"


@pytest.fixture
def apple(spark: SparkSession, captured: Callable[[str], Path]) -> DataFrame:
    return spark.read.format("blackbox").load(str(captured("itch")))


def synthetic() -> Synthetic:
    return Synthetic(30_000, symbols=25)


@pytest.fixture(scope="module")
def session(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = record(tmp_path_factory.mktemp("books"), "synthetic", synthetic, key_bytes=1)
    return spark.read.format("blackbox").load(str(path))


def best(row: Any) -> tuple[Any, ...]:
    return tuple(
        (price * 10_000, size) if size is not None else ()
        for price, size in ((row.bid_price, row.bid_size), (row.ask_price, row.ask_size))
    )


def test_levels_of_a_real_day(apple: DataFrame, shared_data: Path) -> None:
    """The five levels after their last change equal those of the whole file."""
    payloads = [payload for _, _, payload in messages_of(Itch50(shared_data / RUNK, "2020-01-30"))]
    orders, changes = slow_book(payloads)
    rows = order_book(apple, depth=5).orderBy("sequence").collect()
    assert len(rows) > len(changes)
    for side, letter in (("bid", b"B"), ("ask", b"S")):
        levels = all_levels(orders, letter)[:5]
        last = rows[-1]
        assert [int(price * 10_000) for price in last[f"{side}_prices"]] == [level.price for level in levels]
        assert last[f"{side}_sizes"] == [level.shares for level in levels]
        assert last[f"{side}_counts"] == [level.orders for level in levels]
        assert last[f"{side}_count"] == levels[0].orders
        assert all((row[f"{side}_price"] is None) == (row[f"{side}_prices"] == []) for row in rows)
        assert max(len(row[f"{side}_prices"]) for row in rows) == 5
    assert all(row.bid_prices == sorted(row.bid_prices, reverse=True) for row in rows)
    assert all(row.ask_prices == sorted(row.ask_prices) for row in rows)


@pytest.mark.long
def test_many_symbols_in_many_partitions_and_batches(spark: SparkSession, session: DataFrame) -> None:
    payloads: dict[str, list[bytes]] = {}
    for topic, _, payload in messages_of(synthetic()):
        payloads.setdefault(topic.rpartition(b".")[0].decode(), []).append(payload)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 777)
    try:
        rows = order_book(session).orderBy("symbol", "ts_event", "sequence").collect()
        counts = {row.symbol: row for row in order_book_counts(session).collect()}
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.symbol, []).append(best(row))
    for symbol, own in payloads.items():
        orders, expected = slow_book(own)
        assert found.get(symbol, []) == expected
        kinds = Counter(payload[:1].decode() for payload in own)
        many = sum(kinds[kind] for kind in "AFECXDU")
        assert (symbol in counts) == (many > 0)
        if many:
            row = counts[symbol]
            assert (row.messages, row.orders) == (many, len(orders))
            assert (row.added, row.removed, row.replaced) == (kinds["A"] + kinds["F"], kinds["D"], kinds["U"])
            assert (row.unknown, row.duplicate, row.too_many, row.refused, row.crossed) == (0, 0, 0, 0, 0)
    assert len(counts) > 10


@pytest.mark.long
@pytest.mark.parametrize(("name", "schema", "feed"), [("deep", "iex_deep10", DEEP), ("dbn", "dbn", MBO)])
def test_books_of_other_feeds(
    spark: SparkSession, captured: Callable[[str], Path], name: str, schema: str, feed: BookFeed
) -> None:
    """The last levels and the counts of each symbol equal those of its messages applied one by one."""
    messages = spark.read.format("blackbox").load(str(captured(name)))
    kept = [chr(byte) for byte in feed.message_types.encode("latin-1")]
    payloads: dict[str, list[tuple[Any, ...]]] = {}
    for row in messages.select("symbol", "ts_event", "ts_recv", "sequence", "payload").collect():
        if row.payload[feed.type_offset : feed.type_offset + 1].decode("latin-1") in kept:
            payloads.setdefault(row.symbol, []).append((row.ts_event, row.ts_recv, row.sequence, bytes(row.payload)))
    counts = {row.symbol: row for row in order_book_counts(messages, schema=schema).collect()}
    assert sorted(counts) == sorted(payloads)
    tops: dict[str, list[Any]] = {}
    for row in order_book(messages, schema=schema).collect():
        tops.setdefault(row.symbol, []).append(row)
    for symbol, own in payloads.items():
        book, changes = applied(feed, [payload for *_, payload in sorted(own)])
        assert {each: counts[symbol][each] for each in COUNTERS} == counters(book)
        assert len(tops.get(symbol, [])) == changes
    assert sum(map(len, tops.values())) > 0


def test_each_feed_has_its_own_books(session: DataFrame) -> None:
    both = session.union(session.withColumn("feed", functions.lit("twin")))
    for make in (order_book, order_book_counts):
        twin = make(both).where("feed = 'twin'").drop("feed")
        assert sorted(map(tuple, twin.collect()), key=repr) == sorted(
            map(tuple, make(session).drop("feed").collect()), key=repr
        )


def test_rows_need_not_come_from_a_recording(spark: SparkSession, shared_data: Path) -> None:
    messages = messages_of(Itch50(shared_data / RUNK, "2020-01-30"))
    rows = [(place, ts, payload) for place, (_, ts, payload) in enumerate(messages[:2_000])]
    frame = spark.createDataFrame(rows[::-1], "place bigint, ts_event bigint, payload binary").repartition(3)
    frame = frame.selectExpr("*", "'x' as who")
    found = order_book(frame, by=("who",), order=("place",)).orderBy("place").collect()
    assert [best(row) for row in found] == slow_book([payload for _, _, payload in messages[:2_000]])[1]
    assert isinstance(found[-1].bid_price, Decimal)


def test_large_binary_payloads_equal_binary_ones() -> None:
    """Their offsets have 64 bits instead of 32; also in a slice of a column."""
    values = [b"before", b"one", b"", b"three", b"behind"]
    for kind in (pyarrow.binary(), pyarrow.large_binary()):
        data, places = payloads_of(pyarrow.array(values, kind)[1:4])
        assert [data[start:stop].tobytes() for start, stop in pairwise(places.tolist())] == values[1:4]
