"""Every field of every type, and every message of the shared ITCH and IEX files, against plain `struct` decoders."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from blackbox_feeds.iex import DEEP10, TOPS16, Iex
from blackbox_feeds.io.statistics import InputStatistics
from blackbox_feeds.itch50 import SCHEMA, Itch50, timestamps_ns

from blackbox.feed.schema.schema import Schema
from tests.feeds.build import IEX_FORMS, ITCH_FORMS, iex_expected, messages_of
from tests.feeds.reference import decode_itch


@pytest.mark.parametrize(
    ("schema", "order", "forms"),
    [(SCHEMA, ">", ITCH_FORMS), (TOPS16, "<", IEX_FORMS), (DEEP10, "<", IEX_FORMS)],
    ids=repr,
)
def test_every_field_is_where_the_specification_says(schema: Schema, order: str, forms: dict[str, str]) -> None:
    chance = random.Random(1)
    for kind, dtype in schema.records.items():
        form = struct.Struct(order + forms[kind])
        payloads = [kind.encode() + chance.randbytes(form.size - 1) for _ in range(20)]
        records = numpy.frombuffer(b"".join(payloads), dtype)
        for name, expected in zip(dtype.names or (), zip(*map(form.unpack, payloads), strict=True), strict=True):
            values: list[Any] = [each.rstrip(b"\0") if isinstance(each, bytes) else each for each in expected]
            found: Any = records[name].tolist()
            if schema is SCHEMA and name == "timestamp":
                values, found = [int.from_bytes(each, "big") for each in expected], timestamps_ns(records).tolist()
            assert found == values, (kind, name)


@pytest.mark.parametrize(
    ("name", "date"),
    [("runk_locate-13-10k.bin", "2020-01-30"), ("jamison_12302019_SNIPPET.NASDAQ_ITCH50", "2019-12-30")],
)
def test_every_message_of_real_itch_files(shared_data: Path, name: str, date: str) -> None:
    path = shared_data / "itch50" / name
    source = Itch50(path, date)
    expected, end = decode_itch(path.read_bytes(), date, "{symbol}.{type}")
    assert messages_of(source) == expected
    assert end == path.stat().st_size
    assert (source.truncated, source.notes) == (None, ())


def packets_of(data: bytes) -> Iterator[bytes]:
    """Yield the UDP payloads of a classic little-endian pcap file of Ethernet, IPv4 and UDP without options."""
    at = 24
    while at + 16 <= len(data):
        captured, original = struct.unpack_from("<II", data, at + 8)
        packet = data[at + 16 : at + 16 + captured]
        if len(packet) < original:
            return  # the last record is cut off
        assert (packet[12:14], packet[14], packet[23]) == (b"\x08\0", 0x45, 17)
        (size,) = struct.unpack_from(">H", packet, 38)
        yield packet[42 : 34 + size]
        at += 16 + captured


def messages_in_packet(packet: bytes) -> Iterator[bytes]:
    at = 40
    for _ in range(struct.unpack_from("<H", packet, 14)[0]):
        (size,) = struct.unpack_from("<H", packet, at)
        yield packet[at + 2 : at + 2 + size]
        at += 2 + size
    assert at == len(packet)


@pytest.mark.parametrize(
    ("name", "schema", "cut", "statistics"),
    [
        (
            "goiex_DEEP10.pcap.gz",
            DEEP10,
            "input ended at byte 22196224 inside the pcap record that starts at byte 22195748",
            InputStatistics(packets=121_314, datagrams=121_314, sessions=1, resets=11),
        ),
        ("goiex_TOPS16.pcapng.gz", TOPS16, None, InputStatistics(packets=13_022, datagrams=13_022, sessions=1)),
    ],
)
def test_every_message_of_real_iex_captures(
    shared_data: Path, name: str, schema: Schema, cut: str | None, statistics: InputStatistics
) -> None:
    path = shared_data / "iex" / name
    source = Iex(path)
    packets = packets_of(gzip.decompress(path.read_bytes()))
    assert messages_of(source) == iex_expected([each for packet in packets for each in messages_in_packet(packet)])
    assert source.schema is schema
    assert source.truncated == (cut and f"{path}: {cut}")
    assert source.statistics() == statistics


def test_breaks_name_trades_by_id_price_and_size() -> None:
    for schema in (TOPS16, DEEP10):
        (fields,), (trade,) = schema.breaks, schema.trades
        assert (fields.message_type, fields.id, fields.price, fields.size) == ("B", "trade_id", "price", "size")
        assert (trade.message_type, trade.id) == ("T", "trade_id")
