"""Resting orders by reference, in compiled code: what an execution needs to know its price.

Open addressing with linear probing, in one int64 array: a head, then two words for each slot: the reference (0: empty),
and price | shares. Only the first `1 << head[BITS]` slots are in use, so that the table is no larger than the orders
that rest, and stays in the cache; it doubles when a quarter is in use.
"""

from __future__ import annotations

from typing import Any, Final

import numpy
from numba import njit
from numpy.typing import NDArray

HEAD: Final = 8
COUNT: Final = 0
"""Orders in the table."""
BITS: Final = 1
FORGOTTEN: Final = 2
"""Orders for which there was no room."""

_FIRST_BITS: Final = 10
_HALF: Final = 0xFFFFFFFF
_MIX = numpy.uint64(0x9E3779B97F4A7C15)


def new_orders(most: int) -> NDArray[numpy.int64]:
    """A table for up to `most` orders that rest at a time; more are forgotten, and counted."""
    bits = max(_FIRST_BITS, (4 * most).bit_length())
    orders = numpy.zeros(HEAD + (2 << bits), numpy.int64)
    orders[BITS] = _FIRST_BITS
    return orders


@njit(inline="always")
def _home(orders: NDArray[numpy.int64], reference: int) -> Any:
    return numpy.int64((numpy.uint64(reference) * _MIX) >> numpy.uint64(64 - orders[BITS]))


@njit(nogil=True, cache=True)
def _slot_of(orders: NDArray[numpy.int64], reference: int) -> Any:
    """Where an order is, or the empty slot where it belongs."""
    mask = (1 << orders[BITS]) - 1
    slot = _home(orders, reference)
    while orders[HEAD + 2 * slot] != 0 and orders[HEAD + 2 * slot] != reference:
        slot = (slot + 1) & mask
    return slot


@njit(nogil=True, cache=True)
def _grow(orders: NDArray[numpy.int64]) -> None:
    slots = 1 << orders[BITS]
    old = orders[HEAD : HEAD + 2 * slots].copy()
    orders[HEAD : HEAD + 2 * slots] = 0
    orders[BITS] += 1
    for place in range(slots):
        if old[2 * place] != 0:
            slot = _slot_of(orders, old[2 * place])
            orders[HEAD + 2 * slot] = old[2 * place]
            orders[HEAD + 2 * slot + 1] = old[2 * place + 1]


@njit(nogil=True, cache=True)
def add_order(orders: NDArray[numpy.int64], reference: int, price: int, shares: int) -> None:
    """An order begins to rest."""
    if orders[COUNT] >> (orders[BITS] - 2) != 0:
        if HEAD + (4 << orders[BITS]) > len(orders):
            orders[FORGOTTEN] += 1
            return
        _grow(orders)
    slot = _slot_of(orders, reference)
    orders[COUNT] += orders[HEAD + 2 * slot] == 0
    orders[HEAD + 2 * slot] = reference
    orders[HEAD + 2 * slot + 1] = (price << 32) | shares


@njit(nogil=True, cache=True)
def remove_order(orders: NDArray[numpy.int64], reference: int) -> None:
    """An order rests no more. Orders behind it move up, so that a search may end at an empty slot."""
    mask = (1 << orders[BITS]) - 1
    hole = _slot_of(orders, reference)
    if orders[HEAD + 2 * hole] == 0:
        return
    orders[COUNT] -= 1
    slot = hole
    while True:
        slot = (slot + 1) & mask
        other = orders[HEAD + 2 * slot]
        if other == 0:
            break
        if (slot - _home(orders, other)) & mask >= (slot - hole) & mask:
            orders[HEAD + 2 * hole] = other
            orders[HEAD + 2 * hole + 1] = orders[HEAD + 2 * slot + 1]
            hole = slot
    orders[HEAD + 2 * hole] = 0


@njit(nogil=True, cache=True)
def take_shares(orders: NDArray[numpy.int64], reference: int, shares: int) -> Any:
    """Some of an order's shares are executed or cancelled; returns its price, 0 when it is not known."""
    slot = _slot_of(orders, reference)
    if orders[HEAD + 2 * slot] == 0:
        return 0
    word = orders[HEAD + 2 * slot + 1]
    if word & _HALF <= shares:
        remove_order(orders, reference)
    else:
        orders[HEAD + 2 * slot + 1] = word - shares
    return (word >> 32) & _HALF
