"""DBN: generated files compared with Databento's own decoder, record by record, and exact export."""

from __future__ import annotations

import gzip
import itertools
import random
import re
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import blackbox_feeds.io.columns
import databento_dbn
import numpy
import pytest
import zstandard
from blackbox_feeds.dbn import PRICE_SCALE, SCHEMA, SCHEMA_TS_OUT, Dbn, export_dbn
from blackbox_feeds.dbn.records import NAMES, TYPED, lengths_of

from blackbox.archive.export.source_file import export
from blackbox.archive.export.time_order import Messages
from blackbox.errors import ConfigError, SourceError
from tests.feeds.build import messages_of, payloads_of, use_windows
from tests.recorded import recorded

METADATA = b"#system.metadata"
AS_IS: Any = databento_dbn.VersionUpgradePolicy.AS_IS
DAY_NS = 86_400 * 10**9
START = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * 10**9
CLASSES: dict[str, Any] = {
    "trades": databento_dbn.TradeMsg, "mbp-1": databento_dbn.MBP1Msg, "mbp-10": databento_dbn.MBP10Msg,
    "mbo": databento_dbn.MBOMsg, "cmbp-1": databento_dbn.CMBP1Msg, "tcbbo": databento_dbn.CMBP1Msg,
    **dict.fromkeys(("bbo-1s", "bbo-1m"), databento_dbn.BBOMsg),
    **dict.fromkeys(("cbbo-1s", "cbbo-1m"), databento_dbn.CBBOMsg),
    **dict.fromkeys(("ohlcv", "ohlcv-1s", "ohlcv-1m", "ohlcv-1h", "ohlcv-1d", "ohlcv-eod"), databento_dbn.OHLCVMsg),
    "status": databento_dbn.StatusMsg, "definition": databento_dbn.InstrumentDefMsg,
    "imbalance": databento_dbn.ImbalanceMsg, "statistics": databento_dbn.StatMsg,
    "symbol-mapping": databento_dbn.SymbolMappingMsg, "error": databento_dbn.ErrorMsg,
    "system": databento_dbn.SystemMsg,
}  # fmt: skip


def unpacked(path: Path) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()


def decoded(stream: bytes) -> tuple[Any, list[Any]]:
    """Return the metadata and the records, by Databento's own decoder."""
    decoder = databento_dbn.DBNDecoder(upgrade_policy=AS_IS)
    decoder.write(stream)
    metadata, *records = decoder.decode()
    return metadata, records


Interval = tuple[date, date, str]


def metadata_of(version: int = 3, mappings: Mapping[str, Sequence[Interval]] | None = None, **more: Any) -> bytes:
    told = [
        SimpleNamespace(
            raw_symbol=name,
            intervals=[SimpleNamespace(start_date=a, end_date=b, symbol=symbol) for a, b, symbol in intervals],
        )
        for name, intervals in (mappings or {}).items()
    ]
    settings: dict[str, Any] = {
        "dataset": "GLBX.MDP3",
        "start": START,
        "stype_in": databento_dbn.SType.RAW_SYMBOL,
        "stype_out": databento_dbn.SType.INSTRUMENT_ID,
        "schema": databento_dbn.Schema.MBO,
        "symbols": list(mappings or {}),
        "mappings": told,
        "version": version,
    } | more
    return databento_dbn.Metadata(**settings).encode()


def record(
    rtype: int = 0xA0,
    instrument: int = 7,
    ts_event: int = START,
    ts_recv: int | None = None,
    size: int = 0,
    ts_out: int | None = None,
) -> bytes:
    """Return a record of a type, filled with the letter A, which is no flag; `ts_recv` where it has one."""
    size = size or lengths_of(3)[rtype]
    appended = b"" if ts_out is None else struct.pack("<Q", ts_out)
    head = struct.pack("<BBHIQ", (size + len(appended)) // 4, rtype, 1, instrument, ts_event)
    body = bytearray(head + b"A" * (size - len(head)))
    name = NAMES[rtype]
    if "ts_recv" in (TYPED[name][1].names or ()):
        fields: Any = TYPED[name][1].fields
        struct.pack_into("<Q", body, fields["ts_recv"][1], ts_event if ts_recv is None else ts_recv)
    return bytes(body) + appended


def source_of(path: Path, stream: bytes, **options: Any) -> Dbn:
    path.write_bytes(stream)
    return Dbn(path, **options)


def test_record_layouts_are_databentos() -> None:
    for name, (rtype, dtype) in TYPED.items():
        theirs = CLASSES[name]
        assert dtype.itemsize == theirs.size_hint
        assert dtype == numpy.dtype([(field, kind) for field, kind in theirs._dtypes])
        told = {field: dict(dtype[field].metadata or {}) for field in dtype.names or ()}
        assert [field for field in told if told[field].get("decimals") == 9] == theirs._price_fields
        assert [field for field in told if told[field].get("utc") == "ns"] == theirs._timestamp_fields
        assert SCHEMA.dtype(name) == SCHEMA.dtype(chr(rtype)) == dtype
        longer = SCHEMA_TS_OUT.dtype(name)
        assert (longer.itemsize, (longer.names or ())[-1]) == (dtype.itemsize + 8, "ts_out")
    assert PRICE_SCALE == 10**9


def test_rtypes_are_databentos() -> None:
    ours = {name.upper().replace("-", "_"): rtype for rtype, name in NAMES.items()}
    theirs = {str(each.name): int(each.value) for each in databento_dbn.RType.variants()}  # type: ignore[attr-defined]
    other = {"TRADES": "MBP_0", "DEFINITION": "INSTRUMENT_DEF", "OHLCV": "OHLCV_DEPRECATED"}
    assert {other.get(name, name): rtype for name, rtype in ours.items()}.items() <= theirs.items()


def test_topics_follow_the_metadata(tmp_path: Path) -> None:
    days = [date(2024, 1, day) for day in range(1, 6)]
    mappings = {
        "ESH4": [(days[0], days[2], "7")],
        "ESM4": [(days[2], days[4], "7"), (days[0], days[2], "8")],
        "ES.c.0": [(days[0], days[4], "9")],
        "GONE": [(days[0], days[4], "")],
    }
    asked = [(7, 0), (8, 0), (9, 0), (7, 1), (7, 2), (8, 2), (7, 3), (7, 4), (7, -1), (1, 0), (0, 0), (7, 0)]
    records = [record(instrument=number, ts_event=START + day * DAY_NS) for number, day in asked]
    names = [
        "ESH4", "ESM4", "ES.c.0", "ESH4", "ESM4", "8", "ESM4", "7", "7", "1", "#system", "ESH4",
    ]  # fmt: skip
    source = source_of(tmp_path / "a.dbn", metadata_of(mappings=mappings) + b"".join(records))
    assert [topic.decode() for topic, *_ in messages_of(source)[1:]] == [f"{name}.mbo" for name in names]
    # The day is that of ts_recv: the orders of a snapshot are older.
    snapshot = record(instrument=7, ts_event=START - 300 * DAY_NS, ts_recv=START + 5)
    source = source_of(tmp_path / "b.dbn", metadata_of(mappings=mappings) + snapshot)
    assert messages_of(source)[1][:2] == (b"ESH4.mbo", START - 300 * DAY_NS)
    for template, topics in (
        ("{type}/{symbol}", {b"mbo/ESH4", b"metadata/#system"}),
        ("{symbol}", {b"ESH4", b"#system"}),
        ("{type}", {b"mbo", b"metadata"}),
        ("x", {b"x"}),
    ):
        found = messages_of(Dbn(tmp_path / "b.dbn", topic=template))
        assert ({topic for topic, *_ in found}, len(found)) == (topics, 2)


def test_other_forms_of_names(tmp_path: Path) -> None:
    """Requested ids have the delivered symbols, a mapping may have no end, and schema TBBO names its records."""
    by_id = metadata_of(
        mappings={"7": [(date(2024, 1, 1), date(2024, 1, 2), "ESH4")]},
        stype_in=databento_dbn.SType.INSTRUMENT_ID,
        stype_out=databento_dbn.SType.RAW_SYMBOL,
    )
    endless = metadata_of(mappings={"ESH4": [(date(1600, 1, 1), date(9999, 12, 31), "7")]})
    for stream, topics in (
        (by_id + record() + record(instrument=8), [b"ESH4.mbo", b"8.mbo"]),
        (endless + record(), [b"ESH4.mbo"]),
        (metadata_of(schema=databento_dbn.Schema.TBBO) + record(0x01), [b"7.tbbo"]),
    ):
        assert [topic for topic, *_ in messages_of(source_of(tmp_path / "a.dbn", stream))[1:]] == topics


def test_send_times_at_the_end_of_records(tmp_path: Path) -> None:
    records = [record(ts_out=START + number) for number in range(3)]
    stream = metadata_of(ts_out=True) + b"".join(records)
    _, expected = decoded(stream)
    source = source_of(tmp_path / "a.dbn", stream)
    assert source.schema is SCHEMA_TS_OUT
    assert Dbn(tmp_path / "a.dbn").schema.schema_id == 7
    payloads = payloads_of(source)[1:]
    assert payloads == records
    typed = numpy.frombuffer(b"".join(payloads), SCHEMA_TS_OUT.dtype("mbo"))
    assert typed["ts_out"].tolist() == [each.ts_out for each in expected] == [START + number for number in range(3)]


def test_more_topics_than_the_first_table_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", 50)
    records = [record(instrument=1 + number % 400) for number in range(1_000)]
    source = source_of(tmp_path / "a.dbn", metadata_of() + b"".join(records))
    found = messages_of(source)
    assert [payload for *_, payload in found[1:]] == records
    assert [topic for topic, *_ in found[1:]] == [b"%d.mbo" % (1 + number % 400) for number in range(1_000)]


@pytest.mark.parametrize("window_bytes", [1, 57, 300])
def test_records_at_the_edge_of_a_window(tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(rtype) for rtype in (0xA0, 0x0A, 0x00, 0x01)]
    stream = metadata_of() + b"".join(records)
    use_windows(monkeypatch, "dbn", window_bytes)
    source = source_of(tmp_path / "a.dbn.gz", gzip.compress(stream))
    assert b"".join(payloads_of(source)) == stream
    assert source.truncated is None


# Back to DBN


def test_a_published_file_comes_out_byte_for_byte(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "dbn/futures_mbp-1_2024-07-01T23-58.dbn.zst"
    recording = recorded(tmp_path, lambda: Dbn(path), slices=1)
    stream = unpacked(path)
    metadata, records = decoded(stream)
    assert export(recording, tmp_path / "day.dbn").messages == 1 + len(records)
    assert (tmp_path / "day.dbn").read_bytes() == stream
    export(recording, tmp_path / "day.dbn.zst")
    assert unpacked(tmp_path / "day.dbn.zst") == stream
    start, stop = records[700].ts_event, records[1_500].ts_event
    done = export(recording, tmp_path / "part.dbn", start, stop)
    found, kept = decoded((tmp_path / "part.dbn").read_bytes())
    assert found == metadata
    assert [bytes(each) for each in kept] == [bytes(each) for each in records if start <= each.ts_event < stop]
    assert done.messages == len(kept)


def test_records_of_several_slices_are_exported_after_their_metadata(tmp_path: Path) -> None:
    days = date(2024, 1, 1), date(2024, 1, 3)
    head = metadata_of(mappings={f"S{number}": [(*days, str(number))] for number in range(1, 40)})
    records = [record(instrument=1 + k % 39, ts_event=START - 10**12 + k) for k in range(2_000)]
    path = tmp_path / "a.dbn"
    path.write_bytes(head + b"".join(records))
    export(recorded(tmp_path, lambda: Dbn(path), slices=3), tmp_path / "day.dbn")
    assert (tmp_path / "day.dbn").read_bytes() == head + b"".join(records)


def part_of(*payloads: bytes) -> Messages:
    offsets = numpy.cumsum([0, *map(len, payloads)])
    return Messages(numpy.frombuffer(b"".join(payloads), numpy.uint8), offsets, numpy.zeros(len(payloads), "i8"))


def test_metadata_at_any_position() -> None:
    head, one, two = metadata_of(), record(), record(instrument=8)

    def exported(*parts: Messages) -> bytes:
        return b"".join(piece.tobytes() for piece in export_dbn(parts))

    assert exported(part_of(head)) == head
    assert exported() == b""
    assert exported(part_of(head), part_of(), part_of(head, one, head, two, head)) == head + one + two
    assert exported(part_of(head, one), part_of(head), part_of(b"", two)) == head + one + two
    with pytest.raises(SourceError, match="no DBN metadata was recorded, expected it as the first message"):
        exported(part_of(one))
    with pytest.raises(SourceError, match="the metadata of several DBN files was recorded, expected one"):
        exported(part_of(head, one), part_of(one, metadata_of(2)))


# Damage


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"\x0e\x99" + bytes(54), r"its rtype was 0x99, expected one of: 0x00 \(trades\), 0x01 \(mbp-1\), 0x0a"),
        (b"\x0e\x42" + bytes(54), "its rtype was 0x42, expected one of: "),
        (b"\x0d\xa0" + bytes(54), "its length was 52, expected 56 for mbo"),
        (b"\x00\xa0" + bytes(54), "its length was 0, expected 56 for mbo"),
        (b"\x10\x13" + bytes(54), "its length was 64, expected 520 for definition in version 3"),
        (record(ts_out=5), "its length was 64, expected 56 for mbo"),
    ],
)
def test_a_bad_record_stops_and_its_position_is_reported(tmp_path: Path, bad: bytes, words: str) -> None:
    head = metadata_of()
    for pack in (bytes, gzip.compress):
        path = tmp_path / "a.dbn"
        source = source_of(path, pack(head + record() + bad + record()))
        assert len(messages_of(source)) == 2
        assert source.truncated is not None
        place = len(head) + 56
        assert re.match(rf"{re.escape(str(path))}: no valid record starts at byte {place}: {words}", source.truncated)


@pytest.mark.parametrize(
    ("pack", "many"), [(bytes, 1), (gzip.compress, 1), (zstandard.compress, 1), (zstandard.compress, 100_000)]
)
def test_joined_streams_end_at_the_second_and_the_rest_is_reported(
    tmp_path: Path, pack: Callable[[bytes], bytes], many: int
) -> None:
    stream = metadata_of() + record() * many
    source = source_of(tmp_path / "a.dbn", pack(stream) + pack(stream))
    assert len(messages_of(source)) == 1 + many
    assert source.truncated == (
        f"{tmp_path / 'a.dbn'}: another DBN stream starts at byte {len(stream)}, and its {len(stream):,} bytes are not "
        "read: files were joined, expected one: split them there"
    )


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    head = metadata_of()
    records = [record(), record(0x00), record(0x01)]
    stream = head + b"".join(records)
    ends = list(itertools.accumulate(map(len, records), initial=len(head)))
    path = tmp_path / "a.dbn"
    for size in range(len(stream) + 1):
        source = source_of(path, stream[:size])
        if size < len(head):
            with pytest.raises(SourceError, match=r"a\.dbn: "):
                messages_of(source)
            continue
        count = sum(end <= size for end in ends)
        assert payloads_of(source) == [head, *records][:count]
        assert (source.truncated is None) == (size in ends)
        if source.truncated is not None:
            assert f"input ended at byte {size} inside the record that starts at byte" in source.truncated


def test_a_cut_zst_file_is_reported(tmp_path: Path) -> None:
    chance = random.Random(1)
    records = [record(ts_event=START + chance.randrange(DAY_NS)) for _ in range(30_000)]
    packed = zstandard.compress(metadata_of() + b"".join(records))
    source = source_of(tmp_path / "a.dbn.zst", packed[: len(packed) // 2])
    found = payloads_of(source)[1:]
    assert 0 < len(found) < len(records)
    assert found == records[: len(found)]
    assert (source.truncated or "").startswith(f"{source.path}: input ended at byte ")
    assert f"zstd data ends early, at packed byte {len(packed) // 2}" in (source.truncated or "")


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"", "the first 3 bytes were b'', expected b'DBN', those of DBN"),
        (b"some text", "the first 3 bytes were b'som', expected b'DBN'"),
        (b"DBN\x01", "input ended at byte 4 inside the metadata that starts at byte 0"),
        (b"DBN\x04" + bytes(200), "DBN version was 4, expected 1 to 3"),
        (b"DBN\x01\xff\xff\xff\xff", "DBN metadata had 4294967303 bytes, expected at most 16777216"),
        (b"DBN\x01\x40\0\0\0" + bytes(64), "its DBN metadata cannot be decoded: "),
        (b"DBN\x01\xa4\0\0\0" + b"\xff" * 164, "its DBN metadata cannot be decoded: "),
    ],
)
def test_a_file_of_another_format_is_one_clear_error(tmp_path: Path, stream: bytes, words: str) -> None:
    for ask in (messages_of, lambda source: source.schema):
        with pytest.raises(SourceError, match=words):
            ask(source_of(tmp_path / "a.dbn", stream))


def test_a_missing_databento_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(tmp_path / "a.dbn", metadata_of() + record())
    monkeypatch.setitem(sys.modules, "databento_dbn", None)
    told = r"reading DBN needs databento-dbn, which is not installed: pip install 'blackbox-md\[dbn\]'"
    with pytest.raises(ConfigError, match=told):
        messages_of(source)
