"""Compiled: write a synthetic session as ITCH 5.0 frames, message by message.

The numbers are in arrays, so the bytes do not depend on the number of messages written at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.book.orders import BUY, SELL
from blackbox.native.compile.jit import njit
from blackbox_feeds.io.integers import put_big_16, put_big_32, put_big_64, put_little_64
from blackbox_feeds.synthetic.orders import (
    POOL,
    best_order,
    numbers_at,
    order_in,
    remove_order,
    some_price,
    some_shares,
    symbol_book_at,
    walk,
)
from blackbox_feeds.synthetic.plan import OPEN_NS, some_row, time_of
from blackbox_feeds.synthetic.random import below

MAX_FRAME_BYTES = 46
"""The longest frame of a session: a trade and its length."""

_SECOND_NS = 1_000_000_000
_HOUR_NS = 3_600 * _SECOND_NS
_DIRECTORY_NS = 3 * _HOUR_NS + 300 * _SECOND_NS
_TRADING_NS = _DIRECTORY_NS + 60 * _SECOND_NS
# Code and time of the system events, in the order of the session.
_EVENT_CODES = tuple(b"OSQMEC")
_EVENT_TIMES_NS = (
    3 * _HOUR_NS,
    4 * _HOUR_NS,
    OPEN_NS,
    16 * _HOUR_NS,
    20 * _HOUR_NS,
    20 * _HOUR_NS + 300 * _SECOND_NS,
)
_TICK = 100
_WALK_EVERY = 8
_AT_PRICE_EVERY = 16
_ATTRIBUTIONS = numpy.frombuffer(b"NITEGSCOJPMSVIRT", ">u4").astype(numpy.int64)
_HEAD = 13
"""Bytes of a frame before the fields of its type: its length and the message's common head."""

# Messages of each kind per 1,024, cumulated. The rest are trades.
_ADD, _ADD_ATTRIBUTED, _DELETE, _REPLACE = 430, 442, 848, 928
_EXECUTE, _EXECUTE_AT_PRICE, _CANCEL = 986, 990, 1_006


class Session(NamedTuple):
    """The output, and the state it depends on."""

    out: NDArray[numpy.uint8]
    random: NDArray[numpy.uint64]
    numbers: int
    """Address of the `Numbers`."""


# One signature, or it would be compiled separately for every constant argument.
@njit("int64(uint8[::1], int64, int64, int64, int64, int64)", nogil=True, cache=True)
def _head(out: NDArray[numpy.uint8], at: int, kind: int, size: int, locate: int, ns: int) -> int:
    """Write length, type, locate, tracking number and time; return where the frame ends."""
    put_big_16(out, at, size)
    out[at + 2] = kind
    put_big_16(out, at + 3, locate)
    put_big_16(out, at + 5, 0)
    put_big_16(out, at + 7, ns >> 32)
    put_big_32(out, at + 9, ns)
    return at + 2 + size


@njit(nogil=True, cache=True)
def _system_event(out: NDArray[numpy.uint8], at: int, number: int) -> int:
    end = _head(out, at, ord("S"), 12, 0, _EVENT_TIMES_NS[number])
    out[at + _HEAD] = _EVENT_CODES[number]
    return end


@njit(nogil=True, cache=True)
def _directory(out: NDArray[numpy.uint8], at: int, book: int, row: int) -> int:
    end = _head(out, at, ord("R"), 39, symbol_book_at(book).locate, _DIRECTORY_NS + row * 10_000)
    put_little_64(out, at + _HEAD, symbol_book_at(book).name)
    out[at + _HEAD + 8] = ord("Q")
    out[at + _HEAD + 9] = ord("N")
    put_big_32(out, at + _HEAD + 10, 100)
    for place, letter in enumerate(b"NCZ PNN1N"):
        out[at + _HEAD + 14 + place] = letter
    put_big_32(out, at + _HEAD + 23, 0)
    out[at + _HEAD + 27] = ord("N")
    return end


@njit(nogil=True, cache=True)
def _trading(out: NDArray[numpy.uint8], at: int, book: int, row: int) -> int:
    end = _head(out, at, ord("H"), 25, symbol_book_at(book).locate, _TRADING_NS + row * 10_000)
    put_little_64(out, at + _HEAD, symbol_book_at(book).name)
    out[at + _HEAD + 8] = ord("T")
    for place in range(5):
        out[at + _HEAD + 9 + place] = ord(" ")
    return end


@njit(nogil=True, cache=True)
def _add(session: Session, at: int, book: int, ns: int, attributed: bool) -> int:
    out = session.out
    numbers = numbers_at(session.numbers)
    head = symbol_book_at(book)
    side = BUY if below(session.random, 2) == 0 else SELL
    order = order_in(book, head.live)
    order.side = side
    order.price = some_price(book, side, session.random)
    order.shares = some_shares(session.random)
    numbers.reference += 1
    order.reference = numbers.reference
    head.live += 1
    if attributed:
        end = _head(out, at, ord("F"), 40, head.locate, ns)
        put_big_32(out, at + _HEAD + 25, _ATTRIBUTIONS[below(session.random, len(_ATTRIBUTIONS))])
    else:
        end = _head(out, at, ord("A"), 36, head.locate, ns)
    put_big_64(out, at + _HEAD, order.reference)
    out[at + _HEAD + 8] = ord("B") if side == BUY else ord("S")
    put_big_32(out, at + _HEAD + 9, order.shares)
    put_little_64(out, at + _HEAD + 13, head.name)
    put_big_32(out, at + _HEAD + 21, order.price * _TICK)
    return end


@njit(nogil=True, cache=True)
def _delete(out: NDArray[numpy.uint8], at: int, book: int, ns: int, place: int) -> int:
    end = _head(out, at, ord("D"), 19, symbol_book_at(book).locate, ns)
    put_big_64(out, at + _HEAD, order_in(book, place).reference)
    remove_order(book, place)
    return end


@njit(nogil=True, cache=True)
def _replace(session: Session, at: int, book: int, ns: int, place: int) -> int:
    out = session.out
    numbers = numbers_at(session.numbers)
    end = _head(out, at, ord("U"), 35, symbol_book_at(book).locate, ns)
    order = order_in(book, place)
    put_big_64(out, at + _HEAD, order.reference)
    order.price = some_price(book, order.side, session.random)
    order.shares = some_shares(session.random)
    numbers.reference += 1
    order.reference = numbers.reference
    put_big_64(out, at + _HEAD + 8, order.reference)
    put_big_32(out, at + _HEAD + 16, order.shares)
    put_big_32(out, at + _HEAD + 20, order.price * _TICK)
    return end


@njit(nogil=True, cache=True)
def _cancel(session: Session, at: int, book: int, ns: int, place: int) -> int:
    out = session.out
    order = order_in(book, place)
    if order.shares == 1:
        return _delete(out, at, book, ns, place)
    cancelled = 1 + below(session.random, order.shares - 1)
    order.shares -= cancelled
    end = _head(out, at, ord("X"), 23, symbol_book_at(book).locate, ns)
    put_big_64(out, at + _HEAD, order.reference)
    put_big_32(out, at + _HEAD + 8, cancelled)
    return end


@njit(nogil=True, cache=True)
def _execute(session: Session, at: int, book: int, ns: int, place: int, at_price: bool) -> int:
    """Execute an order, in whole or in part; `at_price`: at another price than its own (type C)."""
    out = session.out
    numbers = numbers_at(session.numbers)
    locate = symbol_book_at(book).locate
    order = order_in(book, place)
    executed = order.shares if below(session.random, 4) else 1 + below(session.random, order.shares)
    numbers.match += 1
    if at_price:
        end = _head(out, at, ord("C"), 36, locate, ns)
        # One tick from the order's own price.
        out[at + _HEAD + 20] = ord("Y")
        put_big_32(out, at + _HEAD + 21, (order.price + (1 if order.side == BUY else -1)) * _TICK)
    else:
        end = _head(out, at, ord("E"), 31, locate, ns)
    put_big_64(out, at + _HEAD, order.reference)
    put_big_32(out, at + _HEAD + 8, executed)
    put_big_64(out, at + _HEAD + 12, numbers.match)
    order.shares -= executed
    if order.shares == 0:
        remove_order(book, place)
    return end


@njit(nogil=True, cache=True)
def _trade(session: Session, at: int, book: int, ns: int) -> int:
    """Write a trade against an order that is not displayed."""
    out = session.out
    numbers = numbers_at(session.numbers)
    numbers.match += 1
    end = _head(out, at, ord("P"), 44, symbol_book_at(book).locate, ns)
    put_big_64(out, at + _HEAD, 0)
    out[at + _HEAD + 8] = ord("B")
    put_big_32(out, at + _HEAD + 9, some_shares(session.random))
    put_little_64(out, at + _HEAD + 13, symbol_book_at(book).name)
    put_big_32(out, at + _HEAD + 21, symbol_book_at(book).middle * _TICK + _TICK // 2)
    put_big_64(out, at + _HEAD + 25, numbers.match)
    return end


@njit(nogil=True, cache=True)
def _change(session: Session, at: int, book: int, ns: int, roll: int) -> int:
    """Write a message about an order that exists."""
    out = session.out
    place = below(session.random, symbol_book_at(book).live)
    if roll < _DELETE:
        return _delete(out, at, book, ns, place)
    if roll < _REPLACE:
        return _replace(session, at, book, ns, place)
    if roll < _EXECUTE_AT_PRICE:
        side = BUY if below(session.random, 2) == 0 else SELL
        best = best_order(book, side)
        if best < 0:
            best = best_order(book, BUY + SELL - side)
        return _execute(session, at, book, ns, best, roll >= _EXECUTE)
    return _cancel(session, at, book, ns, place)


@njit(nogil=True, cache=True)
def _body(session: Session, at: int, book: int, ns: int) -> int:
    """Write the next message for one symbol."""
    roll = below(session.random, 1_024)
    if below(session.random, _WALK_EVERY) == 0:
        blocking = walk(book, session.random)
        if blocking >= 0:
            at_price = roll % _AT_PRICE_EVERY == 0
            return _execute(session, at, book, ns, blocking, at_price)
    if roll >= _CANCEL:
        return _trade(session, at, book, ns)
    if symbol_book_at(book).live == 0 or (roll < _ADD_ATTRIBUTED and symbol_book_at(book).live < POOL):
        return _add(session, at, book, ns, _ADD <= roll < _ADD_ATTRIBUTED)
    return _change(session, at, book, ns, roll)


@njit(nogil=True, cache=True)
def write_messages(
    out: NDArray[numpy.uint8],
    at: int,
    first: int,
    count: int,
    books: NDArray[numpy.int64],
    keep: NDArray[numpy.int64],
    alias: NDArray[numpy.int64],
    before: NDArray[numpy.int64],
    clock: NDArray[numpy.int64],
    state: NDArray[numpy.int64],
    random: NDArray[numpy.uint64],
) -> int:
    """Write messages `first` to `first + count - 1` as frames; return where the last one ends.

        O | R per symbol | H per symbol | S | Q | body | M | E | C

    `out` has room for `count * MAX_FRAME_BYTES` from `at` on; `keep`, `alias` and `before` are those of
    `blackbox_feeds.synthetic.plan`; `state` is the memory of `Numbers`.
    """
    session = Session(out, random, state.ctypes.data)
    symbols = len(books)
    body_start = 2 * symbols + 3
    body_end = body_start + before[-1]
    for index in range(first, first + count):
        if body_start <= index < body_end:
            ns = time_of(before, clock, random, index - body_start)
            book = books[some_row(keep, alias, random)].ctypes.data
            at = _body(session, at, book, ns)
        elif index == 0:
            at = _system_event(out, at, 0)
        elif index <= symbols:
            at = _directory(out, at, books[index - 1].ctypes.data, index - 1)
        elif index <= 2 * symbols:
            row = index - 1 - symbols
            at = _trading(out, at, books[row].ctypes.data, row)
        elif index < body_start:
            at = _system_event(out, at, index - 2 * symbols)
        else:
            at = _system_event(out, at, 3 + index - body_end)
    return at
