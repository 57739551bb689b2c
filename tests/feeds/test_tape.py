"""Tape rows: real files compared with pandas, merged, and exported byte for byte."""

from __future__ import annotations

import gzip
import random
import re
import zipfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import blackbox_feeds.tape.source
import numpy
import pandas
import pytest
import zstandard
from blackbox_feeds.tape import PRICE_SCALE, SCHEMA, Tape, export_tape

from blackbox.archive.export.source_file import export
from blackbox.archive.export.time_order import Messages
from blackbox.errors import ConfigError, SourceError
from tests.examples import examples, first_of
from tests.feeds.build import messages_of, payloads_of
from tests.process_state import descriptors_of
from tests.recorded import recorded

ROWS = {
    "ibm_20131009_trade": 27_042,
    "ibm_20131007_quote": 109_067,
    "bac_20131007_trade": 88_172,
    "bac_20131008_quote": 576_096,
    "spy_20131009_trade": 439_677,
}
"""Rows of some real files."""
DAYS = ("20131007", "20131008", "20131009")
NEW_YORK = ZoneInfo("America/New_York")
NAMES = {
    "T": ["time_ms", "price", "size", "exchange", "condition", "suspicious"],
    "Q": ["time_ms", "bid_price", "bid_size", "ask_price", "ask_size", "exchange", "condition", "suspicious"],
}


def write_zip(path: Path, text: bytes, member: str | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member or path.with_suffix(".csv").name, text)
    return path


def use_tape_windows(monkeypatch: pytest.MonkeyPatch, window_bytes: int) -> None:
    for name in ("_LEAST_BYTES", "_DAY_BYTES"):
        monkeypatch.setattr(blackbox_feeds.tape.source, name, window_bytes)


def ts_event_of(day: str, milliseconds: int) -> int:
    """Convert local times one by one."""
    wall = datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    local = wall.replace(tzinfo=NEW_YORK)
    return round((local - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1)) * 1_000


@pytest.mark.parametrize("name", first_of(ROWS, keep=2))
def test_every_field_of_every_row_agrees_with_pandas(shared_data: Path, name: str) -> None:
    path = shared_data / "lean" / f"{name}.zip"
    symbol, day, kind = name.split("_")
    letter = kind[0].upper()
    source = Tape(path)
    chunks = list(source.chunks())
    records = numpy.concatenate([chunk.payloads for chunk in chunks]).reshape(-1).view(SCHEMA.dtype(letter))
    texts = {"exchange": str, "condition": str}
    frame = pandas.read_csv(path, header=None, names=NAMES[letter], dtype=texts)
    assert len(records) == len(frame) == ROWS[name]
    for field in frame.columns:
        if field in texts:
            assert (records[field] == frame[field].fillna("").to_numpy("S8")).all(), field
        else:
            assert (records[field] == frame[field].to_numpy()).all(), field
    midnight = numpy.datetime64(f"{day[:4]}-{day[4:6]}-{day[6:]}", "ms")
    wall = pandas.DatetimeIndex(midnight + frame["time_ms"].to_numpy("m8[ms]"))
    expected = wall.tz_localize(NEW_YORK).tz_convert("UTC").tz_localize(None).to_numpy("M8[ns]").astype(numpy.int64)
    assert (numpy.concatenate([chunk.ts_event for chunk in chunks]) == expected).all()
    assert {topic for chunk in chunks for topic in chunk.topics} == {f"{symbol.upper()}.{kind}".encode()}
    assert set(records["symbol"].tolist()) == {symbol.upper().encode()}
    assert set(records["date"].tolist()) == {int(day)}
    assert (source.truncated, source.notes) == (None, ())


def test_record_layouts() -> None:
    trade: Any = SCHEMA.dtype("T")
    assert {name: field[1] for name, field in trade.fields.items()} == {
        "type": 0, "exchange": 1, "suspicious": 2, "line_end": 3, "time_ms": 4, "date": 8, "condition": 12,
        "size": 20, "price": 24, "symbol": 32,
    }  # fmt: skip
    quote: Any = SCHEMA.dtype("Q")
    assert [quote.fields[name][1] for name in ("bid_size", "bid_price", "ask_price", "ask_size", "symbol")] == [
        20, 24, 32, 40, 44,
    ]  # fmt: skip
    assert (trade.itemsize, quote.itemsize, PRICE_SCALE) == (44, 56, 10**4)


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
        ("day.zip", "tick/bac/20131007_trade.csv"),
        ("bac_20131007_trade.zip", "20131007_trade.csv"),
        ("spy_20131007_trade.zip", "bac/20131007_trade.csv"),
        ("spy/20131007_trade.zip", "bac_20131007_trade.csv"),
        ("spy/20131007_trade.zip", "bac/anything.csv"),
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


@pytest.mark.parametrize("seed", range(examples(32)))
def test_files_merge_by_time_then_kind_and_symbol_in_any_given_order(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: Any = ("quote", "trade")[seed // 2 % 2]
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
        use_tape_windows(monkeypatch, least)
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


def test_members_in_directories_keep_their_symbols(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "day.zip", "w") as archive:
        for symbol in ("bac", "aapl"):
            archive.writestr(f"{symbol}/20131007_trade.csv", TRADES)
    topics = [topic for topic, *_ in messages_of(Tape(tmp_path / "day.zip"))]
    assert topics == [b"AAPL.trade", b"BAC.trade"] * 2


def test_two_files_of_the_same_symbol_day_and_kind_are_refused(tmp_path: Path) -> None:
    packed = write_zip(tmp_path / "bac_20131007_trade.zip", TRADES)
    (tmp_path / "BAC_20131007_trade.csv").write_bytes(TRADES)
    write_zip(tmp_path / "bac_20131008_trade.zip", TRADES)
    with pytest.raises(SourceError, match=rf"{re.escape(str(packed))}.* has the same symbol, day and kind as .*BAC_"):
        messages_of(Tape(tmp_path))
    assert len(messages_of(Tape(tmp_path, date="2013-10-08"))) == 2


def test_members_of_an_archive_share_one_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "day.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(50):
            archive.writestr(f"20131007_s{number}_Trade_Tick.csv", TRADES)
    chunks = Tape(path).chunks()
    first = next(chunks)
    assert descriptors_of(path) == 1
    assert sum(len(chunk.starts) for chunk in (first, *chunks)) == 100
    assert descriptors_of(path) == 0


def test_topic_template(tmp_path: Path) -> None:
    path = tmp_path / "bac_20131007_trade.csv"
    path.write_bytes(TRADES)
    assert {topic for topic, *_ in messages_of(Tape(path, topic="{type}/{symbol}"))} == {b"trade/BAC"}
    with pytest.raises(ConfigError, match="date was 'today', expected a date"):
        Tape(path, date="today")


# Back to CSV


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_published_files_are_exported_byte_for_byte(shared_data: Path, tmp_path: Path) -> None:
    paths = [shared_data / "lean" / name for name in ("ibm_20131009_trade.zip", "ibm_20131007_trade.zip")]
    recording = recorded(tmp_path, lambda: Tape(paths), slices=3)
    done = export(recording, tmp_path / "day.zip")
    expected = members_of(paths[0]) | members_of(paths[1])
    assert members_of(tmp_path / "day.zip") == expected
    assert done.messages == sum(text.count(b"\n") + 1 for text in expected.values())
    assert export(recording, tmp_path / "again.zip") == done
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "day.zip").read_bytes()
    assert messages_of(Tape(tmp_path / "day.zip")) == messages_of(Tape(paths))


def test_line_ends_and_extremes_are_exported_byte_for_byte(tmp_path: Path) -> None:
    """Prices at or below zero are prices, except a quote's price of 0, which means no data for that side."""
    trades = [
        TRADES,
        TRADES + b"\n",
        TRADES.replace(b"\n", b"\r\n"),
        TRADES.replace(b"\n", b"\r\n") + b"\r\n",
        b"0,0,0,,,0",
        b"0,-1,1,P,0,0\n1,-999999999999999999,1,P,0,0\n",
        b"86399999,999999999999999999,4294967295,~,~~~~~~~~,1\n",
    ]
    texts = {f"20131007_brk.{number}_Trade_Tick.csv": text for number, text in enumerate(trades)}
    texts["20131007_cl_Quote_Tick.csv"] = b"1,-376300,5,-100,6,P,0,0\n2,0,0,250,7,P,0,0\n3,-5,1,0,0,P,0,0\n"
    texts["20131007_cl_Trade_Tick.csv"] = b"1,-376300,5,P,0,0\n2,0,1,P,0,0\n3,100,2,P,0,0\n"
    (tmp_path / "in").mkdir()
    for name, text in texts.items():
        (tmp_path / "in" / name).write_bytes(text)
    source = Tape(tmp_path / "in")
    recording = recorded(tmp_path / "out", lambda: source, slices=1)
    assert source.truncated is None
    export(recording, tmp_path / "day.zip")
    assert members_of(tmp_path / "day.zip") == texts
    found = recording.trades.to_pandas()
    assert found["price"][found["symbol"] == "CL"].to_list() == [-37.63, 0, 0.01]
    assert recording.quotes.to_polars().select("bid_price", "ask_price").rows() == [
        (-37.63, -0.01),
        (-37.63, 0.025),
        (-0.0005, 0.025),
    ]


def test_rows_published_twice_are_not_joined_also_on_days_that_a_zip_archive_cannot_tell(
    tmp_path: Path,
) -> None:
    for day in ("19791231", "21080102"):
        path = tmp_path / f"bac_{day}_trade.csv"
        path.write_bytes(TRADES)
        recording = recorded(tmp_path / day, partial(Tape, path), slices=1, runs=2)
        export(recording, tmp_path / f"{day}.zip")
        assert members_of(tmp_path / f"{day}.zip") == {f"{day}_bac_Trade_Tick.csv": TRADES + b"\n" + TRADES}


def test_messages_of_another_form_are_not_written(tmp_path: Path) -> None:
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
def test_a_bad_row_is_named_and_the_others_are_delivered(tmp_path: Path, bad: bytes, words: str) -> None:
    times = [ts_event_of("20131007", 34_200_000 + number) for number in range(3)]
    for end, good in ((b"", 2), (b"\n", 2), (b"\n34200002,1,1,P,0,0\n", 3)):
        path = write_zip(tmp_path / "bac_20131007_trade.zip", TRADES + b"\n" + bad + end, "20131007_bac_Trade_Tick.csv")
        source = Tape(path)
        assert [time for _, time, _ in messages_of(source)] == times[:good]
        where = rf"{re.escape(str(path))}: 20131007_bac_Trade_Tick\.csv: 1 of {good + 1} rows were bad and left out"
        assert re.match(rf"{where}: line 3: {words}", source.truncated or ""), source.truncated


@pytest.mark.parametrize("window_bytes", [1, 3, 7, 33, 64, 1 << 16])
def test_rows_at_the_edge_of_a_window(tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty rows and byte order marks are left out, bad rows are named by line."""
    use_tape_windows(monkeypatch, window_bytes)
    path = tmp_path / "bac_20131007_trade.csv.gz"
    mark = b"\xef\xbb\xbf"
    for end in (b"\n", b"\r\n"):
        rows = TRADES.replace(b"\n", end) + end
        path.write_bytes(gzip.compress(mark + rows + end + mark + rows + end + b"34200003,1,2,Z,8,9" + end))
        source = Tape(path)
        records = numpy.frombuffer(b"".join(payloads_of(source)), SCHEMA.dtype("T"))
        assert records["price"].tolist() == [139_400, 139_500] * 2
        assert "empty lines left out: 2" in source.notes
        assert "line 7: suspicious was '9'" in (source.truncated or "")


@pytest.mark.parametrize("window_bytes", [100, 1 << 16])
def test_after_a_damaged_member_the_next_whole_row_is_read(
    tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first piece of a member may look like a row if the start of its time is missing."""
    use_tape_windows(monkeypatch, window_bytes)
    rows = [b"%d,%d,1,P,0,0\n" % (34_200_000 + number, number + 1) for number in range(3_000)]
    text = b"".join(rows)
    first, second = len(b"".join(rows[:1_000])), len(b"".join(rows[:2_000]))
    for begin in (second, second + 2):  # "200000,2001,..." is a row of another time
        members = [gzip.compress(part) for part in (text[:first], text[first:begin], text[begin:])]
        path = tmp_path / "bac_20131007_trade.csv.gz"
        path.write_bytes(members[0] + members[1][: len(members[1]) // 2] + members[2])
        source = Tape(path)
        records = numpy.frombuffer(b"".join(payloads_of(source)), SCHEMA.dtype("T"))
        found = [b"%d,%d,1,P,0,0\n" % (time, price) for time, price in records[["time_ms", "price"]].tolist()]
        assert found[:1_000] == rows[:1_000]
        assert found[-999:] == rows[2_001:]
        assert found[1_000:-999] == rows[1_000 : len(found) - 999]
        assert source.truncated is not None
        assert "gzip data ends early" in source.truncated
        assert "with the next whole row" in source.truncated


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ticks.csv", "ticks.csv: the file name tells no symbol, day and kind, expected e.g. bac_20131007_quote.zip"),
        ("bac_20131307_trade.csv", "the day in the file name was 20131307, expected a date"),
        ("bac_02191007_trade.csv", "was 02191007, expected a date: date was 0219-10-07, expected one of 1678 to 2261"),
        ("abcdefghijklm_20131007_trade.csv", "the symbol in the file name was 'abcdefghijklm', expected at most 12"),
    ],
)
def test_an_incomplete_name_is_refused(tmp_path: Path, name: str, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(TRADES)
    with pytest.raises(SourceError, match=words):
        messages_of(Tape(path))


def test_an_archive_or_directory_without_rows_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no file in it is named as one of tape rows, e\.g\. bac_20131007_quote"):
        messages_of(Tape(tmp_path))
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        archive.writestr("one.csv", TRADES)
        archive.writestr("two.csv", TRADES)
    with pytest.raises(SourceError, match="none of its 2 members is named as a CSV of tape rows"):
        messages_of(Tape(tmp_path / "many.zip"))
    path = write_zip(tmp_path / "bac_20131007_trade.zip", TRADES)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(SourceError, match=r"bac_20131007_trade\.zip: cannot be read: File is not a zip file, expected"):
        messages_of(Tape(path))
