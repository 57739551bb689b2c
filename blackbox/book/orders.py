"""Resting orders by reference, in compiled code: a hash table in one int64 array.

    OrderTable | slots: Order, Order, ...

Open addressing with linear probing. At least half of the slots in use are empty. The table doubles as it fills, up to
its capacity, so that it stays as small as its orders allow and fits the cache.
"""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import copy_bytes, inner, int64s_at
from blackbox.native.memory.records import Field, SharedRecord, record_at
from blackbox.native.tables.hash import hash_integer

BUY: Final = 0
SELL: Final = 1
UNKNOWN_PRICE: Final = -1
"""Price of an order that does not rest."""

_FIRST_BITS: Final = 4


class Order(SharedRecord):
    """A resting order, or a free slot, which has no shares."""

    reference = Field()
    side = Field()
    price = Field()
    shares = Field()


class OrderTable(SharedRecord):
    """Header before the slots."""

    count = Field()
    """Resting orders."""
    bits = Field()
    """`1 << bits` slots are in use."""
    most_bits = Field()
    forgotten = Field()
    """Orders that found no room."""


order_at = record_at(Order)
order_table_at = record_at(OrderTable)
ORDER_BYTES: Final = Order.dtype.itemsize
TABLE_BYTES: Final = OrderTable.dtype.itemsize


def bits_for(most: int) -> int:
    """Return the bits of a table with room for `most` orders."""
    return max(_FIRST_BITS, (2 * most - 1).bit_length())


def new_orders(most: int) -> NDArray[numpy.int64]:
    """Return a table, as int64, for at least `most` resting orders. More are dropped and counted as forgotten."""
    memory = numpy.zeros(words_for(most), numpy.int64)
    begin(memory, most)
    return memory


def words_for(most: int) -> int:
    """Return the size of a table for `most` orders, in int64."""
    return (TABLE_BYTES + (ORDER_BYTES << bits_for(most))) // 8


def begin(orders: NDArray[numpy.int64], most: int) -> None:
    """Make an empty table for `most` orders from zeros."""
    table = table_of(orders)
    table.bits, table.most_bits = _FIRST_BITS, bits_for(most)


def table_of(orders: NDArray[numpy.int64]) -> OrderTable:
    """Return the head of a table, with its counters."""
    return OrderTable(orders[: TABLE_BYTES // 8])


@njit(inline="always")
def _slot_at(orders: int, slot: int) -> int:
    return orders + TABLE_BYTES + ORDER_BYTES * slot


@inner
def find(orders: int, reference: int) -> int:
    """Return the address of an order's slot, or of the free slot for it, which has no shares."""
    bits = order_table_at(orders).bits
    mask = (1 << bits) - 1
    slot = hash_integer(reference, bits)
    while True:
        at = _slot_at(orders, slot)
        order = order_at(at)
        if order.shares == 0 or order.reference == reference:
            return at
        slot = (slot + 1) & mask


@inner
def has_room_for_order(orders: int) -> bool:
    """Return True if one more order fits."""
    table = order_table_at(orders)
    return 2 * (table.count + 1) <= 1 << table.most_bits


@inner
def _double(orders: int) -> None:
    table = order_table_at(orders)
    words = (ORDER_BYTES // 8) << table.bits
    slots = int64s_at(orders + TABLE_BYTES, words)
    old = slots.copy()
    slots[:] = 0
    table.bits += 1
    for start in range(0, ORDER_BYTES << (table.bits - 1), ORDER_BYTES):
        order = order_at(old.ctypes.data + start)
        if order.shares != 0:
            copy_bytes(find(orders, order.reference), old.ctypes.data + start, ORDER_BYTES)


@inner
def rest(orders: int, reference: int, side: int, price: int, shares: int) -> bool:
    """Add an order, replacing one of the same reference. If there is no room, count it and return False.

    An order without shares is not added.
    """
    if shares <= 0:
        remove(orders, reference)
        return True
    table = order_table_at(orders)
    order = order_at(find(orders, reference))
    if order.shares == 0:
        if 2 * (table.count + 1) > 1 << table.bits:
            if table.bits == table.most_bits:
                table.forgotten += 1
                return False
            _double(orders)
            order = order_at(find(orders, reference))
        table.count += 1
    order.reference, order.side, order.price, order.shares = reference, side, price, shares
    return True


@inner
def forget(orders: int, at: int) -> None:
    """Free the slot at address `at`. Later orders move up, so that a search may stop at a free slot."""
    table = order_table_at(orders)
    bits = table.bits
    mask = (1 << bits) - 1
    hole = (at - orders - TABLE_BYTES) // ORDER_BYTES
    slot = hole
    while True:
        slot = (slot + 1) & mask
        order = order_at(_slot_at(orders, slot))
        if order.shares == 0:
            break
        if (slot - hash_integer(order.reference, bits)) & mask >= (slot - hole) & mask:
            copy_bytes(_slot_at(orders, hole), _slot_at(orders, slot), ORDER_BYTES)
            hole = slot
    order_at(_slot_at(orders, hole)).shares = 0
    table.count -= 1


@inner
def remove(orders: int, reference: int) -> bool:
    """Remove an order. Return False if it does not rest."""
    at = find(orders, reference)
    if order_at(at).shares == 0:
        return False
    forget(orders, at)
    return True


@inner
def take(orders: int, reference: int, shares: int) -> int:
    """Take shares from an order, removing an empty one. Return its price, or UNKNOWN_PRICE if it does not rest."""
    at = find(orders, reference)
    order = order_at(at)
    if order.shares == 0:
        return UNKNOWN_PRICE
    price = order.price
    if shares < order.shares:
        order.shares -= shares
    else:
        forget(orders, at)
    return price


@inner
def clear(orders: int) -> None:
    """Remove all orders."""
    table = order_table_at(orders)
    int64s_at(orders + TABLE_BYTES, (ORDER_BYTES // 8) << table.bits)[:] = 0
    table.count = 0


@inner
def copy_orders(orders: int, larger: int) -> None:
    """Copy all orders to another table, which must have room."""
    for slot in range(1 << order_table_at(orders).bits):
        order = order_at(_slot_at(orders, slot))
        if order.shares != 0:
            rest(larger, order.reference, order.side, order.price, order.shares)
    order_table_at(larger).forgotten = order_table_at(orders).forgotten
