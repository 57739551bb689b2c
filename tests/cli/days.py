"""A small recorded day: two slices of ITCH trades and a gap."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import numpy

from blackbox.feed.schema.schema import load_schema
from tests.journals import Day, Put, Row, feed_of

SECOND = 10**9
OPEN = int(datetime.datetime(2026, 11, 20, 14, 30, tzinfo=datetime.UTC).timestamp()) * SECOND


def trade(symbol: str, number: int) -> Row:
    """Return an ITCH trade; price 12.3450."""
    dtype = load_schema("itch50").dtype("P")
    record = numpy.zeros(1, dtype)
    record["message_type"], record["stock"], record["price"] = b"P", symbol.encode().ljust(8), 123_450
    record["buy_sell_indicator"], record["shares"], record["order_reference_number"] = b"B", number, 2**63 + number
    record["timestamp"][0] = list((9 * 3600 + 1800 + number).to_bytes(6, "big"))
    return Row(f"{symbol}.P".encode(), record.tobytes(), OPEN + number * SECOND)


def recorded_day(path: Path) -> Day:
    """Return two slices of twenty trades each, one per second; the second slice lacks messages 10 to 14."""
    feed = msgspec.structs.replace(feed_of(2, time_zone="America/New_York"), schema="itch50")
    day = Day(path, feed)
    for slice_id, symbol in enumerate(("AAPL", "BAC")):
        puts = []
        for number in range(10):
            sequence = 2 * number + 5 * (slice_id * number >= 5)
            rows = tuple(trade(symbol, 2 * number + i) for i in range(2))
            puts.append(Put(rows, sequence=sequence, ts_out=rows[0].ts_event, ts_recv=rows[0].ts_event + 7, schema=1))
        day.put(slice_id, *puts)
    return day
