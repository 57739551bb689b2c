"""A replay delivers no message before the time at which its content was known.

For each feed whose `ts_event` is not simply a field of its messages, a function reads that time from the payload,
according to the vendor's documentation.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import pytest
from blackbox_feeds.binance import Binance
from blackbox_feeds.dbn import Dbn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import Feed, Message, Recording, Replay, Source, Subscriber
from blackbox.archive.importing.import_days import import_days
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from tests.examples import examples
from tests.feeds.test_dbn import metadata_of, record

DAY: Final = "2026-01-05"
NOON: Final = 1_767_614_400 * 10**9
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


KINDS: Final = {
    "binance": Kind(
        "binance",
        _of(
            ["trade", "aggTrade", "bookTicker", "depthUpdate"],
            st.integers(0, 9),
            st.sampled_from(["AAPL", "IBM", "X"]),
        ),
        _write_binance,
        _known_binance,
    ),
    "dbn": Kind(
        "dbn",
        _of([*[*BARS][:3], *SAMPLED, *EVENTS], st.integers(0, 50) | st.integers(0, 90 * S), st.integers(0, 30 * S)),
        _write_dbn,
        _known_dbn,
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_no_message_is_delivered_before_its_content_was_known(name: str) -> None:
    kind = KINDS[name]

    @settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
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
