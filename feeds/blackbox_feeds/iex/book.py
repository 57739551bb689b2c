"""How IEX DEEP 1.0 messages change a book: each reports the shares at one price, without the number of orders.

A price level update of size 0 removes the level. Bit 0 of its event flags marks the end of an event of the exchange;
without it more updates of the event follow, and the book is in an intermediate state.
"""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.book.book import refuse, set_level
from blackbox.book.feed import COMPLETE, IGNORED, WITHIN, BookFeed, Resting
from blackbox.book.orders import BUY, SELL
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at
from blackbox_feeds.iex.messages import DEEP10
from blackbox_feeds.io.integers import little_32, little_64

_BUY, _SELL = ord("8"), ord("5")
_BYTES: Final = DEEP10.records["8"].itemsize
_FLAGS: Final = DEEP10.offset("8", "event_flags")
_SIZE: Final = DEEP10.offset("8", "size")
_PRICE: Final = DEEP10.offset("8", "price")
_EVENT_IS_COMPLETE: Final = 1


@njit(nogil=True, cache=True)
def apply(book: int, payload: int, size: int) -> int:
    """Apply one message: see `BookFeed.apply`."""
    data = bytes_at(payload, size)
    if size == 0 or data[0] not in (_BUY, _SELL):
        return IGNORED
    if size != _BYTES:
        refuse(book)
        return IGNORED
    set_level(book, BUY if data[0] == _BUY else SELL, little_64(data, _PRICE), little_32(data, _SIZE))
    return COMPLETE if data[_FLAGS] & _EVENT_IS_COMPLETE else WITHIN


def rest(resting: Resting) -> NDArray[numpy.uint8]:
    """Make a price level update of each level, with the time of the symbol's last message: see `Rest`."""
    made = numpy.zeros(len(resting.orders), DEEP10.records["8"])
    payloads = made.view(numpy.uint8).reshape(len(made), -1)
    payloads[:] = numpy.frombuffer(resting.last, numpy.uint8)
    payloads[:, 0] = numpy.where(resting.orders["side"] == BUY, _BUY, _SELL)
    payloads[:, _FLAGS] |= _EVENT_IS_COMPLETE
    made["size"], made["price"] = resting.orders["shares"], resting.orders["price"]
    return payloads


BOOK: Final = BookFeed("85", 0, 4, apply, rest)
"""The books registered for the schema `iex_deep10`."""
