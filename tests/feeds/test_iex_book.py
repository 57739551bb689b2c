"""Books from IEX DEEP messages compared with plain Python, for a real day and for any messages."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from pathlib import Path

import numpy
from blackbox_feeds.iex import Iex
from blackbox_feeds.iex.book import BOOK
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.book.book import Level, levels
from blackbox.book.orders import BUY, SELL
from tests.book.applied import applications, applied
from tests.examples import examples
from tests.feeds.build import iex

Side = dict[int, int]


class SlowBook:
    """Shares by price, and the best levels after each event."""

    def __init__(self) -> None:
        self.sides: tuple[Side, Side] = ({}, {})
        self.counts: Counter[str] = Counter()
        self.changes = 0
        self._best: list[tuple[int, int] | None] = [None, None]

    def apply(self, payload: bytes) -> None:
        if payload[:1] not in (b"8", b"5"):
            return
        if len(payload) != 30:
            self.counts["refused"] += 1
            return
        side = self.sides[payload[:1] == b"5"]
        size, price = struct.unpack_from("<Iq", payload, 18)
        there = price in side
        self.counts[("replaced" if size else "removed") if there else ("added" if size else "unknown")] += 1
        side.pop(price, None)
        if size:
            side[price] = size
        if payload[1] & 1:
            bids, asks = self.sides
            if bids and asks:
                self.counts["locked"] += max(bids) == min(asks)
                self.counts["crossed"] += max(bids) > min(asks)
            best = [(at := pick(each), each[at]) if each else None for each, pick in ((bids, max), (asks, min))]
            self.changes += best != self._best
            self._best = best

    def levels(self, side: int) -> list[Level]:
        return [Level(price, self.sides[side][price], 0) for price in sorted(self.sides[side], reverse=side == BUY)]


def check(payloads: list[bytes]) -> SlowBook:
    slow = SlowBook()
    for payload in payloads:
        slow.apply(payload)
    book, changes = applied(BOOK, payloads)
    assert (levels(book, BUY, 10_000), levels(book, SELL, 10_000)) == (slow.levels(BUY), slow.levels(SELL))
    assert applications(book) == dict(+slow.counts)
    assert changes == slow.changes
    return slow


def update(kind: str, flags: int, size: int, price: int) -> bytes:
    return iex(kind)[:1] + bytes([flags]) + iex(kind)[2:18] + struct.pack("<Iq", size, price)


updates = st.builds(
    update, st.sampled_from("85"), st.sampled_from([0, 1, 1, 0x80]), st.integers(0, 3), st.integers(98, 104)
)
others = st.sampled_from([iex("T"), iex("S"), iex("8")[:-1], iex("5", extra=b"x"), b"", b"8", b"5"])


@settings(max_examples=examples(200))
@given(st.lists(st.one_of(updates, updates, others), max_size=80))
def test_any_messages(payloads: list[bytes]) -> None:
    check(payloads)


def test_levels_of_a_real_day_equal_a_plain_loops(shared_data: Path) -> None:
    """For each symbol. The prices are those of a test environment; no TOPS file of that day exists for comparison."""
    payloads: dict[int, list[bytes]] = defaultdict(list)
    for chunk in Iex(shared_data / "iex" / "goiex_DEEP10.pcap.gz", topic="{symbol}").chunks():
        kinds = chunk.payloads[chunk.starts]
        for row in numpy.flatnonzero((kinds == ord("8")) | (kinds == ord("5"))).tolist():
            start = chunk.starts[row]
            payloads[int(chunk.topic_index[row])].append(chunk.payloads[start : start + 30].tobytes())
    slow = [check(own) for own in payloads.values()]
    assert sum(map(len, payloads.values())) == 14_627 + 12_941
    assert sum(each.changes for each in slow) > 1_000
