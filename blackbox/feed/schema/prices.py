"""Prices as the venue's integers, floats and decimals, and conversions between them.

An integer is the venue's own: the price times 10 to the power of the field's decimals. A float, a Decimal or a text is
the price itself. This applies to packed records, published tables and recordings of own columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Context, Decimal
from typing import Any, Final, Literal

from blackbox.errors import ConfigError

Prices = Literal["integer", "float", "decimal"]
"""Form of prices for readers: the venue's integer, a float, or an exact decimal."""
FORMS: Final = ("integer", "float", "decimal")
NEAR: Final = 1e-9
"""Largest distance of a float price from a whole number of units, relative to the price."""
END_OF_INT64: Final = 1 << 63
_MOST_DIGITS: Final = 40
_EXACT: Final = Context(prec=_MOST_DIGITS)


def check_prices(prices: object) -> None:
    """Raise ConfigError unless `prices` is a form of prices."""
    if prices not in FORMS:
        raise ConfigError(f"prices was {prices!r}, expected one of: {', '.join(FORMS)}")


def units_of(price: object, decimals: int) -> int:
    """Return a price as the venue's integer.

    An `int` is that integer. A float is rounded to the nearest unit. A Decimal, or a text of one, must be exact.

    Raises ValueError if the price has more than `decimals` decimals, or is not a number.
    """
    if type(price) is int:
        return price
    try:
        if isinstance(price, float):
            scaled = price * 10.0**decimals
            units = round(scaled)
            if abs(scaled - units) <= NEAR * max(1.0, abs(scaled)):
                return units
        elif isinstance(price, Decimal | str):
            exact = Decimal(price)
            if not exact:
                return 0
            if abs(exact.adjusted()) < _MOST_DIGITS:
                over, under = exact.as_integer_ratio()
                units, rest = divmod(over * 10**decimals, under)
                if not rest:
                    return int(units)
    except (ArithmeticError, ValueError):
        pass
    raise ValueError(f"a price with at most {decimals} decimals")


def in_form(units: Iterable[int | None], decimals: int, prices: Prices) -> list[Any]:
    """Convert prices from the venue's integers to another form. None stays None."""
    if prices == "integer":
        return list(units)
    if prices == "float":
        scale = 10.0**decimals
        return [None if each is None else each / scale for each in units]
    return [None if each is None else Decimal(each).scaleb(-decimals, _EXACT) for each in units]
