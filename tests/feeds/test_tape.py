"""Tape rows: real files compared with the csv module and pandas, merged, and exported byte for byte."""

from __future__ import annotations

import csv
import gzip
import io
import random
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import blackbox_feeds.tape.source
import numpy
import pandas
import pyarrow
import pytest
import zstandard
from blackbox_feeds.tape import PRICE_SCALE, SCHEMA, Tape
from blackbox_feeds.tape.records import COLUMNS

from blackbox.archive.export.source_file import export
from blackbox.errors import ConfigError, SourceError
from tests.examples import first_of
from tests.feeds.build import Message, messages_of
from tests.recorded import recorded

# As in the data's own README, which counts line feeds: no file ends with one, so each has one more row.
LINE_FEEDS = {
    ("ibm", "quote"): (109_066, 125_749, 135_491),
    ("bac", "trade"): (88_171, 125_871, 122_831),
    ("bac", "quote"): (476_854, 576_095, 644_879),
    ("ibm", "trade"): (24_292, 33_380, 27_041),
    ("spy", "trade"): (250_600, 451_544, 439_676),
}
ALL_LINE_FEEDS = 3_631_540
DAYS = ("20131007", "20131008", "20131009")
NEW_YORK = ZoneInfo("America/New_York")
NAMES = {
    "T": ["time_ms", "price", "size", "exchange", "condition", "suspicious"],
    "Q": ["time_ms", "bid_price", "bid_size", "ask_price", "ask_size", "exchange", "condition", "suspicious"],
}


def text_of(path: Path) -> bytes:
    """Return the content of an archive of one member."""
    with zipfile.ZipFile(path) as archive:
        (name,) = archive.namelist()
        return archive.read(name)


def write_zip(path: Path, text: bytes, member: str | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member or path.with_suffix(".csv").name, text)
    return path


def ts_event_of(day: str, milliseconds: int) -> int:
    """Convert local times one by one."""
    wall = datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    local = wall.replace(tzinfo=NEW_YORK)
    return round((local - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1)) * 1_000


def rows_of(records: Any) -> Iterator[list[str]]:
    """Return typed records as the texts of a CSV."""
    (kind,) = {each.decode() for each in numpy.unique(records["type"])}
    for record in records[list(COLUMNS[kind])].tolist():
        yield [value.decode() if isinstance(value, bytes) else str(value) for value in record]


def records_of(source: Tape, topic: bytes) -> Any:
    """Return all records of a topic."""
    kind = topic.rpartition(b".")[2].decode()
    dtype = SCHEMA.dtype({"trade": "T", "quote": "Q"}[kind])
    parts = []
    for chunk in source.chunks():
        chosen = chunk.topic_index == chunk.topics.index(topic)
        assert (chunk.lengths[chosen] == dtype.itemsize).all()
        at = chunk.starts[chosen][:, None] + numpy.arange(dtype.itemsize)
        parts.append(chunk.payloads[at].reshape(-1).view(dtype))
    return numpy.concatenate(parts)


def test_all_files_have_their_counts_and_are_in_order_of_time(shared_data: Path) -> None:
    source = Tape(shared_data / "lean")
    counts: dict[tuple[str, int], int] = {}
    first = last = ts_event_of(DAYS[0], 0)
    for chunk in source.chunks():
        assert chunk.ts_event[0] >= last
        assert (numpy.diff(chunk.ts_event) >= 0).all()
        last = int(chunk.ts_event[-1])
        days = (chunk.ts_event - first) // (86_400 * 10**9)
        for number, topic in enumerate(chunk.topics):
            for day, many in zip(*numpy.unique(days[chunk.topic_index == number], return_counts=True), strict=True):
                key = topic.decode(), int(day)
                counts[key] = counts.get(key, 0) + int(many)
    expected = {
        (f"{symbol.upper()}.{kind}", day): many + 1
        for (symbol, kind), found in LINE_FEEDS.items()
        for day, many in enumerate(found)
    }
    assert counts == expected
    assert sum(counts.values()) - len(expected) == ALL_LINE_FEEDS
    assert source.truncated is None
    assert source.notes == ()


@pytest.mark.parametrize(("symbol", "kind"), first_of(LINE_FEEDS, keep=2))
@pytest.mark.parametrize("number", first_of(range(3)))
def test_every_field_of_every_row_agrees_with_pandas(shared_data: Path, symbol: str, kind: str, number: int) -> None:
    path = shared_data / "lean" / f"{symbol}_{DAYS[number]}_{kind}.zip"
    source = Tape(path)
    records = records_of(source, f"{symbol.upper()}.{kind}".encode())
    texts = {"exchange": str, "condition": str}
    frame = pandas.read_csv(path, header=None, names=NAMES[kind[0].upper()], dtype=texts)
    assert len(records) == len(frame) == LINE_FEEDS[symbol, kind][number] + 1
    for name in frame.columns:
        if name in texts:
            assert (records[name] == frame[name].fillna("").to_numpy("S8")).all(), name
        else:
            assert (records[name] == frame[name].to_numpy()).all(), name
    midnight = numpy.datetime64(DAYS[number][:4] + "-" + DAYS[number][4:6] + "-" + DAYS[number][6:], "ms")
    wall = pandas.DatetimeIndex(midnight + frame["time_ms"].to_numpy("m8[ms]"))
    expected = wall.tz_localize(NEW_YORK).tz_convert("UTC").tz_localize(None).to_numpy("M8[ns]").astype(numpy.int64)
    times = numpy.concatenate([chunk.ts_event for chunk in source.chunks()])
    assert (times == expected).all()
    assert set(records["symbol"].tolist()) == {symbol.upper().encode()}
    assert set(records["date"].tolist()) == {int(DAYS[number])}


def test_every_row_reads_back(shared_data: Path) -> None:
    for name, topic in (("ibm_20131007_quote.zip", b"IBM.quote"), ("ibm_20131009_trade.zip", b"IBM.trade")):
        path = shared_data / "lean" / name
        source = Tape(path)
        expected = list(csv.reader(io.StringIO(text_of(path).decode())))
        assert list(rows_of(records_of(source, topic))) == expected
        times = numpy.concatenate([chunk.ts_event for chunk in source.chunks()]).tolist()
        first = ts_event_of(name.split("_")[1], 0)
        assert times == [first + int(row[0]) * 1_000_000 for row in expected]


def test_record_layouts_and_arrow() -> None:
    assert {kind: dtype.itemsize for kind, dtype in SCHEMA.records.items()} == {"T": 44, "Q": 56}
    trade: Any = SCHEMA.dtype("T")
    assert {name: field[1] for name, field in trade.fields.items()} == {
        "type": 0, "exchange": 1, "suspicious": 2, "line_end": 3, "time_ms": 4, "date": 8, "condition": 12,
        "size": 20, "price": 24, "symbol": 32,
    }  # fmt: skip
    quote: Any = SCHEMA.dtype("Q")
    assert [quote.fields[name][1] for name in ("bid_size", "bid_price", "ask_price", "ask_size", "symbol")] == [
        20, 24, 32, 40, 44,
    ]  # fmt: skip
    arrow = SCHEMA.arrow("Q")
    assert arrow.field("bid_price").type == pyarrow.int64()
    assert arrow.field("bid_price").metadata == {b"decimals": b"4", b"absent": b"0"}
    assert SCHEMA.arrow("T").field("price").metadata == {b"decimals": b"4"}
    assert arrow.field("exchange").type == pyarrow.string()
    assert PRICE_SCALE == 10**4


# Generated: names, times, merging

TRADES = b"34200000,139400,500,P,20002020,0\n34200001,139500,5,Q,,1"
QUOTES = b"34200000,0,0,139500,20000,P,1,0\n34200001,139400,700,0,0,,800,0\n34200002,1,2,3,4,Z,8,1\n"


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("bac_20131007_trade.zip", "anything.csv"),
        ("bac_20131007_trade.zip", "20131007_bac_Trade_Tick.csv"),
        ("bac/20131007_trade.zip", "20131007_bac_Trade_Tick.csv"),
        ("bac/20131007_trade.zip", "anything.csv"),
        ("day.zip", "20131007_BAC_trade_tick.csv"),
        ("BAC_20131007_TRADE.CSV", None),
        ("20131007_bac_Trade_Tick.csv", None),
        ("bac/20131007_trade.csv.gz", None),
        ("bac_20131007_trade.csv.zst", None),
    ],
)
def test_names_and_packings(tmp_path: Path, name: str, member: str | None) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if member:
        write_zip(path, TRADES, member)
    else:
        pack = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}.get(path.suffix, bytes)
        path.write_bytes(pack(TRADES))
    source = Tape(path)
    found = messages_of(source)
    assert [(topic, ts_event) for topic, ts_event, _ in found] == [
        (b"BAC.trade", ts_event_of("20131007", 34_200_000)),
        (b"BAC.trade", ts_event_of("20131007", 34_200_001)),
    ]
    assert source.truncated is None
    records = numpy.frombuffer(b"".join(payload for *_, payload in found), SCHEMA.dtype("T"))
    assert records.tolist() == [
        (b"T", b"P", 0, 1, 34_200_000, 20_131_007, b"20002020", 500, 139_400, b"BAC"),
        (b"T", b"Q", 1, 0, 34_200_001, 20_131_007, b"", 5, 139_500, b"BAC"),
    ]


@pytest.mark.parametrize(
    ("day", "times"),
    [
        ("20131007", (0, 14_400_000, 86_399_999)),
        ("20131220", (0, 34_200_000, 72_000_000)),
        ("20130310", (0, 7_199_999, 10_800_000, 34_200_000, 86_399_999)),  # 02:00 is 03:00
        ("20131103", (0, 3_600_000, 7_199_999, 7_200_000, 34_200_000, 86_399_999)),  # 02:00 is 01:00
    ],
)
def test_times_are_local_times_in_new_york(tmp_path: Path, day: str, times: tuple[int, ...]) -> None:
    path = tmp_path / f"spy_{day}_trade.csv"
    path.write_text("\n".join(f"{time},1,1,P,0,0" for time in times))
    assert [ts_event for _, ts_event, _ in messages_of(Tape(path))] == [ts_event_of(day, time) for time in times]


def merged(files: Iterable[tuple[bytes, str, list[int]]], first: str) -> list[tuple[bytes, int]]:
    """Return (topic, time in ms) of rows of files given as (topic, day, times), in the expected order."""
    rows = []
    for topic, day, times in files:
        place = 0
        for line, time in enumerate(times):
            place = max(place, time)
            rows.append((day, place, not topic.endswith(first.encode()), topic, line, topic, time))
    return [(topic, ts_event_of(day, time)) for day, *_, topic, time in sorted(rows)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("first", ["quote", "trade"])
def test_files_merge_by_time_then_kind_and_symbol_in_any_given_order(
    tmp_path: Path, seed: int, first: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    files = []
    paths = []
    for symbol in ("aa", "b", "cc"):
        for kind in ("quote", "trade"):
            for day in chance.sample(DAYS, 2):
                spread = chance.choice([3, 40, 1_000])
                times = sorted(chance.randrange(spread) for _ in range(chance.choice([0, 1, 30, 300])))
                if seed % 2:
                    times = [max(0, time - chance.choice([0, 0, 0, 5])) for time in times]
                path = tmp_path / f"{symbol}_{day}_{kind}.csv"
                row = "{},1,2,3,4,P,1,0" if kind == "quote" else "{},1,2,P,1,0"
                path.write_text("\n".join(row.format(time) for time in times))
                paths.append(path)
                files.append((f"{symbol.upper()}.{kind}".encode(), day, times))
    expected = merged(files, first)
    chance.shuffle(paths)
    late = sum(time < max(times[:i], default=0) for _, _, times in files for i, time in enumerate(times))
    for least in (1, 200, 1 << 16):
        monkeypatch.setattr(blackbox_feeds.tape.source, "_LEAST_BYTES", least)
        monkeypatch.setattr(blackbox_feeds.tape.source, "_DAY_BYTES", least)
        source = Tape(paths, first=first)
        assert [(topic, ts_event) for topic, ts_event, _ in messages_of(source)] == expected
        assert [(topic, ts_event) for day in source.by_day() for topic, ts_event, _ in messages_of(day)] == expected
        assert source.notes == ((f"rows with a time before that of an earlier row of their file: {late}",) * bool(late))


def test_a_directory_is_read_by_name_and_other_files_are_counted(tmp_path: Path) -> None:
    for symbol in ("zz", "aa"):
        (tmp_path / symbol).mkdir()
        write_zip(tmp_path / symbol / "20131007_trade.zip", TRADES, f"20131007_{symbol}_Trade_Tick.csv")
        write_zip(tmp_path / symbol / "20131007_quote.zip", QUOTES, f"20131007_{symbol}_Quote_Tick.csv")
    (tmp_path / "README.md").write_text("about")
    source = Tape(tmp_path, date="2013-10-07")
    topics = [topic for topic, *_ in messages_of(source)]
    four = [b"AA.quote", b"ZZ.quote", b"AA.trade", b"ZZ.trade"]
    assert topics == four + four + [b"AA.quote", b"ZZ.quote"]
    assert source.notes == ("files left out because their names tell no symbol, day and kind: 1",)
    with pytest.raises(SourceError, match="date was 2013-10-08, expected one of the files' days: 2013-10-07"):
        messages_of(Tape(tmp_path, date="2013-10-08"))


def test_topic_template(tmp_path: Path) -> None:
    path = tmp_path / "bac_20131007_trade.csv"
    path.write_bytes(TRADES)
    assert {topic for topic, *_ in messages_of(Tape(path, topic="{type}/{symbol}"))} == {b"trade/BAC"}
    with pytest.raises(ConfigError, match=r"expected text with \{symbol\}, \{type\}$"):
        Tape(path, topic="{locate}")
    with pytest.raises(ConfigError, match="date was 'today', expected a date"):
        Tape(path, date="today")
    assert repr(Tape(path, date="2013-10-07")) == f"<Tape {path} 2013-10-07>"


# Back to CSV


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("slices", [1, 3])
def test_published_files_are_exported_byte_for_byte(shared_data: Path, tmp_path: Path, slices: int) -> None:
    names = ["ibm_20131007_quote.zip", "ibm_20131007_trade.zip", "bac_20131007_trade.zip"]
    paths = [shared_data / "lean" / name for name in names]
    recording = recorded(tmp_path, lambda: Tape(paths), slices=slices)
    done = export(recording, tmp_path / "day.zip")
    expected = {}
    for path in paths:
        with zipfile.ZipFile(path) as archive:
            (name,) = archive.namelist()
            expected[name] = archive.read(name)
    assert members_of(tmp_path / "day.zip") == expected
    assert done.messages == sum(text.count(b"\n") + 1 for text in expected.values())
    assert export(recording, tmp_path / "again.zip") == done
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "day.zip").read_bytes()
    # Read the exported files again.
    assert topics_and_payloads(Tape(tmp_path / "day.zip")) == topics_and_payloads(Tape(sorted(paths)))


def topics_and_payloads(source: Tape) -> dict[bytes, bytes]:
    by_topic = defaultdict(list)
    for topic, _, payload in messages_of(source):
        by_topic[topic].append(payload)
    return {topic: b"".join(payloads) for topic, payloads in by_topic.items()}


@pytest.mark.parametrize(
    "text",
    [
        TRADES,
        TRADES + b"\n",
        TRADES.replace(b"\n", b"\r\n"),
        TRADES.replace(b"\n", b"\r\n") + b"\r\n",
        b"0,0,0,,,0",
        b"0,-1,1,P,0,0\n1,-999999999999999999,1,P,0,0\n",
        b"86399999,999999999999999999,4294967295,~,~~~~~~~~,1\n",
    ],
)
def test_line_ends_and_extremes_are_exported_byte_for_byte(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "brk.a_20131007_trade.csv"
    path.write_bytes(text)
    source = Tape(path)
    recording = recorded(tmp_path, lambda: source, slices=1)
    assert source.truncated is None
    export(recording, tmp_path / "day.zip")
    assert members_of(tmp_path / "day.zip") == {"20131007_brk.a_Trade_Tick.csv": text}


@pytest.mark.parametrize("window_bytes", [1, 7, 1 << 16])
def test_prices_at_or_below_zero_are_prices(tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Except a quote's price of 0, which means no data for that side."""
    monkeypatch.setattr(blackbox_feeds.tape.source, "_LEAST_BYTES", window_bytes)
    monkeypatch.setattr(blackbox_feeds.tape.source, "_DAY_BYTES", window_bytes)
    texts = {
        "20131007_cl_Quote_Tick.csv": b"1,-376300,5,-100,6,P,0,0\n2,0,0,250,7,P,0,0\n3,-5,1,0,0,P,0,0\n",
        "20131007_cl_Trade_Tick.csv": b"1,-376300,5,P,0,0\n2,0,1,P,0,0\n3,100,2,P,0,0\n",
    }
    (tmp_path / "in").mkdir()
    for name, text in texts.items():
        (tmp_path / "in" / name).write_bytes(text)
    source = Tape(tmp_path / "in")
    recording = recorded(tmp_path / "out", lambda: source, slices=1)
    assert source.truncated is None
    assert recording.trades.to_polars()["price"].to_list() == [-37.63, 0, 0.01]
    assert recording.quotes.to_polars().select("bid_price", "ask_price").rows() == [
        (-37.63, -0.01),
        (-37.63, 0.025),
        (-0.0005, 0.025),
    ]
    export(recording, tmp_path / "day.zip")
    assert members_of(tmp_path / "day.zip") == texts


def test_rows_published_twice_are_not_joined(tmp_path: Path) -> None:
    path = tmp_path / "bac_20131007_trade.csv"
    path.write_bytes(TRADES)
    recording = recorded(tmp_path, lambda: Tape(path), slices=1, runs=2)
    export(recording, tmp_path / "day.zip")
    assert members_of(tmp_path / "day.zip") == {"20131007_bac_Trade_Tick.csv": TRADES + b"\n" + TRADES}


def test_messages_of_another_form_are_not_written(tmp_path: Path) -> None:
    from blackbox_feeds.tape import export_tape

    from blackbox.archive.export.time_order import Messages

    for payload in (b"", b"X", b"T" * 43, b"Q" * 44):
        part = Messages(numpy.frombuffer(payload, numpy.uint8), numpy.array([0, len(payload)]), numpy.zeros(1, "i8"))
        with pytest.raises(SourceError, match="expected one of tape: T with 44, Q with 56"):
            list(export_tape([part]))
    blank = numpy.zeros(1, SCHEMA.dtype("T"))
    blank["type"] = "T"
    part = Messages(blank.view(numpy.uint8), numpy.array([0, 44]), numpy.zeros(1, "i8"))
    with pytest.raises(SourceError, match="the date of a record of tape was 0, expected one such as 20131007"):
        list(export_tape([part]))


# Damage


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"x,1,1,P,0,0", "time_ms was 'x', expected a whole number, 0 to 86399999, without leading zeros"),
        (b"86400000,1,1,P,0,0", "time_ms was '86400000', expected a whole number, 0 to 86399999"),
        (b"1,01,1,P,0,0", "price was '01', expected a whole number, -999999999999999999 to 999999999999999999, w"),
        (b"1,-,1,P,0,0", "price was '-', expected a whole number, -999"),
        (b"1,-0,1,P,0,0", "price was '-0', expected a whole number"),
        (b"1,-05,1,P,0,0", "price was '-05', expected a whole number"),
        (b"1,--5,1,P,0,0", "price was '--5', expected a whole number"),
        (b"1,-1000000000000000000,1,P,0,0", "price was '-1000000000000000000', expected a whole number"),
        (b"1,5,-1,P,0,0", "size was '-1', expected a whole number, 0 to 4294967295"),
        (b"-1,5,1,P,0,0", "time_ms was '-1', expected a whole number, 0 to 86399999"),
        (b"1,1.5,1,P,0,0", "price was '1.5', expected a whole number"),
        (b"1,1000000000000000000,1,P,0,0", "price was '1000000000000000000', expected a whole number"),
        (b"1,1,4294967296,P,0,0", "size was '4294967296', expected a whole number, 0 to 4294967295"),
        (b"1,1,,P,0,0", "size was '', expected a whole number"),
        (b"1,1,1,PQ,0,0", "exchange was 'PQ', expected at most 1 printable characters"),
        (b"1,1,1,P,123456789,0", "condition was '123456789', expected at most 8 printable characters"),
        (b"1,1,1,P,\x00,0", r"condition was '\\x00', expected at most 8 printable"),
        (b"1,1,1,P,0,2", "suspicious was '2', expected a whole number, 0 to 1"),
        (b"1,1,1,P,0", r"the row had 5 columns \('1,1,1,P,0'\), expected 6: time_ms, price, size"),
        (b"1,1,1,P,0,0,0", "the row had 7 columns"),
        (b"1,1,1,P,0,0\r1", r"suspicious was '0\\r1'"),
        (b"9" * 500, r"time_ms was '9{120}'\.\.\., expected a whole number"),
    ],
)
@pytest.mark.parametrize("end", [b"", b"\n", b"\n34200002,1,1,P,0,0\n"])
def test_a_bad_row_is_named_and_the_others_are_delivered(tmp_path: Path, bad: bytes, words: str, end: bytes) -> None:
    path = write_zip(tmp_path / "bac_20131007_trade.zip", TRADES + b"\n" + bad + end, "20131007_bac_Trade_Tick.csv")
    source = Tape(path)
    found = messages_of(source)
    times = [34_200_000, 34_200_001, 34_200_002]
    assert [time for _, time, _ in found] == [ts_event_of("20131007", time) for time in times[: 2 + (len(end) > 1)]]
    assert source.truncated is not None
    where = rf"{re.escape(str(path))}: 20131007_bac_Trade_Tick\.csv: 1 of {len(found) + 1} rows were bad and left out"
    assert re.match(rf"{where}: line 3: {words}", source.truncated), source.truncated


@pytest.mark.parametrize("window_bytes", [*range(1, 40), 1 << 16])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_empty_rows_and_byte_order_marks_are_left_out(
    tmp_path: Path, end: bytes, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blackbox_feeds.tape.source, "_LEAST_BYTES", window_bytes)
    monkeypatch.setattr(blackbox_feeds.tape.source, "_DAY_BYTES", window_bytes)
    path = tmp_path / "bac_20131007_trade.csv.gz"
    rows = TRADES.replace(b"\n", end)
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + rows + end + end + b"\xef\xbb\xbf" + rows + end + end))
    source = Tape(path)
    payloads = b"".join(payload for *_, payload in messages_of(source))
    records = numpy.frombuffer(payloads, SCHEMA.dtype("T"))
    assert records["price"].tolist() == [139_400, 139_500] * 2
    assert source.truncated is None
    assert "empty lines left out: 2" in source.notes


@pytest.mark.parametrize("window_bytes", [1, 100, 1 << 16])
def test_after_a_damaged_member_the_next_whole_row_is_read(
    tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first piece of a member may look like a row if the start of its time is missing."""
    monkeypatch.setattr(blackbox_feeds.tape.source, "_LEAST_BYTES", window_bytes)
    monkeypatch.setattr(blackbox_feeds.tape.source, "_DAY_BYTES", window_bytes)
    rows = [b"%d,%d,1,P,0,0\n" % (34_200_000 + number, number + 1) for number in range(3_000)]
    text = b"".join(rows)
    first, second = len(b"".join(rows[:1_000])), len(b"".join(rows[:2_000]))
    for begin in (second, second + 2):  # "200000,2001,..." is a row of another time
        members = [gzip.compress(part) for part in (text[:first], text[first:begin], text[begin:])]
        path = tmp_path / "bac_20131007_trade.csv.gz"
        path.write_bytes(members[0] + members[1][: len(members[1]) // 2] + members[2])
        source = Tape(path)
        records = numpy.frombuffer(b"".join(payload for *_, payload in messages_of(source)), SCHEMA.dtype("T"))
        found = [b"%d,%d,1,P,0,0\n" % (time, price) for time, price in records[["time_ms", "price"]].tolist()]
        assert found[:1_000] == rows[:1_000]
        assert found[-999:] == rows[2_001:]
        assert found[1_000:-999] == rows[1_000 : len(found) - 999]
        assert source.truncated is not None
        assert "gzip data ends early" in source.truncated
        assert "with the next whole row" in source.truncated


@pytest.mark.parametrize("window_bytes", [1, 7, 33, 64])
def test_rows_and_bad_rows_at_the_edge_of_a_window(
    tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blackbox_feeds.tape.source, "_LEAST_BYTES", window_bytes)
    monkeypatch.setattr(blackbox_feeds.tape.source, "_DAY_BYTES", window_bytes)
    expected: list[Message] | None = None
    for ends in (b"\n", b"\r\n"):
        path = write_zip(tmp_path / "bac_20131007_quote.zip", QUOTES.replace(b"\n", ends))
        found = messages_of(Tape(path))
        assert len(found) == 3
        plain = [(topic, ts_event, payload[:3] + payload[4:]) for topic, ts_event, payload in found]
        assert expected in (None, plain)
        expected = plain
    path = write_zip(tmp_path / "bac_20131007_quote.zip", QUOTES + b"34200003,1,2,3,4,Z,8,9\n")
    source = Tape(path)
    assert len(messages_of(source)) == 3
    assert source.truncated is not None
    assert "line 4: suspicious was '9'" in source.truncated


def test_a_truncated_file_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    cut = tmp_path / "aa_20131007_trade.csv.gz"
    text = b"\n".join(b"%d,1,1,P,0,0" % time for time in range(20_000))
    cut.write_bytes(gzip.compress(text)[:-2_000])
    bad = tmp_path / "bb_20131007_trade.csv"
    bad.write_bytes(b"5,1,1,P,0,0\nrubbish")
    good = tmp_path / "cc_20131008_trade.csv"
    good.write_bytes(TRADES)
    source = Tape(tmp_path)
    topics = [topic for topic, *_ in messages_of(source)]
    assert 0 < topics.count(b"AA.trade") < 20_000
    assert topics.count(b"BB.trade") == 1
    assert topics.count(b"CC.trade") == 2
    assert source.truncated is not None
    first, second = source.truncated.split("; ")
    assert first.startswith(f"{cut}: input ended at byte ")
    assert "gzip data ends early" in first
    assert second.startswith(f"{bad}: 1 of 2 rows were bad and left out: line 2: time_ms was 'rubbish'")


def test_a_cut_or_damaged_archive_is_reported(shared_data: Path, tmp_path: Path) -> None:
    whole = (shared_data / "lean/ibm_20131007_trade.zip").read_bytes()
    path = tmp_path / "ibm_20131007_trade.zip"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"ibm_20131007_trade\.zip: cannot be read: File is not a zip file, expected"):
        messages_of(Tape(path))
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    path.write_bytes(damaged)
    source = Tape(path)
    assert 0 < len(messages_of(source)) < LINE_FEEDS["ibm", "trade"][0]
    assert source.truncated is not None
    assert source.truncated.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ticks.csv", "ticks.csv: the file name tells no symbol, day and kind, expected e.g. bac_20131007_quote.zip"),
        ("bac_20131307_trade.csv", "the day in the file name was 20131307, expected a date"),
        ("abcdefghijklm_20131007_trade.csv", "the symbol in the file name was 'abcdefghijklm', expected at most 12"),
    ],
)
def test_an_incomplete_name_is_refused(tmp_path: Path, name: str, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(TRADES)
    with pytest.raises(SourceError, match=words):
        messages_of(Tape(path))


def test_a_file_of_another_format_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="none: cannot be read: No such file or directory, expected a CSV of tape"):
        messages_of(Tape(tmp_path / "none"))
    with pytest.raises(SourceError, match=r"no file in it is named as one of tape rows, e\.g\. bac_20131007_quote"):
        messages_of(Tape(tmp_path))
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        archive.writestr("one.csv", TRADES)
        archive.writestr("two.csv", TRADES)
    with pytest.raises(SourceError, match="none of its 2 members is named as a CSV of tape rows"):
        messages_of(Tape(tmp_path / "many.zip"))
