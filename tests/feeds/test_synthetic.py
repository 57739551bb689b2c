"""The synthetic session is exact, repeatable, and valid for an independent reader."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
from blackbox_feeds.io.dates import midnight_ns
from blackbox_feeds.itch50 import SCHEMA, Itch50
from blackbox_feeds.synthetic import Synthetic

from blackbox.errors import ConfigError, SourceError
from tests.feeds.build import ITCH_LENGTHS, messages_of

SECOND = 10**9
OPEN, CLOSE = 34_200, 57_600


def session_bytes(source: Synthetic, messages: int = 131_072) -> bytes:
    return b"".join(window.tobytes() for window in source.windows(messages))


def payloads_of(data: bytes) -> list[bytes]:
    payloads, position = [], 0
    while position < len(data):
        (length,) = struct.unpack_from(">H", data, position)
        payloads.append(data[position + 2 : position + 2 + length])
        position += 2 + length
    return payloads


class Market:
    """Every order of a session, in plain Python; rejects anything inconsistent."""

    def __init__(self) -> None:
        self.names: dict[int, bytes] = {}
        self.orders: dict[int, list[int]] = {}
        self.books: dict[int, set[int]] = {}
        self.references: set[int] = set()
        self.matches: set[int] = set()
        self.events = b""
        self.time = 0
        self.kinds: Counter[str] = Counter()

    def take(self, payload: bytes) -> None:
        kind = chr(payload[0])
        assert len(payload) == ITCH_LENGTHS[kind]
        locate, _, high, low = struct.unpack_from(">HHHI", payload, 1)
        time = high << 32 | low
        assert time >= self.time
        self.time = time
        self.kinds[kind] += 1
        getattr(self, f"take_{kind.lower()}")(locate, payload)

    def rest(self, locate: int, reference: int, side: int, shares: int, price: int) -> None:
        assert reference not in self.references
        assert shares > 0
        assert price >= 10_000
        assert price % 100 == 0
        self.references.add(reference)
        self.orders[reference] = [locate, side, shares, price]
        book = self.books.setdefault(locate, set())
        book.add(reference)
        bids = [self.orders[r][3] for r in book if self.orders[r][1] == ord("B")]
        asks = [self.orders[r][3] for r in book if self.orders[r][1] == ord("S")]
        assert max(bids, default=0) < min(asks, default=1 << 40)

    def reduce(self, locate: int, reference: int, shares: int) -> list[int]:
        order = self.orders[reference]
        assert order[0] == locate
        assert 0 < shares <= order[2]
        order[2] -= shares
        if order[2] == 0:
            self.remove(reference)
        return order

    def remove(self, reference: int) -> list[int]:
        order = self.orders.pop(reference)
        self.books[order[0]].remove(reference)
        return order

    def match(self, number: int) -> None:
        assert number not in self.matches
        self.matches.add(number)

    def take_s(self, locate: int, payload: bytes) -> None:
        assert locate == 0
        self.events += payload[11:]

    def take_r(self, locate: int, payload: bytes) -> None:
        assert self.events == b"O"
        assert locate not in self.names
        self.names[locate] = payload[11:19]

    def take_h(self, locate: int, payload: bytes) -> None:
        assert payload[11:20] == self.names[locate] + b"T"

    def take_a(self, locate: int, payload: bytes) -> None:
        assert self.events == b"OSQ"
        reference, side, shares, stock, price = struct.unpack_from(">QBI8sI", payload, 11)
        assert side in b"BS"
        assert stock == self.names[locate]
        self.rest(locate, reference, side, shares, price)

    def take_f(self, locate: int, payload: bytes) -> None:
        assert payload[36:].isalpha()
        self.take_a(locate, payload)

    def take_e(self, locate: int, payload: bytes) -> None:
        reference, shares, number = struct.unpack_from(">QIQ", payload, 11)
        side, price = self.orders[reference][1], self.orders[reference][3]
        same = [o[3] for o in map(self.orders.__getitem__, self.books[locate]) if o[1] == side]
        assert price == (max(same) if side == ord("B") else min(same))
        self.reduce(locate, reference, shares)
        self.match(number)

    def take_c(self, locate: int, payload: bytes) -> None:
        reference, shares, number, printable, price = struct.unpack_from(">QIQcI", payload, 11)
        order = self.reduce(locate, reference, shares)
        assert printable == b"Y"
        assert abs(price - order[3]) == 100
        self.match(number)

    def take_x(self, locate: int, payload: bytes) -> None:
        reference, shares = struct.unpack_from(">QI", payload, 11)
        self.reduce(locate, reference, shares)
        assert reference in self.orders

    def take_d(self, locate: int, payload: bytes) -> None:
        (reference,) = struct.unpack_from(">Q", payload, 11)
        assert self.remove(reference)[0] == locate

    def take_u(self, locate: int, payload: bytes) -> None:
        old, new, shares, price = struct.unpack_from(">QQII", payload, 11)
        order = self.remove(old)
        assert order[0] == locate
        self.rest(locate, new, order[1], shares, price)

    def take_p(self, locate: int, payload: bytes) -> None:
        reference, side, shares, stock, price, number = struct.unpack_from(">QcI8sIQ", payload, 11)
        assert (reference, side, stock) == (0, b"B", self.names[locate])
        assert shares > 0
        assert price > 0
        self.match(number)


@pytest.mark.parametrize("symbols", [40, 5_000])
def test_an_independent_reader_finds_nothing_wrong(symbols: int) -> None:
    market = Market()
    source = Synthetic(50_000, symbols=symbols)
    for payload in payloads_of(session_bytes(source)):
        market.take(payload)
    assert market.events == b"OSQMEC"
    assert len(market.names) == source.symbols == min(symbols, 2_499)
    assert set(market.kinds) == set("SRHAFECXDUP")
    assert market.kinds["H"] == market.kinds["R"] == source.symbols
    names = [market.names[locate] for locate in sorted(market.names)]
    assert names == sorted(set(names))
    assert all(name.decode().rstrip().isalpha() for name in names)
    assert b"AAPL    " in names


@pytest.mark.parametrize("messages", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 25, 26, 27, 100, 1_000, 131_071, 131_073])
def test_a_session_has_exactly_the_requested_messages(messages: int) -> None:
    source = Synthetic(messages)
    assert source.total == messages
    found = messages_of(source)
    assert len(found) == messages
    assert source.truncated is None
    if messages >= 9:
        market = Market()
        for _, _, payload in found:
            market.take(payload)
        assert market.events == b"OSQMEC"
    elif messages:
        assert found[0][0] == b"#system.S"


def test_the_same_seed_gives_the_same_bytes_for_any_window() -> None:
    whole = session_bytes(Synthetic(30_000))
    assert session_bytes(Synthetic(30_000), messages=777) == whole
    assert session_bytes(Synthetic(30_000), messages=30_000) == whole
    assert session_bytes(Synthetic(30_000, seed=8)) != whole
    assert session_bytes(Synthetic(30_000, date="2026-01-06", topic="{type}")) == whole


def test_the_bytes_never_change() -> None:
    digest = hashlib.sha256(session_bytes(Synthetic(100_000))).hexdigest()
    assert digest == "14220e1c31bdd81a827f14410806242f547ceacfae42049c7d5e2a9c0180bbca"


def test_a_written_session_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "20260105.itch"
    source = Synthetic(20_000)
    assert source.write(path) == path.stat().st_size
    assert path.read_bytes() == session_bytes(source)
    reader = Itch50(path)
    assert messages_of(reader) == messages_of(source)
    assert reader.truncated is None
    with pytest.raises(SourceError, match="cannot be written"):
        source.write(tmp_path)


def test_times_are_of_the_date() -> None:
    (chunk,) = Synthetic(1_000, date="2026-07-01").chunks()
    seconds = (chunk.ts_event - midnight_ns(Synthetic(1, date="2026-07-01").date)) / SECOND
    assert seconds[0] == 3 * 3600
    assert seconds[-1] == 20 * 3600 + 300
    body = seconds[3 + 2 * 49 : -3]
    assert body[0] >= OPEN
    assert body[-1] < CLOSE


def test_the_rate_is_u_shaped_with_bursts_of_ten_times_the_mean() -> None:
    source = Synthetic(2_000_000, symbols=500)
    per_second = numpy.zeros(86_400, numpy.int64)
    for chunk in source.chunks():
        seconds = (chunk.ts_event - midnight_ns(source.date)) // SECOND
        per_second += numpy.bincount(seconds, minlength=86_400)
    body = per_second[OPEN:CLOSE]
    mean = body.mean()
    assert body.sum() == 2_000_000 - 2 * 500 - 5
    assert body.max() == pytest.approx(10 * mean, rel=0.02)
    bursts = body > 5 * mean
    assert 40 < bursts.sum() < 200
    usual = numpy.where(bursts, 0, body)
    first, noon, last = usual[:1_800].mean(), usual[10_800:12_600].mean(), usual[-1_800:].mean()
    assert first > 2.5 * noon
    assert last > 2.5 * noon


def test_activity_is_zipf_like() -> None:
    source = Synthetic(500_000, symbols=1_000, topic="{symbol}")
    counts: Counter[bytes] = Counter()
    for chunk in source.chunks():
        per_topic = numpy.bincount(chunk.topic_index, minlength=len(chunk.topics))
        counts.update(dict(zip(chunk.topics, per_topic.tolist(), strict=True)))
    del counts[b"#system"]
    weights = 1 / (numpy.arange(1_000) + 3.0)
    expected = 498_000 * weights / weights.sum()
    found = numpy.array(sorted(counts.values(), reverse=True)) - 2
    assert found[:20] == pytest.approx(expected[:20], rel=0.05)
    assert found[100:500].sum() == pytest.approx(expected[100:500].sum(), rel=0.02)
    assert counts.most_common(1)[0][0] == b"NVDA"


def test_prices_walk() -> None:
    source = Synthetic(400_000, symbols=20, topic="{symbol}")
    prices: dict[int, list[int]] = {}
    for chunk in source.chunks():
        trades = chunk.payloads[chunk.starts] == ord("P")
        places = chunk.starts[trades][:, None] + numpy.arange(44)
        records = chunk.payloads[places].view(SCHEMA.dtype("P"))[:, 0]
        for locate, price in zip(records["stock_locate"], records["price"].tolist(), strict=True):
            prices.setdefault(int(locate), []).append(price)
    assert len(prices) == 20
    for walk in prices.values():
        assert len(set(walk)) > 10
        assert numpy.abs(numpy.diff(walk)).max() < 0.2 * max(walk)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"messages": -1}, "messages was -1, expected 0 to"),
        ({"messages": 1, "symbols": 0}, "symbols was 0, expected 1 to 65535"),
        ({"messages": 1, "symbols": "abc"}, "symbols was 'abc', expected 1 to 65535"),
        ({"messages": 1, "symbols": 65_536}, "symbols was 65536, expected 1 to 65535"),
        ({"messages": 1, "seed": -1}, "seed was -1, expected 0 to"),
        ({"messages": 1, "date": "soon"}, "date was 'soon'"),
        ({"messages": 1, "topic": "{price}"}, "topic template was '{price}'"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Synthetic(**options)


def test_from_spec() -> None:
    source = Synthetic.from_spec("1_000_000", seed=3)
    assert (source.messages, source.seed) == (1_000_000, 3)
    assert repr(source) == "<Synthetic 1,000,000 messages, 5,000 symbols, seed 3>"
    with pytest.raises(ConfigError, match="number of messages was 'many', expected one such as"):
        Synthetic.from_spec("many")
    with pytest.raises(ConfigError, match="Synthetic: option was 'speed', expected one of: seed, sym"):
        Synthetic.from_spec("1", speed=3)


def test_a_session_may_use_all_locates() -> None:
    source = Synthetic(20 * 65_535 + 6, symbols=65_535)
    assert source.symbols == 65_535
    (first, *_) = source.windows()
    names = {payload[11:19] for payload in payloads_of(first.tobytes()) if payload[:1] == b"R"}
    assert len(names) == 65_535
