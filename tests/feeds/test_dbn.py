"""DBN: real and generated files compared with Databento's own decoder, record by record, and exact export."""

from __future__ import annotations

import gzip
import itertools
import random
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import blackbox_feeds.io.columns
import blackbox_feeds.io.open_window
import databento_dbn
import numpy
import pyarrow
import pytest
import zstandard
from blackbox_feeds.dbn import PRICE_SCALE, SCHEMA, SCHEMA_TS_OUT, Dbn, export_dbn
from blackbox_feeds.dbn.records import NAMES, TYPED, lengths_of

from blackbox import Recording
from blackbox.archive.export.source_file import export
from blackbox.archive.export.time_order import Messages
from blackbox.errors import ConfigError, JournalError, SourceError
from tests.feeds.build import messages_of
from tests.recorded import recorded

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "esh4-glbx-mdp3-20231224.mbo.dbn.zst": (8_725, b"ESH4.mbo", "mbo"),
    "esh4-glbx-mdp3-20231225.mbo.dbn.zst": (68_792, b"ESH4.mbo", "mbo"),
    "futures_mbp-1_2024-07-01T23-58.dbn.zst": (2_288, b"ESU4.mbp-1", "mbp-1"),
    "futures_trades_2024-07-01T23-58.dbn.zst": (120, b"ESU4.trades", "trades"),
}
METADATA = b"#system.metadata"
AS_IS: Any = databento_dbn.VersionUpgradePolicy.AS_IS
DAY_NS = 86_400 * 10**9
START = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * 10**9
CLASSES: dict[str, Any] = {
    "trades": databento_dbn.TradeMsg,
    "mbp-1": databento_dbn.MBP1Msg,
    "mbp-10": databento_dbn.MBP10Msg,
    "mbo": databento_dbn.MBOMsg,
    "bbo-1s": databento_dbn.BBOMsg,
    "bbo-1m": databento_dbn.BBOMsg,
    "cmbp-1": databento_dbn.CMBP1Msg,
    "cbbo-1s": databento_dbn.CBBOMsg,
    "cbbo-1m": databento_dbn.CBBOMsg,
    "tcbbo": databento_dbn.CMBP1Msg,
    "ohlcv": databento_dbn.OHLCVMsg,
    "ohlcv-1s": databento_dbn.OHLCVMsg,
    "ohlcv-1m": databento_dbn.OHLCVMsg,
    "ohlcv-1h": databento_dbn.OHLCVMsg,
    "ohlcv-1d": databento_dbn.OHLCVMsg,
    "ohlcv-eod": databento_dbn.OHLCVMsg,
    "status": databento_dbn.StatusMsg,
    "definition": databento_dbn.InstrumentDefMsg,
    "imbalance": databento_dbn.ImbalanceMsg,
    "statistics": databento_dbn.StatMsg,
    "symbol-mapping": databento_dbn.SymbolMappingMsg,
    "error": databento_dbn.ErrorMsg,
    "system": databento_dbn.SystemMsg,
}


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


def _time_of(record: Any) -> int:
    """Records of a snapshot have the time of the snapshot; their own is that of an older order."""
    return int(record.ts_recv if int(record.flags) & 1 << 5 else record.ts_event)


@pytest.mark.parametrize("name", FILES)
def test_real_file_agrees_with_databentos_decoder(shared_data: Path, name: str) -> None:
    path = shared_data / "dbn" / name
    count, topic, kind = FILES[name]
    stream = unpacked(path)
    _, records = decoded(stream)
    assert len(records) == count
    source = Dbn(path)
    (head_topic, start, head), *found = messages_of(source)
    assert (head_topic, stream.startswith(head)) == (METADATA, True)
    times = [_time_of(each) for each in records]
    assert start == times[0]
    assert source.truncated is None
    assert [payload for *_, payload in found] == [bytes(each) for each in records]
    assert [ts_event for _, ts_event, _ in found] == times
    assert {each[0] for each in found} == {topic}
    typed = numpy.frombuffer(b"".join(payload for *_, payload in found), source.schema.dtype(kind))
    for field in ("price", "size", "sequence", "ts_recv", "instrument_id", "flags"):
        assert int(typed[field].sum(dtype=object)) == sum(int(getattr(each, field)) for each in records), field
    assert [side.decode() for side in typed["side"].tolist()] == [str(each.side) for each in records]
    assert typed["price"][0] / PRICE_SCALE == records[0].pretty_price


@pytest.mark.parametrize("name", TYPED)
def test_record_layouts_are_databentos(name: str) -> None:
    rtype, dtype = TYPED[name]
    expected = numpy.dtype([(field, kind) for field, kind in CLASSES[name]._dtypes])
    assert dtype.itemsize == CLASSES[name].size_hint
    assert dtype == expected
    told = {field: dict(dtype[field].metadata or {}) for field in dtype.names or ()}
    assert [field for field in told if told[field].get("decimals") == 9] == CLASSES[name]._price_fields
    assert [field for field in told if told[field].get("utc") == "ns"] == CLASSES[name]._timestamp_fields
    assert SCHEMA.dtype(name) == SCHEMA.dtype(chr(rtype)) == dtype
    longer = SCHEMA_TS_OUT.dtype(name)
    assert (longer.itemsize, (longer.names or ())[-1]) == (dtype.itemsize + 8, "ts_out")


def test_rtypes_are_databentos() -> None:
    ours = {name.upper().replace("-", "_"): rtype for rtype, name in NAMES.items()}
    theirs = {str(each.name): int(each.value) for each in databento_dbn.RType.variants()}  # type: ignore[attr-defined]
    other = {"TRADES": "MBP_0", "DEFINITION": "INSTRUMENT_DEF", "OHLCV": "OHLCV_DEPRECATED"}
    assert {other.get(name, name): rtype for name, rtype in ours.items()}.items() <= theirs.items()


def test_arrow_schema_by_name() -> None:
    arrow = SCHEMA.arrow("mbo")
    assert arrow.field("price").type == pyarrow.int64()
    assert arrow.field("price").metadata[b"decimals"] == b"9"
    assert arrow.field("ts_recv").type == pyarrow.timestamp("ns", tz="UTC")
    with pytest.raises(ConfigError, match="message type was 'mbq', expected one of: trades mbp-1 mbp-10 mbo"):
        SCHEMA.dtype("mbq")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_every_version_and_type(tmp_path: Path, version: int, pack: Any) -> None:
    lengths = lengths_of(version)
    records = [record(rtype, size=lengths[rtype]) for rtype in lengths if NAMES[rtype] != "symbol-mapping"]
    head = metadata_of(version, schema=None)
    stream = head + b"".join(records)
    metadata, expected = decoded(stream)
    assert (metadata.version, [bytes(each) for each in expected]) == (version, records)
    source = source_of(tmp_path / "any", pack(stream))
    found = messages_of(source)
    assert source.truncated is None
    typed = {chr(payload[1]): len(payload) for *_, payload in found[1:]}
    assert typed == {kind: SCHEMA.dtype(kind).itemsize for kind in typed}
    assert {topic for topic, *_ in found[1:]} == {b"7." + NAMES[each[1]].encode() for each in records}


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


def test_requested_ids_get_the_delivered_symbols(tmp_path: Path) -> None:
    head = metadata_of(
        mappings={"7": [(date(2024, 1, 1), date(2024, 1, 2), "ESH4")]},
        stype_in=databento_dbn.SType.INSTRUMENT_ID,
        stype_out=databento_dbn.SType.RAW_SYMBOL,
    )
    source = source_of(tmp_path / "a.dbn", head + record() + record(instrument=8))
    assert [topic for topic, *_ in messages_of(source)[1:]] == [b"ESH4.mbo", b"8.mbo"]


def test_a_mapping_may_have_no_end(tmp_path: Path) -> None:
    head = metadata_of(mappings={"ESH4": [(date(1600, 1, 1), date(9999, 12, 31), "7")]})
    source = source_of(tmp_path / "a.dbn", head + record())
    assert messages_of(source)[1][0] == b"ESH4.mbo"


def test_tbbo_is_called_so(tmp_path: Path) -> None:
    source = source_of(tmp_path / "a.dbn", metadata_of(schema=databento_dbn.Schema.TBBO) + record(0x01))
    assert messages_of(source)[1][0] == b"7.tbbo"


def test_send_times_at_the_end_of_records(tmp_path: Path) -> None:
    records = [record(ts_out=START + number) for number in range(3)]
    stream = metadata_of(ts_out=True) + b"".join(records)
    _, expected = decoded(stream)
    source = source_of(tmp_path / "a.dbn", stream)
    assert source.schema is SCHEMA_TS_OUT
    assert Dbn(tmp_path / "a.dbn").schema.schema_id == 7
    payloads = [payload for *_, payload in messages_of(source)[1:]]
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
    open_window = blackbox_feeds.io.open_window.open_window
    monkeypatch.setattr("blackbox_feeds.dbn.source.open_window", lambda path, expected: open_window(path, window_bytes))
    source = source_of(tmp_path / "a.dbn.gz", gzip.compress(stream))
    assert b"".join(payload for *_, payload in messages_of(source)) == stream
    assert source.truncated is None


# Back to DBN


def test_a_published_file_comes_out_byte_for_byte(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "dbn/esh4-glbx-mdp3-20231224.mbo.dbn.zst"
    recording = recorded(tmp_path, lambda: Dbn(path), slices=1)
    assert export(recording, tmp_path / "day.dbn").messages == 8_726
    export(recording, tmp_path / "day.dbn.zst")
    stream = unpacked(path)
    assert (tmp_path / "day.dbn").read_bytes() == stream
    assert unpacked(tmp_path / "day.dbn.zst") == stream
    assert decoded(stream)[0] == decoded((tmp_path / "day.dbn").read_bytes())[0]
    orders = recording.to_arrow(message_type="mbo")
    assert orders.num_rows == 8_725
    assert orders.column("price").to_pylist()[:1] == [4_799.0]
    (batch,) = itertools.islice(recording.batches(b"ESH4."), 1)
    assert batch.records("mbo")["order_id"][0] == 6_412_777_162_812
    assert len(batch.indices("mbo")) == len(batch)


def test_records_of_several_slices_are_exported_after_their_metadata(shared_data: Path, tmp_path: Path) -> None:
    days = date(2024, 1, 1), date(2024, 1, 3)
    head = metadata_of(mappings={f"S{number}": [(*days, str(number))] for number in range(1, 40)})
    records = [record(instrument=1 + k % 39, ts_event=START - 10**12 + k) for k in range(2_000)]
    path = tmp_path / "a.dbn"
    path.write_bytes(head + b"".join(records))
    recording = recorded(tmp_path, lambda: Dbn(path), slices=3)
    export(recording, tmp_path / "day.dbn")
    assert (tmp_path / "day.dbn").read_bytes() == head + b"".join(records)


def test_a_time_range_is_exported_with_the_metadata(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "dbn/futures_mbp-1_2024-07-01T23-58.dbn.zst"
    recording = recorded(tmp_path, lambda: Dbn(path), slices=1)
    metadata, records = decoded(unpacked(path))
    start, stop = records[700].ts_event, records[1_500].ts_event
    done = export(recording, tmp_path / "part.dbn", start, stop)
    found, kept = decoded((tmp_path / "part.dbn").read_bytes())
    assert found == metadata
    assert [bytes(each) for each in kept] == [bytes(each) for each in records if start <= each.ts_event < stop]
    assert done.messages == len(kept)


def test_the_same_file_published_twice_has_one_metadata(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "dbn/futures_trades_2024-07-01T23-58.dbn.zst"
    recording = recorded(tmp_path, lambda: Dbn(path), slices=1, runs=2)
    export(recording, tmp_path / "day.dbn")
    stream = unpacked(path)
    head = messages_of(Dbn(path))[0][2]
    assert (tmp_path / "day.dbn").read_bytes() == stream + stream[len(head) :]


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


def test_a_recording_without_metadata_is_not_exported(shared_data: Path, tmp_path: Path) -> None:
    class Headless(Dbn):
        def chunks(self) -> Any:
            return itertools.islice(super().chunks(), 1, None)

    path = shared_data / "dbn/futures_trades_2024-07-01T23-58.dbn.zst"
    recording: Recording = recorded(tmp_path, lambda: Headless(path), slices=1)
    with pytest.raises(SourceError, match="no DBN metadata was recorded"):
        export(recording, tmp_path / "day.dbn")
    assert not (tmp_path / "day.dbn").exists()
    (tmp_path / "there").touch()
    with pytest.raises(JournalError, match="there exists"):
        export(recording, tmp_path / "there")


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


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
@pytest.mark.parametrize("many", [1, 100_000])
def test_joined_streams_end_at_the_second_and_the_rest_is_reported(
    tmp_path: Path, pack: Callable[[bytes], bytes], many: int
) -> None:
    stream = metadata_of() + record() * many
    source = source_of(tmp_path / "a.dbn", pack(stream) + pack(stream) if pack is not bytes else stream * 2)
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
        assert [payload for *_, payload in messages_of(source)] == [head, *records][:count]
        assert (source.truncated is None) == (size in ends)
        if source.truncated is not None:
            assert f"input ended at byte {size} inside the record that starts at byte" in source.truncated


def test_a_cut_or_corrupt_zst_file_is_reported(shared_data: Path, tmp_path: Path) -> None:
    packed = (shared_data / "dbn/esh4-glbx-mdp3-20231225.mbo.dbn.zst").read_bytes()
    path = tmp_path / "a.dbn.zst"
    source = source_of(path, packed[: len(packed) // 2])
    assert 1 < len(messages_of(source)) < 68_793
    assert source.truncated is not None
    assert source.truncated.startswith(f"{path}: input ended at byte ")
    assert f"zstd data ends early, at packed byte {len(packed) // 2}" in source.truncated
    damaged = bytearray(packed)
    damaged[len(packed) // 2 : len(packed) // 2 + 50] = bytes(50)
    source = source_of(path, bytes(damaged))
    assert 1 <= len(messages_of(source)) <= 68_793
    assert source.truncated is not None


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


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="none: cannot be read: No such file or directory, expected a DBN file"):
        messages_of(Dbn(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"expected text with \{symbol\}, \{type\}$"):
        Dbn("a.dbn", topic="{locate}")
    assert repr(Dbn("a.dbn")) == "<Dbn a.dbn>"


def test_bit_flips_never_crash(tmp_path: Path) -> None:
    head = metadata_of()
    stream = head + b"".join(record(rtype) for rtype in (0xA0, 0x00, 0x01, 0x21, 0x0A, 0xA0))
    chance = random.Random(8)
    for _ in range(400):
        flipped = bytearray(stream)
        bit = chance.randrange(8 * len(head), 8 * len(stream))
        flipped[bit // 8] ^= 1 << bit % 8
        found = messages_of(source_of(tmp_path / "a.dbn", bytes(flipped)))
        assert 1 <= len(found) <= 7
        kept = b"".join(payload for *_, payload in found)
        assert sorted(kept) == sorted(flipped[: len(kept)])  # a record that became a bar is delivered later


def test_a_missing_databento_library_is_named(shared_data: Path) -> None:
    path = shared_data / "dbn/futures_trades_2024-07-01T23-58.dbn.zst"
    script = (
        "import sys; sys.modules['databento_dbn'] = None\n"
        "from blackbox.feed.schema import load_schema\n"
        "from blackbox.feed.source import open_source\n"
        "assert load_schema('dbn').dtype('mbo').itemsize == 56\n"
        f"next(open_source('dbn:{path}').chunks())\n"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "ConfigError: reading DBN needs databento-dbn, which is not installed: pip install 'blackbox-md[dbn]'" in (
        run.stderr
    )
