"""Binance frames: real files compared with the json module, every kind of frame, damage, and exact export."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import blackbox_feeds.binance.frames
import blackbox_feeds.io.columns
import blackbox_feeds.io.open_window
import numpy
import pytest
from blackbox_feeds.binance import SCHEMA, Binance, export_binance, split
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blackbox import Recording
from blackbox.archive.export.source_file import export
from blackbox.archive.export.time_order import Messages
from blackbox.archive.import_days import import_days
from blackbox.errors import ConfigError, SourceError
from blackbox.feed.schema import QuoteFields, TradeFields
from blackbox.feed.symbol import SymbolRule
from tests.archive.imports import feed_of
from tests.examples import examples
from tests.feeds.build import Message, messages_of
from tests.recorded import recorded

COUNTS = {
    "cm_btcusd_perp": {"btcusd_perp.depth": 26_847, "btcusd_perp.bookTicker": 19_136, "btcusd_perp.trade": 2_286,
                       "btcusd_perp.snapshot": 1},
    "cm_ethusd_perp": {"ethusd_perp.depth": 22_909, "ethusd_perp.bookTicker": 15_812, "ethusd_perp.trade": 1_732,
                       "ethusd_perp.snapshot": 1},
    "spot_btcusdt": {"btcusdt.depth": 3_451, "btcusdt.bookTicker": 28_040, "btcusdt.trade": 9_757,
                     "btcusdt.snapshot": 1},
    "spot_ethusdt": {"ethusdt.depth": 3_434, "ethusdt.bookTicker": 24_077, "ethusdt.trade": 6_106,
                     "ethusdt.snapshot": 1},
    "usdm_btcusdt": {"btcusdt.depth": 6_551, "btcusdt.bookTicker": 66_089, "btcusdt.trade": 21_313,
                     "btcusdt.snapshot": 1},
}  # fmt: skip
LINES = {
    "cm_btcusd_perp": 48_270,
    "cm_ethusd_perp": 40_454,
    "spot_btcusdt": 41_249,
    "spot_ethusdt": 33_618,
    "usdm_btcusdt": 93_954,
}
YEAR_2000, YEAR_2100 = 946_684_800 * 10**9, 4_102_444_800 * 10**9
RECEIVED = 1_723_161_254_087_896_568
TRADE = b'{"stream":"btcusdt@trade","data":{"e":"trade","E":1723161255343,"s":"BTCUSDT","p":"1.5"}}'


def file_of(shared_data: Path, name: str) -> Path:
    return shared_data / "binance" / f"{name}_20240808.gz"


def reference(line: bytes, symbols: set[str]) -> Message:
    """Return a line of the real files as parsed by `json`. `symbols`: those of the lines so far."""
    text, frame = line.split(b" ", 1)
    document = json.loads(frame)
    data = document.get("data", document)
    symbol, _, rest = document.get("stream", "@").partition("@")
    kind = rest.partition("@")[0]
    if "lastUpdateId" in data:
        (only,) = symbols
        symbol, kind = data.get("symbol", only).lower(), "snapshot"
    symbols.add(symbol)
    milliseconds = data.get("E", data.get("T"))
    ts_event = int(text) if milliseconds is None else milliseconds * 1_000_000
    return f"{symbol}.{kind}".encode(), ts_event, line


@pytest.mark.parametrize("name", LINES)
def test_real_file_agrees_with_json(shared_data: Path, name: str) -> None:
    path = file_of(shared_data, name)
    symbols: set[str] = set()
    expected = [reference(line, symbols) for line in gzip.decompress(path.read_bytes()).splitlines(keepends=True)]
    source = Binance(path)
    assert messages_of(source) == expected
    assert source.truncated is None
    assert len(expected) == LINES[name]
    assert Counter(topic.decode() for topic, *_ in expected) == COUNTS[name]
    without = sum(split(line)[0] == ts_event for _, ts_event, line in expected)
    assert without == (COUNTS[name][f"{name.partition('_')[2]}.bookTicker"] + 1 if name.startswith("spot") else 0)
    told = (f"frames without an event time, which have their receive time: {without:,}",)
    assert source.notes == (told if without else ())


def test_all_lines_of_all_files() -> None:
    assert sum(LINES.values()) == 257_545
    assert {name: sum(counts.values()) for name, counts in COUNTS.items()} == LINES


def test_receive_time_is_before_event_time_and_not_lost(shared_data: Path) -> None:
    ahead = []
    for _, ts_event, payload in messages_of(Binance(file_of(shared_data, "usdm_btcusdt"))):
        received, frame = split(payload)
        assert json.loads(frame)
        ahead.append(ts_event - received)
    assert 1.1e9 < numpy.median(ahead) < 1.4e9


def lines_of(*frames: bytes) -> bytes:
    return b"".join(b"%d %b\n" % (RECEIVED + number, frame) for number, frame in enumerate(frames))


def read(tmp_path: Path, text: bytes, **options: Any) -> tuple[list[tuple[str, int]], Binance]:
    path = tmp_path / "frames"
    path.write_bytes(text)
    source = Binance(path, **options)
    found = messages_of(source)
    assert b"".join(payload for *_, payload in found) == text[: sum(len(payload) for *_, payload in found)]
    return [(topic.decode(), ts_event) for topic, ts_event, _ in found], source


@pytest.mark.parametrize(
    ("frame", "topic", "ts_event"),
    [
        (TRADE, "btcusdt.trade", 1_723_161_255_343_000_000),
        (
            b'{"data":{"E":1700000000005,"e":"trade"},"stream":"btcusdt@trade"}',
            "btcusdt.trade",
            1_700_000_000_005_000_000,
        ),
        (b'{"stream":"btcusdt@aggTrade","data":{"T":1700000000007}}', "btcusdt.aggTrade", 1_700_000_000_007_000_000),
        (
            b'{"stream":"btcusdt@aggTrade","data":{"T":7,"E":1700000000008}}',
            "btcusdt.aggTrade",
            1_700_000_000_008_000_000,
        ),
        (
            b'{"stream":"btcusdt@kline_1m","data":{"E":1700000000009,"k":{"E":1,"T":1,"s":"X"}}}',
            "btcusdt.kline_1m",
            1_700_000_000_009_000_000,
        ),
        (b'{"stream":"btcusdt@depth20@100ms","data":{"lastUpdateId":1}}', "btcusdt.depth20", RECEIVED),
        (b'{"stream":"!markPrice@arr@1s","data":[{"E":1,"s":"X"}]}', "#system.markPrice", RECEIVED),
        (
            b'{"stream":"!bookTicker","data":{"u":1,"s":"BNBUSDT","E":1700000000003}}',
            "bnbusdt.bookTicker",
            1_700_000_000_003_000_000,
        ),
        (b'{"e":"aggTrade","E":1700000000000,"s":"BNBBTC"}', "bnbbtc.aggTrade", 1_700_000_000_000_000_000),
        (b'{"e":"depthUpdate","E":1700000000000123,"s":"BNBBTC"}', "bnbbtc.depth", 1_700_000_000_000_123_000),
        (b'{"e":"markPriceUpdate","E":1700000000000123456,"s":"A"}', "a.markPrice", 1_700_000_000_000_123_456),
        (b'{"e":"forceOrder","E":1700000000004,"o":{"s":"A","T":3}}', "#system.forceOrder", 1_700_000_000_004_000_000),
        (b'{"u":4,"s":"BNBUSDT","b":"2","B":"3","a":"2","A":"4"}', "bnbusdt.bookTicker", RECEIVED),
        (
            b'{"lastUpdateId":1,"E":1700000000002,"symbol":"BTCUSD_PERP","bids":[]}',
            "btcusd_perp.snapshot",
            1_700_000_000_002_000_000,
        ),
        (b'{"lastUpdateId":1,"bids":[["1","2"]]}', "#unknown.snapshot", RECEIVED),
        (b'{"result":null,"id":1}', "#system.other", RECEIVED),
        (b"{}", "#system.other", RECEIVED),
        (
            b'{ "stream" : "a@trade" , "data" : { "E" : 1700000000006 , "x" : [ ] , "y" : { } } }',
            "a.trade",
            1_700_000_000_006_000_000,
        ),
        (b'{"x":"\\"},{\\\\","e":"t","E":1700000000001}', "#system.t", 1_700_000_000_001_000_000),
        (b'{"x":{"stream":"no@no","data":{"e":"no","E":1}},"e":"t"}', "#system.t", RECEIVED),
        (b'{"data":{"data":{"E":1},"stream":"no@no"},"e":"t"}', "#system.t", RECEIVED),
        (b'{"data":[{"E":1}],"e":"t"}', "#system.t", RECEIVED),
        (b'{"E":"1700000000005","e":"t"}', "#system.t", 1_700_000_000_005_000_000),
        (b'{"E":-5,"e":"t"}', "#system.t", RECEIVED),
        (b'{"E":0,"T":0,"e":"t"}', "#system.t", RECEIVED),
        (b'{"E":0,"T":4102444799999,"e":"t"}', "#system.t", 4_102_444_799_999_000_000),
        (b'{"E":946684800000,"e":"t"}', "#system.t", 946_684_800_000_000_000),
        (b'{"E":1.5e3,"e":"t"}', "#system.t", RECEIVED),
        (b'{"E":null,"T":1700000000002,"e":"t"}', "#system.t", 1_700_000_000_002_000_000),
        (b'{"stream":"a b\xc3\xa9@t\\u0041"}', "a b\u00e9.tA", RECEIVED),
        (b'{"stream":"A\xc3\x89b@trade"}', "a\u00c9b.trade", RECEIVED),
        (b'{"e":"trade","s":"A\xc4\xb0"}', "a\u0130.trade", RECEIVED),
        (b'{"e":"trade","s":"\\ud83d\\ude00\\"\\\\"}', '\U0001f600"\\.trade', RECEIVED),
        (b'{"e":null,"s":null,"stream":null,"E":1700000000002}', "#system.other", 1_700_000_000_002_000_000),
    ],
)
def test_every_kind_of_frame(tmp_path: Path, frame: bytes, topic: str, ts_event: int) -> None:
    found, source = read(tmp_path, lines_of(frame))
    assert found == [(topic, ts_event)]
    assert source.truncated is None


def test_a_snapshot_without_a_symbol_gets_the_only_earlier_one(tmp_path: Path) -> None:
    snapshot, other = b'{"lastUpdateId":1}', TRADE.replace(b"btcusdt", b"ethusdt").replace(b"BTC", b"ETH")
    bare = b'{"u":4,"s":"BTCUSDT","b":"2","B":"3","a":"2","A":"4"}'
    found, _ = read(tmp_path, lines_of(snapshot, TRADE, snapshot, bare, snapshot, other, snapshot))
    assert [topic for topic, _ in found] == [
        "#unknown.snapshot",
        "btcusdt.trade",
        "btcusdt.snapshot",
        "btcusdt.bookTicker",
        "btcusdt.snapshot",
        "ethusdt.trade",
        "#unknown.snapshot",
    ]


def test_topic_template(tmp_path: Path) -> None:
    text = lines_of(TRADE, TRADE.replace(b"@trade", b"@aggTrade"))
    assert [topic for topic, _ in read(tmp_path, text, topic="{symbol}")[0]] == ["btcusdt", "btcusdt"]
    with pytest.raises(ConfigError, match=r"expected text with \{symbol\}, \{type\}$"):
        Binance("frames", topic="{locate}")
    assert repr(Binance("frames")) == "<Binance frames>"
    assert Binance("frames").schema is SCHEMA


def test_too_many_streams_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackbox_feeds.binance.frames, "MAX_KEYS", 16)
    streams = [b'{"stream":"s%d@trade"}' % number for number in range(17)]
    assert len(read(tmp_path, lines_of(*streams[:16]))[0]) == 16
    with pytest.raises(SourceError, match="the input has more than 16 distinct streams: it is corrupt"):
        read(tmp_path, lines_of(*streams))


@pytest.mark.parametrize("window_bytes", [1, 20, 100, 1_000])
def test_lines_at_the_edge_of_a_window(tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines_of(TRADE, b'{"e":"x"}', TRADE).replace(b"\n", b"\r\n")
    expected, _ = read(tmp_path, text)
    assert len(expected) == 3
    open_window = blackbox_feeds.io.open_window.open_window
    monkeypatch.setattr(
        "blackbox_feeds.binance.source.open_window", lambda path, expected: open_window(path, window_bytes)
    )
    monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", 2)
    path = tmp_path / "frames.gz"
    path.write_bytes(gzip.compress(text))
    source = Binance(path)
    assert [(topic.decode(), ts_event) for topic, ts_event, _ in messages_of(source)] == expected
    assert source.truncated is None


# Back to the file


@pytest.mark.parametrize("slices", [1, 2])
def test_a_published_file_comes_out_byte_for_byte(shared_data: Path, tmp_path: Path, slices: int) -> None:
    path = file_of(shared_data, "spot_ethusdt")
    recording = recorded(tmp_path, lambda: Binance(path), slices=slices)
    assert export(recording, tmp_path / "frames").messages == LINES["spot_ethusdt"]
    assert (tmp_path / "frames").read_bytes() == gzip.decompress(path.read_bytes())


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_line_ends_are_preserved(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "frames.txt"
    text = lines_of(TRADE, b'{"e":"x"}').rstrip().replace(b"\n", end or b"\n") + end
    path.write_bytes(text)
    once = recorded(tmp_path / "once", lambda: Binance(path), slices=1)
    export(once, tmp_path / "once.txt")
    assert (tmp_path / "once.txt").read_bytes() == text
    twice = recorded(tmp_path / "twice", lambda: Binance(path), slices=1, runs=2)
    export(twice, tmp_path / "twice.txt")
    assert (tmp_path / "twice.txt").read_bytes() == text + (b"" if end else b"\n") + text


def test_lines_without_an_end_are_not_joined() -> None:
    def part(*lines: bytes) -> Messages:
        sizes = [0, *(len(line) for line in lines)]
        data = numpy.frombuffer(b"".join(lines), numpy.uint8)
        return Messages(data, numpy.cumsum(sizes), numpy.zeros(len(lines), numpy.int64))

    parts = [part(b"1 {}\n", b"2 {}", b"3 {}"), part(b"4 {}", b"5 {}\n"), part(b"6 {}")]
    text = b"".join(piece.tobytes() for piece in export_binance(parts))
    assert text == b"1 {}\n2 {}\n3 {}\n4 {}\n5 {}\n6 {}"
    with pytest.raises(SourceError, match="a message had 0 bytes, expected a line of text"):
        list(export_binance([part(b"1 {}\n", b"")]))


# Damage


BAD_LINES = [
    (b"rubbish", "its start was 'rubbish', expected the receive time in ns, 19 digits, and a space"),
    (b"1723161254087 {}", "its receive time was 1723161254087, which is in ms, expected ns: give the source's option"),
    (b"17231612540878965 {}", r"its start was '17231612540878965 \{\}', expected the receive time in ns"),
    (b"%d{}" % RECEIVED, "its start was '1723161254087896568{', expected"),
    (b"%d.5 {}" % RECEIVED, r"its start was '1723161254087896568\.', expected"),
    (b"%d " % RECEIVED, "its frame was '', expected one whole JSON object"),
    (b"%d []" % RECEIVED, r"its frame was '\[\]', expected one whole JSON object"),
    (b"%d %b" % (RECEIVED, TRADE[:-1]), "its frame was '{.*, expected one whole JSON object"),
    (b"%d {}}" % RECEIVED, "its frame is followed by more text, expected a line end: '1723161254087896568 {}}'"),
    (b'%d {"e":"x}' % RECEIVED, "its frame was"),
    (b'%d {"e":"x\\' % RECEIVED, "its frame was"),  # cut behind a backslash
    (b'%d {"e":}' % RECEIVED, "its frame was"),
    (b'%d {"e" "x"}' % RECEIVED, "its frame was"),
    (b'%d {"e":"x",}' % RECEIVED, "its frame was"),
    (b'%d {"e":["x"}' % RECEIVED, "its frame was"),
    (b'%d {"e":[1,]}' % RECEIVED, "its frame was"),
    (b"%d {1:2}" % RECEIVED, "its frame was"),
    (b'%d {"e":%b}' % (RECEIVED, b"[" * 100 + b"]" * 100), "its frame was"),
    (b'%d {"stream":"%b"}' % (RECEIVED, b"x" * 1_100), "stream, event and symbol of its frame have more than 1024 by"),
    (b'%d {"s":"A\\u0000B","e":"t"}' % RECEIVED, r"stream, event or symbol was 'A\\\\u0000B', which cannot be a name"),
    (b'%d {"s":"A\\u0085","e":"t"}' % RECEIVED, "stream, event or symbol was .*: it has a control character"),
    (b'%d {"s":"\x7f","e":"t"}' % RECEIVED, "stream, event or symbol was .*: it has a control character"),
    (b'%d {"stream":"a\\ud800@trade"}' % RECEIVED, "stream, event or symbol was .*, which cannot be a name: .*surrog"),
    (b'%d {"stream":"a\xed\xa0\x80@trade"}' % RECEIVED, "stream, event or symbol was .*, which cannot be a name"),
    (b'%d {"stream":"a\xff@trade"}' % RECEIVED, "stream, event or symbol was .*, which cannot be a name"),
    (b'%d {"stream":"a\\x@trade"}' % RECEIVED, "stream, event or symbol was .*, which cannot be a name: JSON is mal"),
    (
        b'%d {"E":1723161255,"e":"t"}' % RECEIVED,
        "its event time, else its receive time, was outside the years 2000 to 2099",
    ),
    (b'%d {"E":1,"T":1723161255343,"e":"t"}' % RECEIVED, "its event time"),
    (b'%d {"E":946684799999,"e":"t"}' % RECEIVED, "its event time"),
    (b'%d {"E":4102444800000,"e":"t"}' % RECEIVED, "its event time"),
    (b'%d {"E":9999999999999999999,"e":"t"}' % RECEIVED, "its event time"),
    (b'%d {"E":%d,"e":"t"}' % (RECEIVED, 2**64 + 1_723_161_255_343), "its event time"),
    (b'0000000001723161254 {"e":"t"}', "its event time, else its receive time, was outside the years 2000 to 2099"),
    (b'9999999999999999999 {"e":"t"}', "its event time, else its receive time, was outside the years 2000 to 2099"),
    (b'%d {"stream":"a@tra.de"}' % RECEIVED, r"type was 'tra\.de', expected one without '\.'"),
]


@pytest.mark.parametrize(("bad", "words"), BAD_LINES)
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n%d {}\n" % RECEIVED])
def test_a_bad_line_is_named_and_the_others_are_delivered(tmp_path: Path, bad: bytes, words: str, end: bytes) -> None:
    path = tmp_path / "frames"
    path.write_bytes(lines_of(TRADE, TRADE) + bad + end)
    source = Binance(path)
    found = messages_of(source)
    assert [payload for *_, payload in found] == lines_of(TRADE, TRADE).splitlines(keepends=True) + (
        [b"%d {}\n" % RECEIVED] if b"{}" in end else []
    )
    assert source.truncated is not None
    expected = rf"{re.escape(str(path))}: 1 of {len(found) + 1} lines were bad and left out: line 3: {words}"
    assert re.match(expected, source.truncated), source.truncated


def test_the_first_bad_lines_are_named_and_the_others_counted(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    kinds = itertools.cycle([b"rubbish", b'%d {"s":"\\u0000"}' % RECEIVED, b"%d {" % RECEIVED])
    lines = [next(kinds) if number % 3 == 1 else b"%d {}" % RECEIVED for number in range(3_000)]
    path.write_bytes(b"\n".join(lines))
    source = Binance(path)
    assert len(messages_of(source)) == 2_000
    assert source.truncated is not None
    assert "1,000 of 3,000 lines were bad and left out: line 2: its start was 'rubbish'" in source.truncated
    assert source.truncated.endswith("; and 997 more bad lines")
    for number in re.findall(r"line (\d+):", source.truncated):
        assert lines[int(number) - 1] != b"%d {}" % RECEIVED


def test_a_time_in_seconds_does_not_become_a_day_of_1970(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    path.write_bytes(lines_of(TRADE, TRADE.replace(b"1723161255343", b"1723161255"), TRADE))
    source = Binance(path)
    (day,) = import_days(feed_of("binance"), tmp_path, [source])
    assert (day.path.name, sum(len(batch) for batch in Recording.open(day.path).batches())) == ("2024-08-08", 2)
    assert source.truncated is not None
    assert "1 of 3 lines were bad and left out: line 2: its event time" in source.truncated


def test_a_file_of_only_bad_lines_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    path.write_bytes(b"hello\nworld\n")
    with pytest.raises(SourceError, match="has no message: .*none of its 2 lines is valid: line 1: its start was 'hel"):
        import_days(feed_of("binance"), tmp_path, [Binance(path)])


@pytest.mark.parametrize("window_bytes", [1, 30, 4_096])
def test_bad_lines_without_an_end_are_skipped_in_bounded_memory(
    tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def small(path: Path, expected: str) -> Any:
        opened.append(real(path, window_bytes))
        return opened[-1]

    real = blackbox_feeds.io.open_window.open_window
    monkeypatch.setattr("blackbox_feeds.binance.source.open_window", small)
    good = lines_of(TRADE)
    path = tmp_path / "frames.gz"
    path.write_bytes(gzip.compress(good + b"x" * 200_000 + b"\n" + good + b"y" * 200_000))
    source = Binance(path)
    assert [payload for *_, payload in messages_of(source)] == [good, good]
    assert source.truncated is not None
    assert "2 of 4 lines were bad and left out: line 2: its start was 'x" in source.truncated
    assert len(opened[0].data) <= 8_192


def test_a_wrong_name_after_a_long_bad_line_has_its_own_line_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = blackbox_feeds.io.open_window.open_window
    monkeypatch.setattr("blackbox_feeds.binance.source.open_window", lambda path, expected: real(path, 4_096))
    good, wrong = lines_of(TRADE), b'%d {"s":"\\u0000"}\n' % RECEIVED
    path = tmp_path / "frames.gz"
    path.write_bytes(gzip.compress(good + b"x" * 20_000 + b"\n" + wrong + good + wrong))
    source = Binance(path)
    assert len(messages_of(source)) == 2
    assert source.truncated is not None
    assert re.findall(r"line (\d+):", source.truncated) == ["2", "3", "5"]


@pytest.mark.parametrize("text", [b"%b%b", b"%b\n%b\r\n\n", b"\xef\xbb\xbf%b\xef\xbb\xbf%b", b"\n\xef\xbb\xbf%b%b"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_empty_lines_and_byte_order_marks_are_left_out(tmp_path: Path, text: bytes, end: bytes) -> None:
    path = tmp_path / "frames"
    line = b"%d %b%b" % (RECEIVED, TRADE, end)
    path.write_bytes(text % (line, line))
    source = Binance(path)
    assert [payload for *_, payload in messages_of(source)] == [line, line]
    assert source.truncated is None
    empty = path.read_bytes().replace(b"\xef\xbb\xbf", b"").splitlines().count(b"")
    assert source.notes == ((f"empty lines left out: {empty}",) if empty else ())


@pytest.mark.parametrize(
    ("unit", "text", "ns"),
    [
        ("ns", b"1723161254087896568", 1_723_161_254_087_896_568),
        ("us", b"1723161254087896", 1_723_161_254_087_896_000),
        ("us", b"1723161254087896.568", 1_723_161_254_087_896_568),
        ("ms", b"1723161254087", 1_723_161_254_087_000_000),
        ("ms", b"1723161254087.5", 1_723_161_254_087_500_000),
        ("s", b"1723161254", 1_723_161_254_000_000_000),
        ("s", b"1723161254.087896568", 1_723_161_254_087_896_568),
        ("s", b"1723161254.", 1_723_161_254_000_000_000),
    ],
)
def test_receive_times_in_any_unit(tmp_path: Path, unit: Any, text: bytes, ns: int) -> None:
    path = tmp_path / "frames"
    line = text + b' {"stream":"btcusdt@bookTicker","data":{"u":1}}\n'
    path.write_bytes(line)
    source = Binance(path, time_unit=unit)
    assert messages_of(source) == [(b"btcusdt.bookTicker", ns, line)]
    assert split(line) == (ns, line[len(text) + 1 : -1])
    others: set[Any] = {"ns", "us", "ms", "s"} - {unit}
    for other in others:
        source = Binance(path, time_unit=other)
        assert messages_of(source) == []
        assert source.truncated is not None
        assert f"which is in {unit}, expected {other}: give the source's option `time_unit`, " in source.truncated
        assert f"time_unit={unit}`" in source.truncated
    with pytest.raises(ConfigError, match="time_unit was 'us ', expected one of: ns, us, ms, s"):
        Binance(path, time_unit="us ")  # type: ignore[arg-type]


# The cases


def case(shared_data: Path, name: str) -> Path:
    return shared_data.parent / "cases" / "binance" / f"{name}.txt"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("bom_and_crlf", 10),
        ("fills_that_are_no_trades", 5),
        ("four_trades_twice_after_a_reconnect", 14),
        ("one_cut_line_in_the_middle", 9),
        ("receive_times_in_microseconds", 10),
        ("two_symbols_of_chinese_characters", 6),
    ],
)
def test_every_message_of_every_case_agrees_with_json(shared_data: Path, name: str, lines: int) -> None:
    path = case(shared_data, name)
    expected = []
    for line in path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True):
        try:
            document = json.loads(line.split(b" ", 1)[1])
        except ValueError:
            continue
        data = document["data"]
        topic = f"{data['s'].replace('USDT', 'usdt').replace('BTC', 'btc')}.{data['e']}".encode()
        expected.append((topic, data["E"] * 1_000_000, line))
    source = Binance(path, time_unit="us" if "micro" in name else "ns")
    assert messages_of(source) == expected
    assert len(expected) == lines
    assert (source.truncated is not None) == (name == "one_cut_line_in_the_middle")


def test_two_symbols_of_chinese_characters_stay_distinct(shared_data: Path, tmp_path: Path) -> None:
    source = Binance(case(shared_data, "two_symbols_of_chinese_characters"))
    (day,) = import_days(feed_of("binance"), tmp_path, [source])
    recording = Recording.open(day.path)
    found = recording.to_pandas()
    assert found.groupby("symbol", observed=True).size().to_dict() == {"币安人生usdt": 3, "测试测试usdt": 3}
    assert len(recording.to_pandas(prefix="币安人生usdt.".encode())) == 3
    trades = recording.trades.to_pandas()
    assert trades.groupby("symbol", observed=True)["price"].agg(set).to_dict() == {
        "币安人生usdt": {0.2},
        "测试测试usdt": {5.0},
    }


def test_a_symbol_has_one_topic_however_it_is_spelt(tmp_path: Path) -> None:
    names = ["币安人生usdt", "測試usdt", "éusdt", "İusdt", "iusdt", 'a"b\\c', "a b", "😀usdt", "a.busdt"]
    frames = []
    for name in names:
        for ascii_only in (False, True):
            stream = json.dumps(f"{name}@trade", ensure_ascii=ascii_only).encode()
            symbol = json.dumps(name.replace("usdt", "USDT"), ensure_ascii=ascii_only).encode()
            frames += [b'{"stream":%b,"data":{"s":%b}}' % (stream, symbol), b'{"e":"trade","s":%b}' % symbol]
    found, source = read(tmp_path, lines_of(*frames))
    assert [topic for topic, _ in found] == [f"{name}.trade" for name in names for _ in range(4)]
    assert source.truncated is None


NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc")).filter(lambda each: each != "@"), min_size=1, max_size=20
).filter(lambda name: not name.startswith("!"))


@settings(max_examples=examples(150))
@given(st.lists(NAMES, min_size=1, max_size=8, unique_by=lambda name: name.encode().lower()), st.booleans())
def test_symbol_to_topic_to_symbol_is_the_identity(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], ascii_only: bool
) -> None:
    """Except for lower-case ASCII letters: Binance uses both forms."""
    spelt = [json.dumps({"stream": f"{name}@trade"}, ensure_ascii=ascii_only).encode() for name in names]
    bare = [json.dumps({"e": "trade", "s": name}, ensure_ascii=ascii_only).encode() for name in names]
    path = tmp_path_factory.getbasetemp() / "names"
    path.write_bytes(lines_of(*spelt, *bare))
    topics = [topic for topic, *_ in messages_of(Binance(path))]
    assert [SymbolRule().symbol_of(topic) for topic in topics] == [name.encode().lower() for name in names * 2]
    assert len(set(topics)) == len(names)


def test_trades_and_quotes_follow_binances_documentation() -> None:
    assert SCHEMA.trades == (
        TradeFields("trade", "p", "q", only=("X", "MARKET"), id="t"),
        TradeFields("aggTrade", "p", "q", rank=1, id="a"),
    )
    assert SCHEMA.quotes == (QuoteFields("bookTicker", "b", "B", "a", "A", absent=0),)


def test_a_cut_gzip_file_is_reported(shared_data: Path, tmp_path: Path) -> None:
    packed = file_of(shared_data, "spot_ethusdt").read_bytes()
    path = tmp_path / "frames.gz"
    path.write_bytes(packed[: len(packed) // 2])
    source = Binance(path)
    assert 0 < len(messages_of(source)) < LINES["spot_ethusdt"]
    assert source.truncated is not None
    assert re.search(r"inside the line that starts at byte \d+ \(gzip data ends early, at", source.truncated)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("window_bytes", [700, 4 << 20])
def test_after_a_damaged_member_the_partial_line_is_skipped(
    tmp_path: Path, seed: int, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = blackbox_feeds.io.open_window.open_window
    monkeypatch.setattr("blackbox_feeds.binance.source.open_window", lambda path, expected: real(path, window_bytes))
    chance = random.Random(seed)
    lines = [lines_of(TRADE.replace(b"1.5", b"%d.5" % chance.randrange(10**6))) for _ in range(3_000)]
    # Members may end within a line.
    text, first = b"".join(lines), len(b"".join(lines[:1_000]))
    second = len(b"".join(lines[:2_000])) + chance.choice([0, 30])
    members = [gzip.compress(part) for part in (text[:first], text[first:second], text[second:])]
    cut = chance.randrange(1, len(members[1]))
    path = tmp_path / "frames.gz"
    path.write_bytes(members[0] + members[1][:cut] + members[2])
    source = Binance(path)
    found = [payload for *_, payload in messages_of(source)]
    assert found[:1_000] == lines[:1_000]
    assert found[-999:] == lines[2_001:], "the first piece is never delivered, even if it is whole"
    between = found[1_000:-999]
    assert between == lines[1_000 : 1_000 + len(between)], "whole lines from before the cut, and no other"
    assert source.truncated is not None
    at = len(members[0]) + cut
    assert (
        f"(gzip data ends early, at compressed byte {at}); reading goes on at compressed byte {at}," in source.truncated
    )
    assert source.truncated.endswith(", with the next whole line")
    assert "left out" not in source.truncated, "the first piece is no bad line"


def test_a_file_of_another_format_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="none: cannot be read: No such file .* expected lines of receive time and"):
        messages_of(Binance(tmp_path / "none"))


KEYS = st.sampled_from(["e", "E", "T", "s", "b", "B", "A", "data", "stream", "symbol", "lastUpdateId"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="."), max_size=6)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.integers(YEAR_2000 // 10**6, YEAR_2100 // 10**6)
    | st.floats(allow_nan=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | KEYS, inner, max_size=4),
    max_leaves=12,
)
FRAMES = st.dictionaries(KEYS | st.text(max_size=3), JSON, max_size=5)


def names_in(frame: dict[str, Any]) -> dict[str, str]:
    """Return the stream, event and symbol of a frame: the last of each that is a text."""
    names = {}
    for key, value in frame.items():
        level = value if key == "data" and isinstance(value, dict) else {key: value}
        for each, name in level.items():
            known = each in ("e", "s", "symbol") or (each == "stream" and level is not value)
            if known and isinstance(name, str):
                names["s" if each == "symbol" else each] = name
    return names


def is_bad(frame: dict[str, Any]) -> bool:
    """Return True if a name has a control character, or the time is outside the years 2000 to 2099."""
    wrong = any(unicodedata.category(each) == "Cc" for name in names_in(frame).values() for each in name)
    return wrong or time_of(frame) is None


def time_of(frame: dict[str, Any]) -> int | None:
    """Return the exchange's time of a frame in ns, 0 if it has none, None if it is outside the years 2000 to 2099."""
    times = {}
    for key, value in frame.items():
        level = value if key == "data" and isinstance(value, dict) else {key: value}
        times.update({each: time for each, time in level.items() if not isinstance(time, dict | list)})
    for text in (str(times.get("E")), str(times.get("T"))):
        if re.fullmatch("[0-9]+", text) and int(text):
            units = [unit for unit in (10**6, 10**3, 1) if YEAR_2000 <= int(text) * unit < YEAR_2100]
            return int(text) * units[0] if units else None
    return 0


@settings(max_examples=examples(150))
@example([{"e": "\x1f"}], False, 0)
@example([{"e": "\x1f"}, {"s": "A", "data": {"symbol": "\x85"}}, {"data": {"stream": "\0"}}], True, 0)
@given(st.lists(FRAMES, min_size=1, max_size=6), st.booleans(), st.integers(0, 2**32))
def test_any_json_is_read_completely_and_damage_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, frames: list[dict[str, Any]], compact: bool, seed: int
) -> None:
    separators = (",", ":") if compact else (", ", ": ")
    text = lines_of(*(json.dumps(frame, separators=separators).encode() for frame in frames))
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(text)
    source = Binance(path)
    found = messages_of(source)
    good = [frame for frame in frames if not is_bad(frame)]
    lines = zip(frames, text.splitlines(keepends=True), strict=True)
    assert [payload for *_, payload in found] == [line for frame, line in lines if not is_bad(frame)]
    left_out, many = len(frames) - len(good), len(frames)
    told = (source.truncated or "").partition(" valid: ")[0].partition(" left out: ")[0]
    all_bad = f"{path}: none of its {many} lines is"
    assert told == ("" if not left_out else all_bad if not good else f"{path}: {left_out} of {many} lines were bad and")
    assert (source.truncated is None) == (left_out == 0)
    for frame, (_, ts_event, payload) in zip(good, found, strict=True):
        assert ts_event == (time_of(frame) or split(payload)[0])
    flipped = bytearray(text)
    chance = random.Random(seed)
    for _ in range(3):
        flipped[chance.randrange(len(flipped))] = chance.randrange(256)
    path.write_bytes(flipped[: chance.randrange(len(flipped) + 1)])
    assert len(messages_of(Binance(path))) <= len(flipped)
