"""How Databento's MBO records change a book.

    A   adds an order; with F_TOB it is the whole side, and without a price the side is empty
    C   cancels shares of an order, M changes its price and size, R clears the book
    T F N   change nothing: a cancel or a modify comes with each fill

A modify of an unknown order adds it, as in Databento's own example of a book, and is counted. F_LAST ends an event or a
snapshot; before it the book is in an intermediate state. The first record of a snapshot (F_SNAPSHOT) clears the book,
even without a preceding R, as in files from before February 2024. The orders of a snapshot have their own, older times.
The source uses the time of the snapshot (`ts_recv`) for them, so a replay delivers them together.

F_MAYBE_BAD_BOOK means that messages of the venue were lost. The book is out of sync until the next snapshot or R. On
records of a snapshot the flag concerns the earlier channel: the snapshot is complete, so it brings the book into sync.

Topics name an instrument, not a venue: a file with several venues of one instrument (`publisher_id`) has one book for
all of them.
"""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.book.book import add, clear, enter_snapshot, note_lack, put, refuse, remove, rests, take
from blackbox.book.feed import COMPLETE, IGNORED, WITHIN, BookFeed, Resting
from blackbox.book.orders import BUY, SELL
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at
from blackbox_feeds.dbn.records import F_MAYBE_BAD_BOOK, F_SNAPSHOT, RTYPE_AT, SCHEMA, SCHEMA_TS_OUT, TYPED
from blackbox_feeds.io.integers import little_32, little_64

_MBO: Final = TYPED["mbo"][0]
_BYTES: Final = SCHEMA.dtype("mbo").itemsize
_BYTES_TS_OUT: Final = SCHEMA_TS_OUT.dtype("mbo").itemsize
_ORDER: Final = SCHEMA.offset("mbo", "order_id")
_PRICE: Final = SCHEMA.offset("mbo", "price")
_SIZE: Final = SCHEMA.offset("mbo", "size")
_FLAGS: Final = SCHEMA.offset("mbo", "flags")
_ACTION: Final = SCHEMA.offset("mbo", "action")
_SIDE: Final = SCHEMA.offset("mbo", "side")

_F_LAST, _F_TOB = 1 << 7, 1 << 6
_NO_PRICE: Final = (1 << 63) - 1
_ADD, _CANCEL, _MODIFY, _CLEAR, _TRADE, _FILL, _NONE = (ord(action) for action in "ACMRTFN")
_BID, _ASK = ord("B"), ord("A")
_TOP: Final = -1
"""Reference of the order that represents a whole side of bids; that of the asks is one less."""


@njit(nogil=True, cache=True)
def apply(book: int, payload: int, size: int) -> int:
    """Apply one record: see `BookFeed.apply`."""
    data = bytes_at(payload, size)
    if size <= RTYPE_AT or data[RTYPE_AT] != _MBO:
        return IGNORED
    if size not in (_BYTES, _BYTES_TS_OUT):
        refuse(book)
        return IGNORED
    flags, action = data[_FLAGS], data[_ACTION]
    if flags & F_MAYBE_BAD_BOOK != 0 and flags & F_SNAPSHOT == 0:
        note_lack(book)
    enter_snapshot(book, flags & F_SNAPSHOT != 0, flags & _F_LAST != 0)
    if action == _CLEAR:
        clear(book)
    elif action in (_ADD, _MODIFY, _CANCEL):
        _change(book, data, action, flags & _F_TOB != 0)
    elif action not in (_TRADE, _FILL, _NONE):
        refuse(book)
    return COMPLETE if flags & _F_LAST else WITHIN


@njit(nogil=True, cache=True)
def _change(book, data, action, is_top):  # type: ignore[no-untyped-def]
    order, price, shares = little_64(data, _ORDER), little_64(data, _PRICE), little_32(data, _SIZE)
    if action == _CANCEL:
        take(book, order, shares)
        return
    if data[_SIDE] not in (_BID, _ASK) or (price == _NO_PRICE and not is_top):
        refuse(book)
        return
    side = BUY if data[_SIDE] == _BID else SELL
    if is_top:
        if price == _NO_PRICE:
            remove(book, _TOP - side)
        else:
            put(book, _TOP - side, side, price, shares)
    elif action == _ADD:
        add(book, order, side, price, shares)
    else:
        rests(book, order)
        put(book, order, side, price, shares)


def rest(resting: Resting) -> NDArray[numpy.uint8]:
    """Make an add for each order, or an R without orders, with the times of the last record: see `Rest`.

    Within a snapshot they are marked as part of it, so that later records do not clear the book.
    """
    orders, schema = resting.orders, SCHEMA if len(resting.last) == _BYTES else SCHEMA_TS_OUT
    made = numpy.zeros(max(1, len(orders)), schema.dtype("mbo"))
    payloads = made.view(numpy.uint8).reshape(len(made), -1)
    payloads[:] = numpy.frombuffer(resting.last, numpy.uint8)
    made["flags"] = F_SNAPSHOT if resting.is_snapshot else _F_LAST
    if len(orders) == 0:
        made["action"], made["side"], made["order_id"], made["price"], made["size"] = b"R", b"N", 0, _NO_PRICE, 0
        return payloads
    made["action"] = b"A"
    made["order_id"], made["price"] = orders["reference"].view(numpy.uint64), orders["price"]
    made["size"], made["side"] = orders["shares"], numpy.where(orders["side"] == BUY, b"B", b"A")
    made["flags"] |= numpy.where(_TOP - orders["side"] == orders["reference"], numpy.uint8(_F_TOB), numpy.uint8(0))
    return payloads


BOOK: Final = BookFeed(chr(_MBO), RTYPE_AT, 9, apply, rest, begins_empty=False)
"""The books registered for the schemas `dbn` and `dbn_ts_out`."""
