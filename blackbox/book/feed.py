"""A feed's declaration of its books, and the loop that applies its messages to a book.

A feed provides one compiled function for one message, and registers it in the entry-point group `blackbox.books`:

    @njit(nogil=True, cache=True)
    def apply(book, payload, size):              # addresses of a book and of a payload, and the payload's size
        add(book, reference, BUY, price, shares)
        return COMPLETE

    BOOK = BookFeed("AFECXDU", type_offset=0, decimals=4, apply=apply)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy
from numba import types
from numpy.typing import NDArray

from blackbox.book.book import has_room, settle
from blackbox.book.levels import head_at, show
from blackbox.errors import ConfigError
from blackbox.feed.schema.schema import load_registered
from blackbox.native.compile.jit import njit, warm_up
from blackbox.native.compile.numba_internals import c_address
from blackbox.native.memory.intrinsics import call_for_integer

BOOK_GROUP: Final = "blackbox.books"
"""The entry-point group of `BookFeed`, registered by the names of their schemas."""

IGNORED: Final = 0
"""Result of `apply` for a message that does not change the book."""
WITHIN: Final = 1
"""For a message within an event: the book is in an intermediate state."""
COMPLETE: Final = 2
"""For the last message of an event: the book is in the venue's state."""


class Resting(NamedTuple):
    """A book, or part of one, for an image."""

    symbol: bytes
    last: bytes
    """Payload that last changed the book."""
    orders: NDArray[Any]
    """`Order.dtype`[n]; without orders, the levels set by the venue, with reference 0."""
    is_snapshot: bool
    """True during a snapshot of the venue."""


Rest = Callable[[Resting], NDArray[numpy.uint8]]
"""Returns uint8[n, bytes], one payload per order. Applied to an empty book in any order, they make the same book.

Without orders it is one payload, for a snapshot that has none yet, or a book that was cleared: see `begins_empty`.
"""


class BookFeed(NamedTuple):
    """Declaration of how payloads change a book."""

    message_types: str
    """Message types that change a book."""
    type_offset: int
    """Offset of the type in a payload."""
    decimals: int
    """Prices in the book are real prices times 10 to the power of this."""
    apply: Any
    """Compiled by `njit`: (book, payload, size), all int64, to IGNORED, WITHIN or COMPLETE. It checks the size."""
    rest: Rest | None = None
    """Makes the messages of an image; None: these books have no images."""
    begins_empty: bool = True
    """True if a book is empty before a publisher's first message. Otherwise a book is synced once it is cleared."""

    @property
    def address(self) -> int:
        """Address of `apply` as a C function. Raises ConfigError if it does not return an int64."""
        warm_up(self.apply, 0, 0, 0)
        arguments = (types.int64,) * 3
        returned = self.apply.overloads[arguments].signature.return_type
        if returned != types.int64:
            raise ConfigError(
                f"{self.apply.__name__} of a book returned {returned}, expected int64: IGNORED, WITHIN or COMPLETE"
            )
        return c_address(self.apply, arguments)


def load_book_feed(schema: str) -> BookFeed:
    """Return the books of a schema. Raises ConfigError if none are registered."""
    feed = load_registered(BOOK_GROUP, schema, "schema of books")
    if not isinstance(feed, BookFeed):
        raise ConfigError(f"schema of books {schema!r}: the entry point holds {feed!r}, expected a BookFeed")
    return feed


@njit(nogil=True, cache=True)
def run(
    apply: int,
    book: NDArray[numpy.int64],
    data: NDArray[numpy.uint8],
    offsets: NDArray[numpy.int64],
    first: int,
    last: int,
    depth: int,
    shown: NDArray[numpy.int64],
    rows: NDArray[numpy.int64],
    tops: NDArray[numpy.int64],
    synced: NDArray[numpy.bool_],
) -> tuple[int, int]:
    """Apply the messages `first` to `last` - 1, and write each change of the best `depth` levels.

    `apply` is the address of a feed's function. Message i is `data[offsets[i]:offsets[i + 1]]`. After each complete
    event that changed a price or its shares, the message's index is written to `rows`, the levels to `tops` (int64[n,
    2, depth, 3]: bids and asks, the best first: price, shares, orders), and True to `synced` if the book is not known
    to lack messages. All have room for `last` - `first`. `shown`, int64[2, depth, 3], keeps the last levels between
    calls. Returns where it stopped, before `last` if the book must be enlarged, and the number of changes.
    """
    many = 0
    at = book.ctypes.data
    start = data.ctypes.data
    for row in range(first, last):
        if not has_room(at):
            return row, many
        done = call_for_integer(apply, at, start + offsets[row], offsets[row + 1] - offsets[row])
        if done == COMPLETE:
            settle(at)
            if show(at, depth, shown):
                rows[many] = row
                tops[many] = shown
                synced[many] = head_at(at).is_unsynced == 0 and head_at(at).is_snapshot == 0
                many += 1
    return last, many
