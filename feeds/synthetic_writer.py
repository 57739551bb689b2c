"""The compiled writer of a synthetic session: ITCH 5.0 frames, message by message.

The state is in arrays, so the bytes do not depend on how many messages are asked for at a time.
"""

from __future__ import annotations

import numpy
from numba import njit
from numpy.typing import NDArray

from feeds.synthetic_orders import (
    LAST_MATCH,
    LAST_REFERENCE,
    LIVE,
    LOCATE,
    MIDDLE,
    NAME,
    ORDERS,
    POOL,
    best_order,
    price_of,
    remove_order,
    set_order,
    shares_of,
    some_price,
    some_shares,
    walk,
)
from feeds.synthetic_plan import OPEN_NS, some_row, time_of
from feeds.synthetic_random import below
from feeds.words import put_big_16, put_big_32, put_big_64, put_little_64

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

# How many of 1,024 messages are of a kind, cumulated. The rest are trades.
_ADD, _ADD_ATTRIBUTED, _DELETE, _REPLACE = 430, 442, 848, 928
_EXECUTE, _EXECUTE_AT_PRICE, _CANCEL = 986, 990, 1_006


# One signature, or every constant that it is called with would be compiled for by itself.
@njit("int64(uint8[::1], int64, int64, int64, int64, int64)", nogil=True, cache=True)
def _head(out: NDArray[numpy.uint8], at: int, kind: int, size: int, locate: int, ns: int) -> int:
    """Write length, type, locate, tracking number and time; returns where the frame ends."""
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
def _directory(out: NDArray[numpy.uint8], at: int, book: NDArray[numpy.int64], row: int) -> int:
    end = _head(out, at, ord("R"), 39, book[LOCATE], _DIRECTORY_NS + row * 10_000)
    put_little_64(out, at + _HEAD, book[NAME])
    out[at + _HEAD + 8] = ord("Q")
    out[at + _HEAD + 9] = ord("N")
    put_big_32(out, at + _HEAD + 10, 100)
    for place, letter in enumerate(b"NCZ PNN1N"):
        out[at + _HEAD + 14 + place] = letter
    put_big_32(out, at + _HEAD + 23, 0)
    out[at + _HEAD + 27] = ord("N")
    return end


@njit(nogil=True, cache=True)
def _trading(out: NDArray[numpy.uint8], at: int, book: NDArray[numpy.int64], row: int) -> int:
    end = _head(out, at, ord("H"), 25, book[LOCATE], _TRADING_NS + row * 10_000)
    put_little_64(out, at + _HEAD, book[NAME])
    out[at + _HEAD + 8] = ord("T")
    for place in range(5):
        out[at + _HEAD + 9 + place] = ord(" ")
    return end


@njit(nogil=True, cache=True)
def _add(
    out: NDArray[numpy.uint8],
    at: int,
    book: NDArray[numpy.int64],
    state: NDArray[numpy.int64],
    random: NDArray[numpy.uint64],
    ns: int,
    attributed: bool,
) -> int:
    bid = below(random, 2) == 0
    price = some_price(book, bid, random)
    shares = some_shares(random)
    state[LAST_REFERENCE] += 1
    set_order(book, book[LIVE], state[LAST_REFERENCE], price, shares)
    book[LIVE] += 1
    if attributed:
        end = _head(out, at, ord("F"), 40, book[LOCATE], ns)
        put_big_32(out, at + _HEAD + 25, _ATTRIBUTIONS[below(random, len(_ATTRIBUTIONS))])
    else:
        end = _head(out, at, ord("A"), 36, book[LOCATE], ns)
    put_big_64(out, at + _HEAD, state[LAST_REFERENCE])
    out[at + _HEAD + 8] = ord("B") if bid else ord("S")
    put_big_32(out, at + _HEAD + 9, shares)
    put_little_64(out, at + _HEAD + 13, book[NAME])
    put_big_32(out, at + _HEAD + 21, abs(price) * _TICK)
    return end


@njit(nogil=True, cache=True)
def _delete(out: NDArray[numpy.uint8], at: int, book: NDArray[numpy.int64], ns: int, place: int) -> int:
    end = _head(out, at, ord("D"), 19, book[LOCATE], ns)
    put_big_64(out, at + _HEAD, book[ORDERS + 2 * place])
    remove_order(book, place)
    return end


@njit(nogil=True, cache=True)
def _replace(
    out: NDArray[numpy.uint8],
    at: int,
    book: NDArray[numpy.int64],
    state: NDArray[numpy.int64],
    random: NDArray[numpy.uint64],
    ns: int,
    place: int,
) -> int:
    end = _head(out, at, ord("U"), 35, book[LOCATE], ns)
    put_big_64(out, at + _HEAD, book[ORDERS + 2 * place])
    price = some_price(book, price_of(book, place) > 0, random)
    shares = some_shares(random)
    state[LAST_REFERENCE] += 1
    set_order(book, place, state[LAST_REFERENCE], price, shares)
    put_big_64(out, at + _HEAD + 8, state[LAST_REFERENCE])
    put_big_32(out, at + _HEAD + 16, shares)
    put_big_32(out, at + _HEAD + 20, abs(price) * _TICK)
    return end


@njit(nogil=True, cache=True)
def _cancel(
    out: NDArray[numpy.uint8],
    at: int,
    book: NDArray[numpy.int64],
    random: NDArray[numpy.uint64],
    ns: int,
    place: int,
) -> int:
    shares = shares_of(book, place)
    if shares == 1:
        return _delete(out, at, book, ns, place)
    cancelled = 1 + below(random, shares - 1)
    reference = book[ORDERS + 2 * place]
    set_order(book, place, reference, price_of(book, place), shares - cancelled)
    end = _head(out, at, ord("X"), 23, book[LOCATE], ns)
    put_big_64(out, at + _HEAD, reference)
    put_big_32(out, at + _HEAD + 8, cancelled)
    return end


@njit(nogil=True, cache=True)
def _execute(
    out: NDArray[numpy.uint8],
    at: int,
    book: NDArray[numpy.int64],
    state: NDArray[numpy.int64],
    random: NDArray[numpy.uint64],
    ns: int,
    place: int,
    at_price: bool,
) -> int:
    """Execute an order, in whole or in part; `at_price`: at another price than its own (type C)."""
    reference = book[ORDERS + 2 * place]
    price = price_of(book, place)
    shares = shares_of(book, place)
    executed = shares if below(random, 4) else 1 + below(random, shares)
    state[LAST_MATCH] += 1
    if at_price:
        end = _head(out, at, ord("C"), 36, book[LOCATE], ns)
        # One tick from the order's own price.
        out[at + _HEAD + 20] = ord("Y")
        put_big_32(out, at + _HEAD + 21, abs(price + 1) * _TICK)
    else:
        end = _head(out, at, ord("E"), 31, book[LOCATE], ns)
    put_big_64(out, at + _HEAD, reference)
    put_big_32(out, at + _HEAD + 8, executed)
    put_big_64(out, at + _HEAD + 12, state[LAST_MATCH])
    if executed == shares:
        remove_order(book, place)
    else:
        set_order(book, place, reference, price, shares - executed)
    return end


@njit(nogil=True, cache=True)
def _trade(
    out: NDArray[numpy.uint8],
    at: int,
    book: NDArray[numpy.int64],
    state: NDArray[numpy.int64],
    random: NDArray[numpy.uint64],
    ns: int,
) -> int:
    """A trade against an order that is not displayed."""
    state[LAST_MATCH] += 1
    end = _head(out, at, ord("P"), 44, book[LOCATE], ns)
    put_big_64(out, at + _HEAD, 0)
    out[at + _HEAD + 8] = ord("B")
    put_big_32(out, at + _HEAD + 9, some_shares(random))
    put_little_64(out, at + _HEAD + 13, book[NAME])
    put_big_32(out, at + _HEAD + 21, book[MIDDLE] * _TICK + _TICK // 2)
    put_big_64(out, at + _HEAD + 25, state[LAST_MATCH])
    return end


@njit(nogil=True, cache=True)
def _change(
    out: NDArray[numpy.uint8],
    at: int,
    book: NDArray[numpy.int64],
    state: NDArray[numpy.int64],
    random: NDArray[numpy.uint64],
    ns: int,
    roll: int,
) -> int:
    """A message about an order that exists."""
    place = below(random, book[LIVE])
    if roll < _DELETE:
        return _delete(out, at, book, ns, place)
    if roll < _REPLACE:
        return _replace(out, at, book, state, random, ns, place)
    if roll < _EXECUTE_AT_PRICE:
        bid = below(random, 2) == 0
        best = best_order(book, bid)
        if best < 0:
            best = best_order(book, not bid)
        return _execute(out, at, book, state, random, ns, best, roll >= _EXECUTE)
    return _cancel(out, at, book, random, ns, place)


@njit(nogil=True, cache=True)
def _body(
    out: NDArray[numpy.uint8],
    at: int,
    book: NDArray[numpy.int64],
    state: NDArray[numpy.int64],
    random: NDArray[numpy.uint64],
    ns: int,
) -> int:
    """Whatever message comes next for one symbol."""
    roll = below(random, 1_024)
    if below(random, _WALK_EVERY) == 0:
        blocking = walk(book, random)
        if blocking >= 0:
            at_price = roll % _AT_PRICE_EVERY == 0
            return _execute(out, at, book, state, random, ns, blocking, at_price)
    if roll >= _CANCEL:
        return _trade(out, at, book, state, random, ns)
    if book[LIVE] == 0 or (roll < _ADD_ATTRIBUTED and book[LIVE] < POOL):
        return _add(out, at, book, state, random, ns, _ADD <= roll < _ADD_ATTRIBUTED)
    return _change(out, at, book, state, random, ns, roll)


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
    """Write messages `first` to `first + count - 1` as frames; returns where the last one ends.

        O | R per symbol | H per symbol | S | Q | body | M | E | C

    `out` has room for `count * MAX_FRAME_BYTES` from `at` on; `keep`, `alias` and `before` are those of
    `feeds.synthetic_plan`.
    """
    symbols = len(books)
    body_start = 2 * symbols + 3
    body_end = body_start + before[-1]
    for index in range(first, first + count):
        if body_start <= index < body_end:
            ns = time_of(before, clock, random, index - body_start)
            book = books[some_row(keep, alias, random)]
            at = _body(out, at, book, state, random, ns)
        elif index == 0:
            at = _system_event(out, at, 0)
        elif index <= symbols:
            at = _directory(out, at, books[index - 1], index - 1)
        elif index <= 2 * symbols:
            row = index - 1 - symbols
            at = _trading(out, at, books[row], row)
        elif index < body_start:
            at = _system_event(out, at, index - 2 * symbols)
        else:
            at = _system_event(out, at, 3 + index - body_end)
    return at
