"""Binance frames: real files compared with the json module, every kind of frame, damage, and exact export."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
import unicodedata
from contextlib import suppress
from pathlib import Path
from typing import Any

import blackbox_feeds.binance.frame_reader
import blackbox_feeds.io.columns
import numpy
import pytest
from blackbox_feeds.binance import Binance, export_binance, split
from blackbox_feeds.io.open_window import open_window
from blackbox_feeds.io.window import FileWindow
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blackbox.archive.export.source_file import export
from blackbox.archive.export.time_order import Messages
from blackbox.errors import ConfigError, SourceError
from blackbox.feed.routing.symbol import SymbolRule
from tests.examples import examples, first_of
from tests.feeds.build import Message, messages_of, payloads_of, use_windows
from tests.recorded import recorded

FILES = {
    "cases/binance/bom_and_crlf.txt": 10,
    "cases/binance/fills_that_are_no_trades.txt": 5,
    "cases/binance/four_trades_twice_after_a_reconnect.txt": 14,
    "cases/binance/one_cut_line_in_the_middle.txt": 9,
    "cases/binance/receive_times_in_microseconds.txt": 10,
    "cases/binance/two_symbols_of_chinese_characters.txt": 6,
    "data/binance/spot_ethusdt_20240808.gz": 33_618,
    "data/binance/cm_ethusd_perp_20240808.gz": 40_454,
    "data/binance/usdm_btcusdt_20240808.gz": 93_954,
    "data/binance/cm_btcusd_perp_20240808.gz": 48_270,
    "data/binance/spot_btcusdt_20240808.gz": 41_249,
}
"""Shared files, and their valid lines."""
YEAR_2000, YEAR_2100 = 946_684_800 * 10**9, 4_102_444_800 * 10**9
RECEIVED = 1_723_161_254_087_896_568
MS = 10**6
T = 1_700_000_000_000 * MS
TRADE = b'{"stream":"btcusdt@trade","data":{"e":"trade","E":1723161255343,"s":"BTCUSDT","p":"1.5"}}'


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


@pytest.mark.parametrize("name", first_of(FILES, keep=8))
def test_real_file_agrees_with_json(shared_data: Path, name: str) -> None:
    path = shared_data.parent / name
    with open_window(path, 1 << 26) as window:
        content = window.data.tobytes()
    symbols: set[str] = set()
    expected = []
    for line in content.removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True):
        with suppress(json.JSONDecodeError):
            expected.append(reference(line, symbols))
    source = Binance(path, time_unit="us" if "micro" in name else "ns")
    assert messages_of(source) == expected
    assert len(expected) == FILES[name]
    assert (source.truncated is not None) == ("one_cut_line" in name)
    without = sum(split(line)[0] == ts_event for _, ts_event, line in expected)
    if "data" in name:
        assert (without > 0) == ("spot" in name)
        told = f"frames without an event time, which have their receive time: {without:,}"
        assert source.notes == ((told,) if without else ())


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
        (TRADE, "btcusdt.trade", 1_723_161_255_343 * MS),
        (b'{"data":{"E":1700000000005,"e":"trade"},"stream":"btcusdt@trade"}', "btcusdt.trade", T + 5 * MS),
        (b'{"stream":"btcusdt@aggTrade","data":{"T":1700000000007}}', "btcusdt.aggTrade", T + 7 * MS),
        (b'{"stream":"btcusdt@aggTrade","data":{"T":7,"E":1700000000008}}', "btcusdt.aggTrade", T + 8 * MS),
        (
            b'{"stream":"btcusdt@kline_1m","data":{"E":1700000000009,"k":{"E":1,"T":1,"s":"X"}}}',
            "btcusdt.kline_1m",
            T + 9 * MS,
        ),
        (b'{"stream":"btcusdt@depth20@100ms","data":{"lastUpdateId":1}}', "btcusdt.depth20", RECEIVED),
        (b'{"stream":"!markPrice@arr@1s","data":[{"E":1,"s":"X"}]}', "#system.markPrice", RECEIVED),
        (b'{"stream":"!bookTicker","data":{"u":1,"s":"BNBUSDT","E":1700000000003}}', "bnbusdt.bookTicker", T + 3 * MS),
        (b'{"e":"aggTrade","E":1700000000000,"s":"BNBBTC"}', "bnbbtc.aggTrade", T),
        (b'{"e":"depthUpdate","E":1700000000000123,"s":"BNBBTC"}', "bnbbtc.depth", T + 123_000),
        (b'{"e":"markPriceUpdate","E":1700000000000123456,"s":"A"}', "a.markPrice", T + 123_456),
        (b'{"e":"forceOrder","E":1700000000004,"o":{"s":"A","T":3}}', "#system.forceOrder", T + 4 * MS),
        (b'{"u":4,"s":"BNBUSDT","b":"2","B":"3","a":"2","A":"4"}', "bnbusdt.bookTicker", RECEIVED),
        (b'{"lastUpdateId":1,"E":1700000000002,"symbol":"BTCUSD_PERP","bids":[]}', "btcusd_perp.snapshot", T + 2 * MS),
        (b'{"lastUpdateId":1,"bids":[["1","2"]]}', "#unknown.snapshot", RECEIVED),
        (b'{"result":null,"id":1}', "#system.other", RECEIVED),
        (b"{}", "#system.other", RECEIVED),
        (b'{ "stream" : "a@trade" , "data" : { "E" : 1700000000006 , "x" : [ ] , "y" : { } } }', "a.trade", T + 6 * MS),
        (b'{"x":"\\"},{\\\\","e":"t","E":1700000000001}', "#system.t", T + 1 * MS),
        (b'{"x":{"stream":"no@no","data":{"e":"no","E":1}},"e":"t"}', "#system.t", RECEIVED),
        (b'{"data":{"data":{"E":1},"stream":"no@no"},"e":"t"}', "#system.t", RECEIVED),
        (b'{"E":"1700000000005","e":"t"}', "#system.t", T + 5 * MS),
        (b'{"E":0,"T":4102444799999,"e":"t"}', "#system.t", 4_102_444_799_999 * MS),
        (b'{"E":946684800000,"e":"t"}', "#system.t", 946_684_800_000_000_000),
        (b'{"E":null,"T":1700000000002,"e":"t"}', "#system.t", T + 2 * MS),
        (b'{"stream":"a b\xc3\xa9@t\\u0041"}', "a b\u00e9.tA", RECEIVED),
        (b'{"e":"trade","s":"A\xc4\xb0"}', "a\u0130.trade", RECEIVED),
        (b'{"e":"trade","s":"\\ud83d\\ude00\\"\\\\"}', '\U0001f600"\\.trade', RECEIVED),
        (b'{"e":null,"s":null,"stream":null,"E":1700000000002}', "#system.other", T + 2 * MS),
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
        "#unknown.snapshot", "btcusdt.trade", "btcusdt.snapshot", "btcusdt.bookTicker", "btcusdt.snapshot",
        "ethusdt.trade", "#unknown.snapshot",
    ]  # fmt: skip


def test_topic_template(tmp_path: Path) -> None:
    text = lines_of(TRADE, TRADE.replace(b"@trade", b"@aggTrade"))
    assert [topic for topic, _ in read(tmp_path, text, topic="{symbol}")[0]] == ["btcusdt", "btcusdt"]


def test_too_many_streams_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackbox_feeds.binance.frame_reader, "MAX_KEYS", 16)
    streams = [b'{"stream":"s%d@trade"}' % number for number in range(17)]
    assert len(read(tmp_path, lines_of(*streams[:16]))[0]) == 16
    with pytest.raises(SourceError, match="the input has more than 16 distinct streams: it is corrupt"):
        read(tmp_path, lines_of(*streams))


@pytest.mark.parametrize("window_bytes", [1, 20, 100])
def test_lines_at_the_edge_of_a_window(tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines_of(TRADE, b'{"e":"x"}', TRADE).replace(b"\n", b"\r\n")
    expected, _ = read(tmp_path, text)
    assert len(expected) == 3
    use_windows(monkeypatch, "binance", window_bytes)
    monkeypatch.setattr(blackbox_feeds.io.columns, "CHUNK_MESSAGES", 2)
    path = tmp_path / "frames.gz"
    path.write_bytes(gzip.compress(text))
    source = Binance(path)
    assert [(topic.decode(), ts_event) for topic, ts_event, _ in messages_of(source)] == expected
    assert source.truncated is None


# Back to the file


def test_a_published_file_comes_out_byte_for_byte(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "binance" / "spot_ethusdt_20240808.gz"
    recording = recorded(tmp_path, lambda: Binance(path), slices=2)
    assert export(recording, tmp_path / "frames").messages == 33_618
    assert (tmp_path / "frames").read_bytes() == gzip.decompress(path.read_bytes())


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


MALFORMED = [
    b'{"e":"x}',
    b'{"e":"x\\',  # cut behind a backslash
    b'{"e":}',
    b'{"e" "x"}',
    b'{"e":"x",}',
    b'{"e":["x"}',
    b'{"e":[1,]}',
    b"{1:2}",
    b'{"e":%b}' % (b"[" * 100 + b"]" * 100),
]
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
    *((b"%d %b" % (RECEIVED, frame), "its frame was") for frame in MALFORMED),
    (b'%d {"stream":"%b"}' % (RECEIVED, b"x" * 1_100), "stream, event and symbol of its frame have more than 1024 by"),
    (b'%d {"s":"A\\u0000B","e":"t"}' % RECEIVED, r"stream, event or symbol was 'A\\\\u0000B', which cannot be a name"),
    (b'%d {"s":"A\\u0085","e":"t"}' % RECEIVED, "stream, event or symbol was .*: it has a control character"),
    (b'%d {"s":"\x7f","e":"t"}' % RECEIVED, "stream, event or symbol was .*: it has a control character"),
    (b'%d {"stream":"a\\ud800@trade"}' % RECEIVED, "stream, event or symbol was .*, which cannot be a name: .*surrog"),
    (b'%d {"stream":"a\xed\xa0\x80@trade"}' % RECEIVED, "stream, event or symbol was .*, which cannot be a name"),
    (b'%d {"stream":"a\xff@trade"}' % RECEIVED, "stream, event or symbol was .*, which cannot be a name"),
    (b'%d {"stream":"a\\x@trade"}' % RECEIVED, "stream, event or symbol was .*, which cannot be a name: JSON is mal"),
    (b'%d {"E":1723161255,"e":"t"}' % RECEIVED, "its event time, else its receive time, was outside the years 2000 to"),
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
def test_a_bad_line_is_named_and_the_others_are_delivered(tmp_path: Path, bad: bytes, words: str) -> None:
    path = tmp_path / "frames"
    good = lines_of(TRADE, TRADE)
    for end, more in ((b"", b""), (b"\r\n", b""), (b"\n", b"%d {}\n" % RECEIVED)):
        path.write_bytes(good + bad + end + more)
        source = Binance(path)
        found = messages_of(source)
        assert b"".join(payload for *_, payload in found) == good + more
        expected = rf"{re.escape(str(path))}: 1 of {len(found) + 1} lines were bad and left out: line 3: {words}"
        assert re.match(expected, source.truncated or ""), source.truncated


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


@pytest.mark.parametrize("window_bytes", [30, 4_096])
def test_bad_lines_without_an_end_are_skipped_in_bounded_memory(
    tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[FileWindow] = []

    def small(path: Path, expected: str) -> FileWindow:
        opened.append(open_window(path, window_bytes))
        return opened[-1]

    monkeypatch.setattr("blackbox_feeds.binance.source.open_window", small)
    good = lines_of(TRADE)
    path = tmp_path / "frames.gz"
    path.write_bytes(gzip.compress(good + b"x" * 200_000 + b"\n" + good + b"y" * 200_000))
    source = Binance(path)
    assert payloads_of(source) == [good, good]
    assert "2 of 4 lines were bad and left out: line 2: its start was 'x" in (source.truncated or "")
    assert len(opened[0].data) <= 8_192


def test_a_wrong_name_after_a_long_bad_line_has_its_own_line_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_windows(monkeypatch, "binance", 4_096)
    good, wrong = lines_of(TRADE), b'%d {"s":"\\u0000"}\n' % RECEIVED
    path = tmp_path / "frames.gz"
    path.write_bytes(gzip.compress(good + b"x" * 20_000 + b"\n" + wrong + good + wrong))
    source = Binance(path)
    assert len(messages_of(source)) == 2
    assert re.findall(r"line (\d+):", source.truncated or "") == ["2", "3", "5"]


@pytest.mark.parametrize("text", [b"%b%b", b"%b\n%b\r\n\n", b"\xef\xbb\xbf%b\xef\xbb\xbf%b", b"\n\xef\xbb\xbf%b%b"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_empty_lines_and_byte_order_marks_are_left_out(tmp_path: Path, text: bytes, end: bytes) -> None:
    path = tmp_path / "frames"
    line = b"%d %b%b" % (RECEIVED, TRADE, end)
    path.write_bytes(text % (line, line))
    source = Binance(path)
    assert payloads_of(source) == [line, line]
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


NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc")).filter(lambda each: each != "@"), min_size=1, max_size=20
).filter(lambda name: not name.startswith("!"))


@settings(max_examples=examples(150))
@example(["币安人生usdt", "éusdt", "İusdt", "iusdt", 'a"b\\c', "a b", "😀usdt", "a.busdt"])
@given(st.lists(NAMES, min_size=1, max_size=8, unique_by=lambda name: name.encode().lower()))
def test_symbol_to_topic_to_symbol_is_the_identity(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    """Except for lower-case ASCII letters: Binance uses both forms."""
    path = tmp_path_factory.getbasetemp() / "names"
    forms = [{"stream": f"{name}@trade"} for name in names] + [{"e": "trade", "s": name} for name in names]
    frames = [json.dumps(form, ensure_ascii=ascii_only).encode() for ascii_only in (False, True) for form in forms]
    path.write_bytes(lines_of(*frames))
    topics = [topic for topic, *_ in messages_of(Binance(path))]
    assert [SymbolRule().symbol_of(topic) for topic in topics] == [name.encode().lower() for name in names * 4]
    assert len(set(topics)) == len(names)


@pytest.mark.parametrize("seed", range(examples(32)))
def test_after_a_damaged_member_the_partial_line_is_skipped(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_windows(monkeypatch, "binance", (700, 4 << 20)[seed % 2])
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
    found = payloads_of(source)
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
@example([{"e": "\x1f"}], False)
@example([{"e": "\x1f"}, {"s": "A", "data": {"symbol": "\x85"}}, {"data": {"stream": "\0"}}], True)
@given(st.lists(FRAMES, min_size=1, max_size=6), st.booleans())
def test_any_json_is_read_completely(
    tmp_path_factory: pytest.TempPathFactory, frames: list[dict[str, Any]], compact: bool
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
