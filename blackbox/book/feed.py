"""What a feed declares of its books, and the loop that applies its messages to one of them.

A feed brings one compiled function, of one message. It is registered in the entry-point group `blackbox.books`:

    @njit(nogil=True, cache=True)
    def apply(book, payload, size):              # addresses of a book and of a payload, and the bytes of that
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

from blackbox.book.book import has_room, head_at, settle, show
from blackbox.errors import ConfigError
from blackbox.feed.schema import load_registered
from blackbox.native.intrinsics import call_for_integer
from blackbox.native.jit import njit, warm_up

BOOK_GROUP: Final = "blackbox.books"
"""The entry-point group in which feeds register a `BookFeed`, by the name of their schema."""

IGNORED: Final = 0
"""What `apply` returns of a message that says nothing of the book."""
WITHIN: Final = 1
"""Of one within an event: the book is between two states."""
COMPLETE: Final = 2
"""Of the last one of an event: the book is as it is at the venue."""


class Resting(NamedTuple):
    """What an image tells of a book, or of a part of it."""

    symbol: bytes
    last: bytes
    """The payload that changed the book last."""
    orders: NDArray[Any]
    """`Order.dtype`[n]; where none rests, levels that the venue told as such, under the reference 0."""
    is_snapshot: bool
    """Whether the venue is within a snapshot; if nothing of it rests yet, one message says so."""


Rest = Callable[[Resting], NDArray[numpy.uint8]]
"""Returns uint8[n, bytes], a payload for each order: applied to an empty book, in any order, they make the same one."""


class BookFeed(NamedTuple):
    """How a feed's payloads change a book."""

    message_types: str
    """The message types that do."""
    type_offset: int
    """Where in a payload the type stands."""
    decimals: int
    """A price of the book is the real one times 10 to the power of this."""
    apply: Any
    """Compiled by `njit`: (book, payload, size), int64 all, to IGNORED, WITHIN or COMPLETE. It checks the size."""
    rest: Rest | None = None
    """Makes the messages of an image; None: there are no images of these books."""
    begins_empty: bool = True
    """True if a publisher's first message finds an empty book. Else the book is synced once it is cleared."""

    @property
    def address(self) -> int:
        """Of `apply`, as a C function. Raises ConfigError when it returns something else than an int64."""
        warm_up(self.apply, 0, 0, 0)
        compiled = self.apply.overloads[(types.int64,) * 3]
        if compiled.signature.return_type != types.int64:
            raise ConfigError(
                f"{self.apply.__name__} of a book returned {compiled.signature.return_type}, expected int64: "
                "IGNORED, WITHIN or COMPLETE"
            )
        return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name))


def load_book_feed(schema: str) -> BookFeed:
    """Return the books of a schema. Raises ConfigError when none are registered for it."""
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

    `apply` is the address of a feed's function. Message i is `data[offsets[i]:offsets[i + 1]]`. A change of a price, or
    of the shares at one, after a complete event is a place in `rows` (the message) and in `tops` (int64[n, 2, depth,
    3]: bids and asks, the best first: price, shares, orders), and in `synced` whether nothing says that the book lacks
    messages; all have room for `last` - `first`. `shown`, int64[2, depth, 3], holds the last ones from call to call.
    Returns where it stopped, which is before `last` when the book
    should be made roomier, and how many changes it wrote.
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
