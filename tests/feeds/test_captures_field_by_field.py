"""Every field of every message of the shared ITCH and IEX files, against plain `struct` decoders."""

from __future__ import annotations

import gzip
import struct
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy
import pytest
from blackbox_feeds.iex import DEEP10, TOPS16, Iex
from blackbox_feeds.itch50 import SCHEMA, Itch50, timestamps_ns

from blackbox.feed.schema import Schema
from blackbox.feed.source import Source
from blackbox.feed.symbol import SymbolRule
from tests.feeds.build import framed, itch

# By type: the fields after type, locate, tracking number and 6-byte time, as in the specification.
ITCH = {
    "S": "c", "R": "8sccIcc2scccccIc", "H": "8scc4s", "Y": "8sc", "L": "4s8sccc", "V": "QQQ", "W": "c",
    "K": "8sIcI", "J": "8sIIII", "h": "8scc", "A": "QcI8sI", "F": "QcI8sI4s", "E": "QIQ", "C": "QIQcI",
    "X": "QI", "D": "Q", "U": "QQII", "P": "QcI8sIQ", "Q": "Q8sIQc", "B": "Q", "I": "QQc8sIIIcc",
    "N": "8sc", "O": "8scIIIQII",
}  # fmt: skip
STOCK_FIELD = {
    "R": 4, "H": 4, "Y": 4, "L": 5, "K": 4, "J": 4, "h": 4, "A": 7, "F": 7, "P": 7, "Q": 5, "I": 7, "N": 4, "O": 4,
}  # fmt: skip
IEX = {
    "S": "ccq", "D": "cBq8sIqB", "H": "ccq8s4s", "I": "ccq8s", "O": "ccq8s", "P": "ccq8sc", "E": "ccq8s",
    "Q": "cBq8sIqqI", "8": "cBq8sIq", "5": "cBq8sIq", "T": "cBq8sIqq", "B": "cBq8sIqq", "X": "ccq8sq",
    "A": "ccq8sIqqIcBIqqqq",
}  # fmt: skip

Row = tuple[Any, ...]


class Read(NamedTuple):
    """Messages of an input, in order."""

    topics: list[str]
    times: list[int]
    """ns since 1970, UTC."""
    rows: dict[str, list[Row]]
    """Fields of each message, by type."""
    types: str


def read_itch(data: bytes, date: str) -> Read:
    """Decode framed ITCH."""
    local = datetime.fromisoformat(date).replace(tzinfo=ZoneInfo("America/New_York"))
    midnight_ns = int(local.timestamp()) * 10**9
    forms = {kind: struct.Struct(">cHH6s" + fields) for kind, fields in ITCH.items()}
    symbols: dict[int, str] = {}
    read = Read([], [], {}, "")
    types = []
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">H", data, at)
        kind = chr(data[at + 2])
        assert forms[kind].size == size
        kind_byte, locate, tracking, since, *rest = forms[kind].unpack_from(data, at + 2)
        row = (kind_byte, locate, tracking, int.from_bytes(since, "big"), *rest)
        if kind in STOCK_FIELD:
            symbols[locate] = row[STOCK_FIELD[kind]].decode("ascii").rstrip(" ")
        symbol = "#system" if kind in "SVW" else symbols.get(locate) or f"#{locate}"
        read.topics.append(f"{symbol}.{kind}")
        read.times.append(midnight_ns + row[3])
        read.rows.setdefault(kind, []).append(row)
        types.append(kind)
        at += 2 + size
    return read._replace(types="".join(types))


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


def read_iex(data: bytes) -> Read:
    """Decode IEX-TP."""
    forms = {kind: struct.Struct("<" + fields) for kind, fields in IEX.items()}
    read = Read([], [], {}, "")
    types = []
    for packet in packets_of(data):
        at = 40
        for _ in range(struct.unpack_from("<H", packet, 14)[0]):
            (size,) = struct.unpack_from("<H", packet, at)
            kind = chr(packet[at + 2])
            assert forms[kind].size == size
            row = forms[kind].unpack_from(packet, at + 2)
            symbol = "#system" if kind == "S" else row[3].decode("ascii").rstrip(" ")
            read.topics.append(f"{symbol}.{kind}")
            read.times.append(row[2])
            read.rows.setdefault(kind, []).append(row)
            types.append(kind)
            at += 2 + size
        assert at == len(packet)
    return read._replace(types="".join(types))


def check(source: Source, schema: Schema, read: Read) -> None:
    """Compare everything that a source delivers with an independent decoder."""
    topics: list[str] = []
    times: list[int] = []
    kinds = []
    payloads: dict[str, list[numpy.ndarray[Any, Any]]] = {kind: [] for kind in schema.records}
    for chunk in source.chunks():
        assert chunk.gaps == ()
        names = [topic.decode() for topic in chunk.topics]
        topics += [names[place] for place in chunk.topic_index.tolist()]
        times += chunk.ts_event.tolist()
        first = chunk.payloads[chunk.starts]
        kinds.append(first)
        for kind, dtype in schema.records.items():
            starts = chunk.starts[first == ord(kind)]
            assert set(chunk.lengths[first == ord(kind)].tolist()) <= {dtype.itemsize}
            payloads[kind].append(chunk.payloads[starts[:, None] + numpy.arange(dtype.itemsize)])
    assert numpy.concatenate(kinds).tobytes().decode() == read.types
    assert topics == read.topics
    assert times == read.times
    rule = SymbolRule()
    symbols = {rule.symbol_of(topic.encode()).decode() for topic in set(topics)}
    assert symbols == {topic[:-2] for topic in set(read.topics)}
    for kind, parts in payloads.items():
        records = numpy.concatenate(parts).view(schema.dtype(kind))[:, 0]
        rows = read.rows.get(kind, [])
        assert len(records) == len(rows)
        columns = zip(*rows, strict=True) if rows else ()
        for name, expected in zip(schema.dtype(kind).names or () if rows else (), columns, strict=True):
            since_midnight = name == "timestamp" and schema is SCHEMA
            found = timestamps_ns(records).tolist() if since_midnight else records[name].tolist()
            texts = [text.rstrip(b"\0") for text in expected] if isinstance(expected[0], bytes) else list(expected)
            assert found == texts, (kind, name)


@pytest.mark.parametrize(
    ("name", "date"),
    [
        ("runk_locate-13-10k.bin", "2020-01-30"),
        ("jamison_12302019_SNIPPET.NASDAQ_ITCH50", "2019-12-30"),
    ],
)
def test_itch_files_field_by_field(shared_data: Path, name: str, date: str) -> None:
    path = shared_data / "itch50" / name
    check(Itch50(path, date), SCHEMA, read_itch(path.read_bytes(), date))


@pytest.mark.parametrize(("name", "schema"), [("goiex_DEEP10.pcap.gz", DEEP10), ("goiex_TOPS16.pcapng.gz", TOPS16)])
def test_iex_captures_field_by_field(shared_data: Path, name: str, schema: Schema) -> None:
    path = shared_data / "iex" / name
    check(Iex(path), schema, read_iex(unpacked(path)))


def unpacked(path: Path) -> bytes:
    with gzip.open(path) as file:
        return file.read()


def test_every_itch_type_field_by_field(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    data = framed(itch(kind, locate, 10**9 * locate, f"S{locate}", b"A") for locate in (1, 2) for kind in ITCH)
    path.write_bytes(data)
    check(Itch50(path, "2019-12-30"), SCHEMA, read_itch(data, "2019-12-30"))


@pytest.mark.parametrize("date", ["2019-03-10", "2019-11-03", "2019-07-04", "2020-02-29"])
@pytest.mark.parametrize("hours", [0, 1, 2, 3, 9, 23, 25])
def test_itch_times_count_from_midnight_on_days_when_clocks_change(tmp_path: Path, date: str, hours: int) -> None:
    path = tmp_path / "day.itch"
    data = framed([itch("D", ns=hours * 3_600 * 10**9 + 1)])
    path.write_bytes(data)
    (chunk,) = Itch50(path, date).chunks()
    assert chunk.ts_event.tolist() == read_itch(data, date).times


@pytest.mark.parametrize(
    ("name", "breaks", "shares"), [("goiex_DEEP10.pcap.gz", 73, 19_483), ("goiex_TOPS16.pcapng.gz", 3, 8_570)]
)
def test_breaks_name_trades_by_symbol_id_price_and_size(shared_data: Path, name: str, breaks: int, shares: int) -> None:
    path = shared_data / "iex" / name
    read = read_iex(unpacked(path))
    broken = read.rows["B"]
    assert (len(broken), sum(row[4] for row in broken)) == (breaks, shares)
    (fields,) = Iex(path).schema.breaks
    (trade,) = Iex(path).schema.trades
    assert (fields.message_type, fields.id, fields.price, fields.size) == ("B", "trade_id", "price", "size")
    assert (trade.message_type, trade.id) == ("T", "trade_id")


def test_a_side_without_interest_has_neither_price_nor_size(shared_data: Path) -> None:
    quotes = read_iex(unpacked(shared_data / "iex/goiex_TOPS16.pcapng.gz")).rows["Q"]
    sides = Counter((price == 0, size == 0) for row in quotes for size, price in ((row[4], row[5]), (row[7], row[6])))
    assert set(sides) == {(True, True), (False, False)}
    fields = TOPS16.dtype("Q")
    assert [dict(fields[name].metadata or {}).get("absent") for name in ("bid_price", "ask_price")] == [0, 0]
