"""A replay delivers no message before the time at which its content was known.

Each feed has a function that reads that time from the payload, according to the vendor's documentation.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from blackbox_feeds.binance import Binance
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.iex import Iex
from blackbox_feeds.iex.messages import DEEP10
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.tape import Tape
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import Feed, Message, Recording, Replay, Source, Subscriber
from blackbox.archive.import_days import import_days
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from tests.examples import examples
from tests.feeds.build import ITCH_LENGTHS, ethernet, framed, iex, iex_tp, itch, pcap
from tests.feeds.test_dbn import metadata_of, record

NEW_YORK: Final = ZoneInfo("America/New_York")
DAY: Final = "2026-01-05"
MIDNIGHT: Final = int(datetime(2026, 1, 5, tzinfo=NEW_YORK).timestamp()) * 10**9
NOON: Final = MIDNIGHT + 12 * 3_600 * 10**9
S: Final = 10**9
BARS: Final = {0x20: S, 0x21: 60 * S, 0x22: 3_600 * S, 0x23: 86_400 * S}
"""ohlcv-1s, -1m, -1h, -1d: known when the interval that begins at `ts_event` has ended."""
SAMPLED: Final = {0xC3: 32, 0xC4: 32, 0xC0: 32, 0xC1: 32, 0x12: 16, 0x13: 16, 0x18: 16}
"""bbo-1s, bbo-1m, cbbo-1s, cbbo-1m, status, definition, statistics: known at `ts_recv`, at this offset."""
EVENTS: Final = (0xA0, 0x01, 0x0A, 0x00)


class Kind(NamedTuple):
    """A feed: arbitrary messages, a writer of files, and the time at which a payload's content was known."""

    schema: str
    messages: st.SearchStrategy[list[Any]]
    write: Callable[[Path, list[Any]], Source]
    known_at: Callable[[bytes], int | None]


def _write_itch(path: Path, messages: list[Any]) -> Source:
    (path / "itch").write_bytes(framed(itch(kind, ns=ns, stock=stock) for kind, ns, stock in messages))
    return Itch50(path / "itch", DAY)


def _known_itch(payload: bytes) -> int:
    return MIDNIGHT + int.from_bytes(payload[5:11], "big")


def _write_iex(path: Path, messages: list[Any]) -> Source:
    texts = [iex(kind, ns=NOON + ns, symbol=stock) for kind, ns, stock in messages]
    packets = [ethernet(iex_tp(1 + number, [text])) for number, text in enumerate(texts)]
    (path / "iex").write_bytes(pcap(packets))
    return Iex(path / "iex")


def _known_iex(payload: bytes) -> int:
    (time,) = struct.unpack_from("<q", payload, 2)
    return int(time)


def _write_tape(path: Path, messages: list[Any]) -> Source:
    files: dict[Path, list[str]] = {}
    for kind, time_ms, symbol in sorted(messages, key=lambda each: each[1]):
        row = f"{time_ms},10,1,P,0,0" if kind == "trade" else f"{time_ms},10,1,11,2,P,0,0"
        files.setdefault(path / f"{symbol}_20260105_{kind}.csv", []).append(row)
    for file, rows in files.items():
        file.write_text("\n".join(rows) + "\n")
    return Tape([*files])


def _known_tape(payload: bytes) -> int:
    time_ms = int.from_bytes(payload[TAPE_TIME_AT : TAPE_TIME_AT + 4], "little")
    return MIDNIGHT + time_ms * 1_000_000


TAPE_TIME_AT: Final = 4


def _write_binance(path: Path, messages: list[Any]) -> Source:
    lines = []
    for number, (kind, ms, symbol) in enumerate(messages):
        sent = (NOON + ms * 1_000_000) // 1_000_000
        data: dict[str, Any] = {"s": symbol, "u": number}
        if kind != "bookTicker":
            data |= {"e": kind, "E": sent}
        if kind == "trade":
            data |= {"T": sent - 5, "p": "1", "q": "1", "X": "MARKET", "t": number}
        frame = json.dumps({"stream": f"{symbol.lower()}@{kind}", "data": data}, separators=(",", ":"))
        lines.append(f"{NOON + number} {frame}\n")
    (path / "binance").write_text("".join(lines))
    return Binance(path / "binance")


def _known_binance(payload: bytes) -> int:
    received, _, frame = payload.partition(b" ")
    data = json.loads(frame)["data"]
    return int(data["E"]) * 1_000_000 if "E" in data else int(received)


def _write_dbn(path: Path, messages: list[Any]) -> Source:
    (path / "dbn").write_bytes(metadata_of(start=NOON) + b"".join(_record(*each) for each in messages))
    return Dbn(path / "dbn")


def _record(rtype: int, ns: int, delay: int) -> bytes:
    made = bytearray(record(rtype, 7, NOON + ns))
    if rtype in SAMPLED:
        struct.pack_into("<q", made, SAMPLED[rtype], NOON + ns + delay)
    return bytes(made)


def _known_dbn(payload: bytes) -> int | None:
    rtype, (happened,) = payload[1], struct.unpack_from("<q", payload, 8)
    if rtype in BARS:
        return int(happened) + BARS[rtype]
    if rtype in SAMPLED:
        return int(struct.unpack_from("<q", payload, SAMPLED[rtype])[0])
    return int(happened) if rtype in EVENTS else None


def _of(kinds: Any, times: st.SearchStrategy[int], last: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.tuples(st.sampled_from(list(kinds)), times, last), min_size=1, max_size=40)


SYMBOLS: Final = st.sampled_from(["AAPL", "IBM", "X"])
SOON: Final = st.integers(0, 50) | st.integers(0, 90 * S)
KINDS: Final = {
    "itch50": Kind(
        "itch50", _of(ITCH_LENGTHS, SOON.map(lambda ns: 12 * 3_600 * S + ns), SYMBOLS), _write_itch,
        _known_itch,
    ),
    "iex": Kind("iex_deep10", _of(DEEP10.records, SOON, SYMBOLS), _write_iex, _known_iex),
    "tape": Kind(
        "tape", _of(["trade", "quote"], st.integers(36_000_000, 36_000_009), SYMBOLS), _write_tape, _known_tape
    ),
    "binance": Kind(
        "binance", _of(["trade", "aggTrade", "bookTicker", "depthUpdate"], st.integers(0, 9), SYMBOLS), _write_binance,
        _known_binance,
    ),
    "dbn events": Kind("dbn", _of(EVENTS, SOON, st.integers(0, S)), _write_dbn, _known_dbn),
    "dbn sampled": Kind("dbn", _of(SAMPLED, SOON, st.integers(0, 30 * S)), _write_dbn, _known_dbn),
    "dbn bars": Kind("dbn", _of([*BARS][:3], SOON, st.just(0)), _write_dbn, _known_dbn),
    "dbn": Kind("dbn", _of([*[*BARS][:3], *SAMPLED, *EVENTS], SOON, st.integers(0, S)), _write_dbn, _known_dbn),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_no_message_is_delivered_before_its_content_was_known(name: str) -> None:
    kind = KINDS[name]

    @settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
    @given(kind.messages, st.sampled_from([0, 2]), st.integers(1, 3))
    def check(messages: list[Any], key_bytes: int, slices: int) -> None:
        with TemporaryDirectory() as directory:
            path = Path(directory)
            source = kind.write(path, messages)
            feed = Feed.local("early", slices=slices, schema=kind.schema, key_bytes=key_bytes)
            (day,) = import_days(feed, path / "days", [source], date=DAY)
            clock = ManualClock(automatic=True)
            recording = Recording.open(day.path)
            subscriber = Subscriber(recording.feed)
            delays: list[int | None] = []
            begin_ns = recording.time_range("ts_event")[0]

            @subscriber.on(b"")
            def _(message: Message) -> None:
                known_ns = kind.known_at(bytes(message.payload))
                delays.append(None if known_ns is None else begin_ns + clock.now_ns() - known_ns)

            subscriber.replay(Replay(recording, controls=Controls(1.0, clock=clock)))
        known = [delay for delay in delays if delay is not None]
        assert len(known) == len(messages)
        assert min(known) >= 0

    check()


def test_known_times_of_handmade_messages() -> None:
    """Check each function with handmade messages."""
    assert _known_itch(itch("A", ns=5)) == MIDNIGHT + 5
    assert _known_iex(iex("T", ns=5)) == 5
    assert _known_binance(b'7 {"data":{"E":5}}') == 5_000_000
    assert _known_binance(b'7 {"data":{"u":5}}') == 7
    assert _known_dbn(record(0x21, 7, 5)) == 5 + 60 * S
    assert _known_dbn(_record(0xC3, 5, 4)) == NOON + 9
    assert _known_dbn(_record(0xA0, 5, 4)) == NOON + 5
    assert datetime(2026, 1, 5, 5, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC) == timedelta(seconds=MIDNIGHT // S)
