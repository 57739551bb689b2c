"""The record layouts of ITCH 5.0 compared with the specification's own table of lengths and offsets."""

from __future__ import annotations

import struct

import numpy
import pyarrow
import pytest
from blackbox_feeds.itch50 import MWCB_PRICE_SCALE, PRICE_SCALE, SCHEMA, timestamps_ns

from tests.feeds.build import ITCH_LENGTHS, ITCH_STOCK_AT, itch


def test_record_sizes_are_the_message_lengths() -> None:
    assert {kind: dtype.itemsize for kind, dtype in SCHEMA.records.items()} == ITCH_LENGTHS


def test_the_stock_has_the_offset_of_the_specification() -> None:
    offsets = {
        kind: dtype.fields["stock"][1]
        for kind, dtype in SCHEMA.records.items()
        if dtype.fields is not None and "stock" in dtype.fields
    }
    assert offsets == ITCH_STOCK_AT


def test_every_message_starts_with_the_same_four_fields() -> None:
    for dtype in SCHEMA.records.values():
        assert dtype.names is not None
        assert dtype.names[:4] == ("message_type", "stock_locate", "tracking_number", "timestamp")


def test_add_order_with_attribution_reads_back() -> None:
    message = struct.pack(
        ">cHH6sQcI8sI4s", b"F", 13, 2, (34_200 * 10**9 + 5).to_bytes(6, "big"), 991, b"B", 300,
        b"MSFT    ", 1_234_500, b"NITE",
    )  # fmt: skip
    record = numpy.frombuffer(message, SCHEMA.dtype("F"))[0]
    assert record["stock_locate"] == 13
    assert record["order_reference_number"] == 991
    assert record["buy_sell_indicator"] == b"B"
    assert record["shares"] == 300
    assert record["stock"].rstrip() == b"MSFT"
    assert record["price"] / PRICE_SCALE == 123.45
    assert record["attribution"] == b"NITE"


def test_replace_and_imbalance_read_back() -> None:
    replace = itch("U")[:11] + struct.pack(">QQII", 5, 6, 700, 80_000)
    record = numpy.frombuffer(replace, SCHEMA.dtype("U"))[0]
    assert [int(record[name]) for name in record.dtype.names[4:]] == [5, 6, 700, 80_000]
    imbalance = itch("I")[:11] + struct.pack(">QQc8sIIIcc", 1, 2, b"B", b"SPY     ", 3, 4, 5, b"O", b"L")
    fields = numpy.frombuffer(imbalance, SCHEMA.dtype("I"))[0].tolist()[4:]
    assert fields == (1, 2, b"B", b"SPY     ", 3, 4, 5, b"O", b"L")


def test_prices_state_their_decimals() -> None:
    assert SCHEMA.dtype("A")["price"].metadata == {"decimals": 4}
    assert SCHEMA.dtype("V")["level_1"].metadata == {"decimals": 8}
    assert (PRICE_SCALE, MWCB_PRICE_SCALE) == (10**4, 10**8)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3)])
def test_timestamps_of_any_shape(shape: tuple[int, ...]) -> None:
    times = [0, 34_200 * 10**9 + 123_456_789, 2**48 - 1]
    column = b"".join(itch("D", ns=ns) for ns in times)
    records = numpy.frombuffer(column, SCHEMA.dtype("D")).reshape(shape)
    for found in (timestamps_ns(records), timestamps_ns(records["timestamp"])):
        assert found.dtype == numpy.int64
        assert found.shape == shape
        assert found.ravel().tolist() == times


def test_arrow_schema_has_native_types_and_scales() -> None:
    arrow = SCHEMA.arrow("A")
    assert arrow.field("price").type == pyarrow.uint32()
    assert arrow.field("price").metadata == {b"decimals": b"4"}
    assert arrow.field("stock").type == pyarrow.string()
    assert arrow.field("timestamp").type == pyarrow.int64()
    assert arrow.field("timestamp").metadata[b"since_midnight"] == b"America/New_York"
    assert arrow.metadata == {b"schema": b"itch50", b"type": b"A"}
