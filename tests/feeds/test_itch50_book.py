"""Books from ITCH messages of real files compared with plain Python, and from bad messages."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.itch50.book import BOOK
from blackbox_feeds.synthetic import Synthetic

from blackbox.book.book import Level, counters, levels
from blackbox.book.orders import BUY, SELL
from tests.book.applied import applications, applied, levels_of
from tests.feeds.build import itch, messages_of, payloads_of

Slow = dict[int, tuple[bytes, int, int]]


def slow_book(payloads: list[bytes]) -> tuple[Slow, list[tuple[Any, ...]]]:
    """Return the orders that rest at the end, and the best levels after each change; every reference must resolve."""
    orders: Slow = {}
    changes: list[tuple[Any, ...]] = [((), ())]
    for payload in payloads:
        if apply_slowly(orders, payload):
            best = tuple(top(orders, side) for side in (b"B", b"S"))
            if best != changes[-1]:
                changes.append(best)
    return orders, changes[1:]


def apply_slowly(orders: Slow, payload: bytes) -> bool:
    """Apply one message to the resting orders; return True if it concerns an order."""
    kind = payload[:1]
    if kind in b"AF":
        reference, side, many = struct.unpack_from(">QcI", payload, 11)
        orders[reference] = (side, struct.unpack_from(">I", payload, 32)[0], many)
    elif kind in b"ECX":
        reference, many = struct.unpack_from(">QI", payload, 11)
        side, price, rest = orders.pop(reference)
        assert many <= rest
        if many < rest:
            orders[reference] = (side, price, rest - many)
    elif kind == b"D":
        del orders[struct.unpack_from(">Q", payload, 11)[0]]
    elif kind == b"U":
        old, new, many, price = struct.unpack_from(">QQII", payload, 11)
        orders[new] = (orders.pop(old)[0], price, many)
    else:
        return False
    return True


def top(orders: Slow, side: bytes) -> tuple[int, ...]:
    prices = [price for its, price, _ in orders.values() if its == side]
    if not prices:
        return ()
    best = max(prices) if side == b"B" else min(prices)
    return best, sum(rest for its, price, rest in orders.values() if (its, price) == (side, best))


def all_levels(orders: Slow, side: bytes) -> list[Level]:
    sides = {b"B": BUY, b"S": SELL}
    return levels_of(((sides[its], price, rest) for its, price, rest in orders.values()), sides[side])


@pytest.fixture(scope="module")
def apple(shared_data: Path) -> list[bytes]:
    source = Itch50(shared_data / "itch50" / "runk_locate-13-10k.bin", "2020-01-30")
    return payloads_of(source)


def test_every_reference_of_a_real_file_resolves(apple: list[bytes]) -> None:
    book, changes = applied(BOOK, apple)
    orders, expected = slow_book(apple)
    assert changes == len(expected) > 100
    assert levels(book, BUY, 10_000) == all_levels(orders, b"B")
    assert levels(book, SELL, 10_000) == all_levels(orders, b"S")
    found = counters(book)
    assert found.pop("orders") == len(orders)
    found.pop("locked"), found.pop("crossed")
    kinds = Counter(payload[:1].decode() for payload in apple)
    assert {name: many for name, many in found.items() if many} == {
        "added": kinds["A"] + kinds["F"],
        "taken": kinds["E"] + kinds["X"],
        "removed": kinds["D"],
        "replaced": kinds["U"],
    }


def test_a_file_that_begins_during_the_day_has_unknown_references(shared_data: Path) -> None:
    source = Itch50(shared_data / "itch50" / "jamison_12302019_SNIPPET.NASDAQ_ITCH50", "2019-12-30")
    payloads = payloads_of(source)
    known: set[bytes] = set()
    unknown = 0
    for payload in payloads:
        if payload[:1] in b"AF":
            known.add(payload[11:19])
        elif payload[:1] in b"ECXDU":
            unknown += payload[11:19] not in known
            if payload[:1] == b"U" and payload[11:19] in known:
                known.add(payload[19:27])
    book, _ = applied(BOOK, payloads)
    assert counters(book)["unknown"] == unknown > 0


def test_message_of_another_length_is_refused() -> None:
    payloads = [itch("A")[:-1], itch("D") + b"x", b"", b"A", itch("P"), itch("S")]
    book, changes = applied(BOOK, payloads)
    assert changes == 0
    assert applications(book) == {"refused": 3}


def test_books_of_a_whole_synthetic_session() -> None:
    """All references resolve and no book is ever crossed."""
    source = Synthetic(60_000, symbols=40)
    payloads: dict[bytes, list[bytes]] = {}
    for topic, _, payload in messages_of(source):
        payloads.setdefault(topic.rpartition(b".")[0], []).append(payload)
    for own in payloads.values():
        found = counters(applied(BOOK, own)[0])
        assert (found["unknown"], found["crossed"], found["too_many"], found["duplicate"]) == (0, 0, 0, 0)
        kinds = Counter(payload[:1] for payload in own)
        assert found["added"] == kinds[b"A"] + kinds[b"F"]
