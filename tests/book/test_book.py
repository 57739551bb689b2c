"""The compiled order book compared with a slow one of dicts, for random messages."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.book import book as books
from blackbox.book.book import Level
from blackbox.book.levels import show
from blackbox.book.orders import BUY, SELL, UNKNOWN_PRICE
from tests.book.applied import applications, levels_of
from tests.examples import examples


class SlowBook:
    """Keeps orders in a dict and sums up levels on request."""

    def __init__(self) -> None:
        self.orders: dict[int, tuple[int, int, int]] = {}
        self.counts: Counter[str] = Counter()

    def add(self, reference: int, side: int, price: int, shares: int) -> None:
        self.counts["added"] += 1
        self._rest(reference, side, price, shares)

    def put(self, reference: int, side: int, price: int, shares: int) -> None:
        self.counts["replaced" if reference in self.orders else "added"] += 1
        self.orders.pop(reference, None)
        self._rest(reference, side, price, shares)

    def take(self, reference: int, shares: int) -> int:
        if reference not in self.orders:
            self.counts["unknown"] += 1
            return -1
        side, price, rest = self.orders.pop(reference)
        self.counts["taken"] += 1
        self.counts["too_many"] += shares > rest
        if shares < rest:
            self.orders[reference] = (side, price, rest - shares)
        return price

    def remove(self, reference: int) -> None:
        if reference not in self.orders:
            self.counts["unknown"] += 1
            return
        del self.orders[reference]
        self.counts["removed"] += 1

    def clear(self) -> None:
        self.orders.clear()

    def replace(self, old: int, new: int, price: int, shares: int) -> None:
        if old not in self.orders:
            self.counts["unknown"] += 1
            return
        side, _, _ = self.orders.pop(old)
        self.counts["replaced"] += 1
        self._rest(new, side, price, shares)

    def levels(self, side: int) -> list[Level]:
        return levels_of(self.orders.values(), side)

    def _rest(self, reference: int, side: int, price: int, shares: int) -> None:
        self.counts["duplicate"] += reference in self.orders
        self.orders.pop(reference, None)
        if shares:
            self.orders[reference] = (side, price, shares)

    def settle(self) -> None:
        bids, asks = self.levels(BUY), self.levels(SELL)
        if bids and asks:
            self.counts["locked"] += bids[0].price == asks[0].price
            self.counts["crossed"] += bids[0].price > asks[0].price


references = st.one_of(st.integers(0, 12), st.sampled_from([-1, -(1 << 63), (1 << 63) - 1, 1 << 40]))
prices = st.one_of(st.integers(95, 105), st.sampled_from([0, (1 << 32) - 1]))
shares = st.integers(0, 5)
messages = st.one_of(
    st.tuples(st.just("add"), references, st.sampled_from([BUY, SELL]), prices, shares),
    st.tuples(st.just("put"), references, st.sampled_from([BUY, SELL]), prices, shares),
    st.tuples(st.just("clear")),
    st.tuples(st.just("take"), references, shares),
    st.tuples(st.just("remove"), references),
    st.tuples(st.just("replace"), references, references, prices, shares),
)


@settings(max_examples=examples(150))
@given(st.lists(messages, max_size=120), st.sampled_from([(4, 4), (64, 64)]))
def test_any_messages(told: list[tuple[Any, ...]], room: tuple[int, int]) -> None:
    fast, slow = books.new_book(*room), SlowBook()
    for name, *arguments in told:
        while not books.has_room(fast.ctypes.data):
            fast = books.roomier(fast)
        answer = getattr(books, name)(fast.ctypes.data, *arguments)
        assert answer == getattr(slow, name)(*arguments)
        books.settle(fast.ctypes.data)
        slow.settle()
        for side in (BUY, SELL):
            assert books.levels(fast, side, 100) == slow.levels(side)
        assert sorted(books.order_columns(fast).tolist()) == sorted((n, *each) for n, each in slow.orders.items())
    found = books.counters(fast)
    assert found.pop("orders") == len(slow.orders)
    found.pop("unsynced")  # tests/book/test_synced.py
    assert {name: many for name, many in found.items() if many} == dict(+slow.counts)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.sampled_from([BUY, SELL]), prices, shares), max_size=120))
def test_any_levels(told: list[tuple[int, int, int]]) -> None:
    fast = books.new_book(1, 2)
    slow: tuple[dict[int, int], dict[int, int]] = ({}, {})
    counts: Counter[str] = Counter()
    for side, price, many in told:
        while not books.has_room(fast.ctypes.data):
            fast = books.roomier(fast)
        books.set_level(fast.ctypes.data, side, price, many)
        is_there = price in slow[side]
        counts[("replaced" if many else "removed") if is_there else ("added" if many else "unknown")] += 1
        slow[side].pop(price, None)
        if many:
            slow[side][price] = many
        for each in (BUY, SELL):
            expected = [Level(p, slow[each][p], 0) for p in sorted(slow[each], reverse=each == BUY)]
            assert books.levels(fast, each, 100) == expected
    found = books.counters(fast)
    found.pop("unsynced")  # tests/book/test_synced.py
    assert {name: many for name, many in found.items() if many} == dict(counts)


def test_mixing_orders_and_levels_keeps_other_orders_intact() -> None:
    book = books.new_book(8, 4)
    at = book.ctypes.data
    books.add(at, 1, BUY, 100, 5)
    books.set_level(at, BUY, 100, 0)
    books.add(at, 2, BUY, 99, 5)
    books.remove(at, 1)
    assert books.levels(book, BUY, 9) == [Level(99, 5, 1)]


def test_what_has_no_room_is_counted_and_not_confused_with_another() -> None:
    book = books.new_book(8, 2)
    for price in (100, 101, 102, 101):
        books.set_level(book.ctypes.data, SELL, price, 7)
    assert books.levels(book, SELL, 9) == [Level(100, 7, 0), Level(101, 7, 0)]
    assert books.counters(book)["forgotten"] == 1
    book = books.new_book(8, 2)
    for reference in range(5):
        books.add(book.ctypes.data, reference, BUY, 100 + reference, 1)
    assert applications(book) == {"orders": 2, "added": 5, "forgotten": 3}
    assert not books.has_room(book.ctypes.data)
    assert books.take(book.ctypes.data, 4, 1) == -1
    assert books.levels(book, BUY, 9) == [Level(101, 1, 1), Level(100, 1, 1)]


def test_many_orders_come_and_go() -> None:
    """Add and remove far more orders than the table holds at a time; it ends up empty."""
    random = numpy.random.default_rng(7)
    book = books.new_book(64, 64)
    resting: list[int] = []
    for reference in range(20_000):
        if len(resting) == 60:
            books.remove(book.ctypes.data, resting.pop(int(random.integers(60))))
        books.add(book.ctypes.data, reference * 0x9E3779B97F4A7C1 & (1 << 62) - 1, BUY, int(random.integers(30)), 1)
        resting.append(reference * 0x9E3779B97F4A7C1 & (1 << 62) - 1)
    for reference in resting:
        books.remove(book.ctypes.data, reference)
    assert applications(book) == {"added": 20_000, "removed": 20_000}
    assert books.levels(book, BUY, 100) == []


def test_a_book_of_many_orders_grows_within_its_room_and_then_forgets() -> None:
    room = 1 << 12
    book = books.new_book(room, 4)
    for reference in range(room + 1):
        books.add(book.ctypes.data, reference * 7, BUY, 100, 1)
    assert applications(book) == {"orders": room, "added": room + 1, "forgotten": 1}
    assert books.levels(book, BUY, 9) == [Level(100, room, room)]
    assert all(books.take(book.ctypes.data, reference * 7, 1) == 100 for reference in range(room))
    assert books.take(book.ctypes.data, room * 7, 1) == UNKNOWN_PRICE


def test_show_returns_true_if_the_best_levels_changed() -> None:
    book, shown = books.new_book(), numpy.zeros((2, 2, 3), numpy.int64)
    assert not show(book.ctypes.data, 2, shown)
    books.add(book.ctypes.data, 1, BUY, 100, 5)
    assert show(book.ctypes.data, 2, shown)
    assert shown[:, :, 0].tolist() == [[100, 0], [0, 0]]
    books.add(book.ctypes.data, 2, BUY, 99, 5)
    assert show(book.ctypes.data, 2, shown)
    books.add(book.ctypes.data, 3, BUY, 98, 5)
    assert not show(book.ctypes.data, 2, shown)
    books.take(book.ctypes.data, 1, 1)
    assert show(book.ctypes.data, 2, shown)
    assert shown[0].tolist() == [[100, 4, 1], [99, 5, 1]]
