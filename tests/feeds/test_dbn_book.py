"""Books from Databento's MBO records compared with plain Python, for real days and for any records."""

from __future__ import annotations

from pathlib import Path

import numpy
from blackbox_feeds.dbn import SCHEMA, Dbn
from blackbox_feeds.dbn.book import BOOK
from blackbox_feeds.iex.book import BOOK as IEX_BOOK
from blackbox_feeds.itch50.book import BOOK as ITCH_BOOK
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox.book.book import Level, counters, head_of, levels
from blackbox.book.feed import load_book_feed
from blackbox.book.orders import BUY, SELL
from tests.book import test_book
from tests.book.applied import applications, applied
from tests.examples import examples
from tests.feeds.build import messages_of

MBO = SCHEMA.dtype("mbo")
NO_PRICE = (1 << 63) - 1
LAST, TOB, SNAPSHOT, MAYBE_BAD_BOOK = 128, 64, 32, 4


def mbo(action: str, side: str = "B", order: int = 1, price: int = 100, size: int = 1, flags: int = LAST) -> bytes:
    record = numpy.zeros(1, MBO)
    record["length"], record["rtype"] = MBO.itemsize // 4, 0xA0
    record["action"], record["side"], record["flags"] = action.encode(), side.encode(), flags
    record["order_id"], record["price"], record["size"] = order, price, size
    return record.tobytes()


class SlowBook(test_book.SlowBook):
    """Orders in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self._best: list[Level | None] = [None, None]
        self._in_snapshot = False

    def apply(self, payload: bytes) -> None:
        if payload[1:2] != b"\xa0":
            return
        if len(payload) not in (56, 64):
            self.counts["refused"] += 1
            return
        record = numpy.frombuffer(payload[:56], MBO)[0]
        action, side, flags = bytes(record["action"]), bytes(record["side"]), int(record["flags"])
        if flags & SNAPSHOT and not self._in_snapshot:
            self.orders.clear()
        self._in_snapshot = bool(flags & SNAPSHOT) and not flags & LAST
        order, price, size = (int(record[name]) for name in ("order_id", "price", "size"))
        if action == b"R":
            self.orders.clear()
        elif action == b"C":
            self.take(order, size)
        elif action in (b"A", b"M"):
            if side not in (b"B", b"A") or (price == NO_PRICE and not flags & TOB):
                self.counts["refused"] += 1
            else:
                self._put(action, BUY if side == b"B" else SELL, flags & TOB, order, price, size)
        elif action not in (b"T", b"F", b"N"):
            self.counts["refused"] += 1
        if flags & LAST:
            self.settle()

    def _put(self, action: bytes, side: int, is_top: int, order: int, price: int, size: int) -> None:
        key = -1 - side if is_top else order
        there = self.orders.pop(key, None) is not None
        if is_top and price == NO_PRICE:
            self.counts["removed" if there else "unknown"] += 1
            return
        if action == b"A" and not is_top:
            self.counts["added"] += 1
            self.counts["duplicate"] += there
        else:
            self.counts["replaced" if there else "added"] += 1
            self.counts["unknown"] += not there and not is_top
        if size:
            self.orders[key] = side, price, size

    def settle(self) -> None:
        super().settle()
        best = [next(iter(self.levels(side)), None) for side in (BUY, SELL)]
        self.changes += [each and each[:2] for each in best] != [each and each[:2] for each in self._best]
        self._best = best


records = st.builds(
    mbo,
    st.sampled_from("AAACMMRTFNX"),
    st.sampled_from("BABABAN"),
    st.integers(1, 9),
    st.one_of(st.integers(98, 104), st.sampled_from([NO_PRICE, -5])),
    st.integers(0, 4),
    st.sampled_from([LAST, LAST, 0, LAST | TOB, TOB, SNAPSHOT, SNAPSHOT | LAST]),
)
others = st.sampled_from([b"", b"x", b"DBN\x01", mbo("A")[:-1], mbo("A") + b"x", mbo("A", order=3) + bytes(8)])


@settings(max_examples=examples(200))
@given(st.lists(st.one_of(records, records, records, others), max_size=80))
def test_any_records(payloads: list[bytes]) -> None:
    slow = SlowBook()
    for payload in payloads:
        slow.apply(payload)
    book, changes = applied(BOOK, payloads)
    assert (levels(book, BUY, 100), levels(book, SELL, 100)) == (slow.levels(BUY), slow.levels(SELL))
    assert counters(book)["orders"] == len(slow.orders)
    assert {name: many for name, many in applications(book).items() if name != "orders"} == dict(+slow.counts)
    assert changes == slow.changes


def test_two_real_days_in_a_row(shared_data: Path) -> None:
    """Every order is known. Complete events leave the book crossed before the session opens, and never once it trades.

    Both begin with a snapshot of what rests, and the first has nothing else: that of the second takes its place.
    """
    days = [
        [payload for _, _, payload in messages_of(Dbn(shared_data / "dbn" / f"esh4-glbx-mdp3-{day}.mbo.dbn.zst"))]
        for day in ("20231224", "20231225")
    ]
    payloads = [payload for day in days for payload in day if payload[1:2] == b"\xa0"]
    first_trade = next(n for n, payload in enumerate(payloads) if payload[SCHEMA.offset("mbo", "action")] == ord("T"))
    payloads = payloads[: first_trade + 5_000]
    book, changes = applied(BOOK, payloads)
    found = counters(book)
    kept = {name: found[name] for name in ("unknown", "duplicate", "too_many", "forgotten", "refused")}
    assert kept == dict.fromkeys(kept, 0)
    before, _ = applied(BOOK, payloads[:first_trade])
    assert counters(before)["crossed"] == found["crossed"] == 891
    slow = SlowBook()
    for payload in payloads:
        slow.apply(mbo(*_plain(numpy.frombuffer(payload, MBO)[0])))
    assert (levels(book, BUY, 10_000), levels(book, SELL, 10_000)) == (slow.levels(BUY), slow.levels(SELL))
    assert changes > 1_000


def _plain(record: numpy.void) -> tuple[str, str, int, int, int, int]:
    """Return the fields of a record without F_LAST: the best prices are not compared after each record."""
    order, price, size, flags = (int(record[name]) for name in ("order_id", "price", "size", "flags"))
    kept = flags if flags & SNAPSHOT else flags & ~LAST
    return bytes(record["action"]).decode(), bytes(record["side"]).decode(), order, price, size, kept


def test_a_book_is_out_of_sync_after_lost_messages_until_a_clear_or_snapshot() -> None:
    bad = mbo("A", order=2, flags=LAST | MAYBE_BAD_BOOK)

    def unsynced(*payloads: bytes) -> tuple[int, int]:
        head = head_of(applied(BOOK, [mbo("R"), mbo("A"), *payloads])[0])
        return int(head.is_unsynced), int(head.unsynced) - 1  # a book begins out of sync

    assert unsynced() == (0, 0)
    assert unsynced(bad) == unsynced(bad, bad, mbo("A", order=3)) == (1, 1)
    assert unsynced(mbo("T", flags=LAST | MAYBE_BAD_BOOK)) == (1, 1)
    for clearing in ([mbo("R")], [mbo("R", flags=LAST | MAYBE_BAD_BOOK)], [mbo("A", flags=SNAPSHOT | LAST)]):
        assert unsynced(bad, *clearing) == (0, 1)
    snapshot = [mbo("A", order=order, flags=SNAPSHOT | MAYBE_BAD_BOOK) for order in (1, 2)]
    assert unsynced(bad, *snapshot) == (0, 1)
    assert unsynced(bad, *snapshot, snapshot[0]) == (1, 2)  # the snapshot has one order twice
    assert unsynced(bad, mbo("R"), bad) == (1, 2)


def test_books_are_registered() -> None:
    assert load_book_feed("dbn") is load_book_feed("dbn_ts_out") is BOOK
    assert load_book_feed("itch50") is ITCH_BOOK
    assert load_book_feed("iex_deep10") is IEX_BOOK
