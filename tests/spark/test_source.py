"""Real captures read through either engine of the data source, compared with the captures themselves."""

from __future__ import annotations

import gzip
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dpkt
import pandas
import pyarrow
import pytest
from blackbox_feeds.itch50 import Itch50
from pyspark.sql import functions as f

from blackbox import Recorder, Recording
from blackbox.spark.metrics import read_metrics
from blackbox.spark.session import PUSHDOWN
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import AS_SENT
from tests.spark.reading import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ITCH = "itch50/runk_locate-13-10k.bin"
TOPS = "iex/goiex_TOPS16.pcapng.gz"
COLUMNS = (
    "feed string, date date, slice int, topic string, symbol string, type string, ts_event bigint, ts_out bigint, "
    "ts_recv bigint, event_time timestamp, out_time timestamp, recv_time timestamp, epoch bigint, sequence bigint"
)


def table_of(frame: DataFrame) -> pyarrow.Table:
    return frame.toArrow()


@pytest.fixture
def itch(captured: Callable[[str], Path]) -> Path:
    return captured("itch")


@pytest.fixture
def tops(captured: Callable[[str], Path]) -> Path:
    return captured("tops")


def itch_messages(path: Path) -> Iterator[bytes]:
    data, at = path.read_bytes(), 0
    while at < len(data):
        (size,) = struct.unpack_from(">H", data, at)
        yield data[at + 2 : at + 2 + size]
        at += 2 + size


def tops_messages(path: Path) -> Iterator[bytes]:
    """Return the messages of all IEX-TP segments of a capture, each once."""
    seen = 0
    with gzip.open(path) as file:
        for _, frame in dpkt.pcap.Reader(file):
            data = dpkt.ethernet.Ethernet(frame).data.data.data
            size, count, _, first = struct.unpack_from("<HHqq", data, 12)
            assert size == len(data) - 40
            at = 40
            for number in range(first, first + count):
                (size,) = struct.unpack_from("<H", data, at)
                if number > seen:
                    yield data[at + 2 : at + 2 + size]
                    seen = number
                at += 2 + size


def test_every_column_matches_the_recording(spark: SparkSession, tops: Path, engine: str) -> None:
    (day,) = tops.glob("*-*-*")
    found = table_of(load(spark, day, engine))
    recording = Recording.open(day)
    told = pyarrow.concat_tables([recording.to_arrow(slices=[part], **AS_SENT) for part in range(2)])
    assert found.num_rows == told.num_rows == 57_674
    for name in ("ts_event", "ts_out", "ts_recv", "sequence", "payload"):
        assert found[name].equals(told[name])
    topics = told["topic"].to_pylist()
    assert found["topic"].to_pylist() == topics
    assert found["symbol"].to_pylist() == [topic.rpartition(".")[0] for topic in topics]
    assert found["type"].to_pylist() == [topic.rpartition(".")[2] for topic in topics]
    assert found["slice"].to_pylist() == told["slice"].to_pylist()
    assert found["epoch"].to_pylist() == told["epoch"].to_pylist()
    for name, clock in (("event_time", "ts_event"), ("out_time", "ts_out"), ("recv_time", "ts_recv")):
        micros = found[name].cast(pyarrow.int64()).to_pylist()
        assert micros == [ns // 1_000 for ns in told[clock].to_pylist()]
    assert set(found["feed"].to_pylist()) == {"tops"}
    assert set(found["date"].to_pylist()) == {recording.date}


def test_counts_by_type_match_the_file(
    spark: SparkSession, itch: Path, tops: Path, shared_data: Path, engine: str
) -> None:
    for path, messages in ((itch, itch_messages(shared_data / ITCH)), (tops, tops_messages(shared_data / TOPS))):
        rows = load(spark, path, engine).groupBy("type").count().collect()
        assert {row["type"]: row["count"] for row in rows} == Counter(chr(message[0]) for message in messages)


def test_added_orders_of_itch_match_the_file(spark: SparkSession, itch: Path, shared_data: Path, engine: str) -> None:
    form = struct.Struct(">cHHHIQcI8sI")
    wanted = [form.unpack(message) for message in itch_messages(shared_data / ITCH) if message[:1] == b"A"]
    names = ("stock_locate", "tracking_number", "timestamp", "order_reference_number", "buy_sell_indicator", "shares",
             "stock", "price")  # fmt: skip
    reference = pandas.DataFrame(
        [
            (locate, track, high << 32 | low, order, side.decode(), shares, stock.decode().rstrip(), price)
            for _, locate, track, high, low, order, side, shares, stock, price in wanted
        ],
        columns=list(names),
    )
    reader = spark.read.format("blackbox").option("engine", engine).option("messageType", "A")
    frame = reader.load(str(itch))
    told = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
    assert told == (
        f"{COLUMNS}, message_type string, stock_locate int, tracking_number int, timestamp bigint, "
        "order_reference_number bigint, buy_sell_indicator string, shares bigint, stock string, price decimal(18,4)"
    )
    found: Any = frame.select(*names).orderBy("order_reference_number").toPandas()
    reference = reference.sort_values("order_reference_number", ignore_index=True)
    assert found["price"].tolist() == [Decimal(price).scaleb(-4) for price in reference["price"]]
    found["price"] = reference["price"]
    pandas.testing.assert_frame_equal(found, reference, check_dtype=False)
    scaled = reader.option("prices", "integer").load(str(itch)).orderBy("order_reference_number").select("price")
    assert [row["price"] for row in scaled.collect()] == reference["price"].tolist()


def test_quotes_of_iex_summed_by_symbol_match_the_file(
    spark: SparkSession, tops: Path, shared_data: Path, engine: str
) -> None:
    form = struct.Struct("<cBq8sIqqI")
    rows = [form.unpack(message) for message in tops_messages(shared_data / TOPS) if message[:1] == b"Q"]
    reference = pandas.DataFrame(rows, columns=["type", "flags", "time", "symbol", "bids", "bid", "ask", "asks"])
    reference["symbol"] = reference["symbol"].str.decode("latin-1").str.rstrip()
    told = reference.groupby("symbol").agg({"bids": "sum", "bid": "sum", "ask": "max", "time": "max", "type": "size"})
    frame = spark.read.format("blackbox").option("engine", engine).option("messageType", "Q").load(str(tops))
    found = frame.groupBy("record_symbol").agg(
        f.sum("bid_size").alias("bids"),
        f.coalesce(f.sum("bid_price"), f.lit(0)).alias("bid"),
        f.coalesce(f.max("ask_price"), f.lit(0)).alias("ask"),
        f.unix_micros(f.max("timestamp")).alias("time"),
        f.count("*").alias("type"),
    )
    rows_found = {row["record_symbol"]: row for row in found.collect()}
    assert set(rows_found) == set(told.index)
    for symbol, row in told.iterrows():
        there = rows_found[symbol]
        assert (there["bids"], there["type"], there["time"]) == (row["bids"], row["type"], row["time"] // 1_000)
        assert (there["bid"], there["ask"]) == (
            Decimal(int(row["bid"])).scaleb(-4),
            Decimal(int(row["ask"])).scaleb(-4),
        )


def test_view_and_several_paths(spark: SparkSession, itch: Path, tops: Path, engine: str) -> None:
    spark.sql(f"CREATE TEMP VIEW orders USING blackbox OPTIONS (path '{itch}', messageType 'A', engine '{engine}')")
    try:
        (row,) = spark.sql("SELECT count(*) AS n, sum(shares) AS shares FROM orders WHERE price > 0").collect()
        assert row["n"] == 4_758
    finally:
        spark.catalog.dropTempView("orders")
    both = load(spark, [str(itch), str(tops)], engine)
    assert {row["feed"]: row["count"] for row in both.groupBy("feed").count().collect()} == {
        "itch": 10_000,
        "tops": 57_674,
    }


def test_filters_of_a_query_skip_blocks_and_return_the_same_rows(
    spark: SparkSession, tops: Path, tmp_path: Path, engine: str
) -> None:
    (day,) = tops.glob("*-*-*")
    everything = sum(feed_slice.blocks for feed_slice in Recording.open(day).summary().slices)
    columns = "ts_out bigint, topic string, symbol string, type string, out_time timestamp, sequence bigint"
    reader = spark.read.format("blackbox").option("engine", engine).schema(columns)
    rows: Any = reader.load(str(tops)).toPandas()
    first, second = rows.symbol[rows.type == "T"].value_counts().index[:2]
    # Sending times depend on the machine, so the bounds are taken from the rows that the filters select.
    sent = sorted(rows.ts_out[rows.topic.str.startswith("S")].unique())
    assert len(sent) > 1
    middle = int(sent[len(sent) // 2])
    time = pandas.Timestamp(int(rows.ts_out[rows.symbol == first].max()) // 1_000 * 1_000)
    conditions: list[tuple[str, Any, bool]] = [
        (f"ts_out < {middle} AND topic LIKE 'S%'", (rows.ts_out < middle) & rows.topic.str.startswith("S"), True),
        (f"symbol IN ('{first}', '{second}') AND type = 'T'", rows.symbol.isin([first, second]) & (rows.type == "T"),
         True),
        (f"out_time >= '{time}' AND symbol = '{first}'", (rows.out_time >= time) & (rows.symbol == first), True),
        (f"symbol = '{first}' OR sequence < 10", (rows.symbol == first) | (rows.sequence < 10), engine == "java"),
        (f"symbol = '{first}' OR sequence % 9 = 0", (rows.symbol == first) | (rows.sequence % 9 == 0), False),
    ]  # fmt: skip
    for number, (condition, mask, skips) in enumerate(conditions):
        metrics = str(tmp_path / str(number))
        found: Any = reader.option("metrics", metrics).load(str(tops)).where(condition).toPandas()
        pandas.testing.assert_frame_equal(found, rows[mask].reset_index(drop=True))
        assert 0 < len(found) < len(rows), condition
        plan, task = read_metrics(metrics, "plan"), read_metrics(metrics, "task")
        assert plan["chosen"] <= plan["entries"]
        assert (task["blocks"] < everything) == skips, condition


def test_session_with_pushdown_off_reads_everything(spark: SparkSession, itch: Path, tmp_path: Path) -> None:
    spark.conf.set(PUSHDOWN, "false")
    try:
        frame = load(spark, itch, "python", metrics=str(tmp_path))
        assert frame.where("symbol = 'none'").count() == 0
        plan = read_metrics(str(tmp_path), "plan")
        assert plan["chosen"] == plan["entries"] > 0
    finally:
        spark.conf.set(PUSHDOWN, "true")


def test_price_beyond_a_decimal_is_null(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    """IEX's prices are int64, whose extremes do not fit a decimal of 18 digits."""
    prices = (10**18 - 1, 10**18, -(10**18) + 1, -(10**18), 2**63 - 1, -(2**63), -1)
    rows = tuple(Row(b"S.X", struct.pack("<ccq8sq", b"X", b"Q", 0, b"S", price)) for price in prices)
    day = Day(tmp_path / "day", feed_of(schema="iex_tops16"))
    day.put(0, Put(rows))
    reader = spark.read.format("blackbox").option("engine", engine).option("messageType", "X")
    found = [row["official_price"] for row in reader.load(str(day.path)).collect()]
    limit = Decimal(10**18 - 1).scaleb(-4)
    assert found == [limit, None, -limit, None, None, None, Decimal("-0.0001")]
    scaled = [row["official_price"] for row in reader.option("prices", "integer").load(str(day.path)).collect()]
    assert tuple(scaled) == prices


def test_planned_query_ignores_later_blocks(tmp_path: Path) -> None:
    from blackbox.spark.python_engine import DefaultSource

    day = Day(tmp_path / "day", feed_of())
    segment = day.segment()
    segment.append(Put((Row(b"A.t", b"one"),)))
    source = DefaultSource({"path": str(day.path)})
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    segment.append(Put((Row(b"A.t", b"two"),), sequence=1))
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    assert [row["payload"] for batch in batches for row in batch.to_pylist()] == [b"one"]  # type: ignore[union-attr]


def test_day_of_a_running_recorder_is_read(spark: SparkSession, tmp_path: Path, shared_data: Path) -> None:
    import msgspec

    from blackbox import Feed, Publisher

    feed = msgspec.structs.replace(Feed.local("live", 2), schema="itch50")
    recorder = Recorder(feed, tmp_path)
    with Publisher(feed, when_full="wait") as publisher:
        recorder.start()
        Itch50(shared_data / ITCH, "2020-01-30").publish(publisher)
        publisher.flush()
        counts: list[int] = []
        while not counts or counts[-1] < 10_000:
            counts.append(spark.read.format("blackbox").load(str(tmp_path / "live")).count())
            assert len(counts) < 60
    recorder.run(until_end=True, timeout=60.0)
    assert counts == sorted(counts)
    assert counts[-1] == 10_000
