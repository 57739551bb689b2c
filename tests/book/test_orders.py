"""Resting orders by reference, compared with a dict."""

from __future__ import annotations

from typing import Any

import numpy
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from blackbox.book import orders
from blackbox.book.orders import BUY, SELL, UNKNOWN_PRICE, new_orders, table_of


@njit(cache=True)
def rest(table: NDArray[numpy.int64], reference: int, side: int, price: int, shares: int) -> Any:
    return orders.rest(table.ctypes.data, reference, side, price, shares)


@njit(cache=True)
def remove(table: NDArray[numpy.int64], reference: int) -> Any:
    return orders.remove(table.ctypes.data, reference)


@njit(cache=True)
def take(table: NDArray[numpy.int64], reference: int, shares: int) -> Any:
    return orders.take(table.ctypes.data, reference, shares)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["rest", "rest", "remove", "take"]),
            st.integers(0, 40) | st.sampled_from([-1, -(1 << 63), (1 << 63) - 1]),
            st.integers(0, 0xFFFFFFFF),
            st.integers(0, 300),
        ),
        max_size=200,
    )
)
def test_orders_are_as_in_a_dictionary(steps: list[tuple[str, int, int, int]]) -> None:
    table = new_orders(1 << 12)
    known: dict[int, tuple[int, int]] = {}
    for step, reference, price, shares in steps:
        if step == "rest":
            assert rest(table, reference, SELL, price, shares)
            known.pop(reference, None)
            if shares:
                known[reference] = price, shares
        elif step == "remove":
            assert remove(table, reference) == (known.pop(reference, None) is not None)
        else:
            at, left = known.get(reference, (UNKNOWN_PRICE, 0))
            assert take(table, reference, shares) == at
            if left > shares:
                known[reference] = at, left - shares
            else:
                known.pop(reference, None)
        assert table_of(table).count == len(known)
    for reference, (price, shares) in known.items():
        assert take(table, reference, shares) == price
    assert table_of(table).count == 0


def test_table_grows_within_its_room_and_then_forgets() -> None:
    table = new_orders(1 << 14)
    room = 0
    while rest(table, room * 7, BUY, room, 1):
        room += 1
    assert room == 1 << 14
    assert table_of(table).forgotten == 1
    assert all(take(table, reference * 7, 1) == reference for reference in range(room))
    assert take(table, room * 7, 1) == UNKNOWN_PRICE


def test_order_of_no_shares_does_not_rest() -> None:
    table = new_orders(8)
    assert rest(table, 1, BUY, 100, 5)
    assert rest(table, 1, BUY, 100, 0)
    assert take(table, 1, 1) == UNKNOWN_PRICE
