"""Results of the demo's callbacks for a session, which must be equal live and replayed."""

from __future__ import annotations

from typing import NamedTuple


class SymbolResult(NamedTuple):
    """The trades of one symbol."""

    symbol: str
    shares: int
    trades: int
    vwap: float
    """Volume-weighted average price, in dollars."""
    last: float | None
    """Last price in dollars; None if no message had one."""


class Results(NamedTuple):
    """Results of the callbacks for a session."""

    symbols: list[SymbolResult]
    """Every traded symbol, by decreasing volume."""
    mix: dict[str, int]
    """Messages by type."""
    watched: dict[bytes, tuple[int, ...]]
    """For each watched symbol: messages of each type, int[256], counted one by one."""
    unpriced: int
    """Executions of unknown orders."""

    def difference(self, other: Results) -> str | None:
        """Return the first difference of `other` from this; None if all digits are equal."""
        for one, two in zip(self.symbols, other.symbols, strict=False):
            if one != two:
                return f"{one.symbol} was {two[1:] if one.symbol == two.symbol else two}, expected {one[1:]}"
        if len(self.symbols) != len(other.symbols):
            return f"{len(other.symbols)} symbols were traded, expected {len(self.symbols)}"
        if self.mix != other.mix:
            return f"the message mix was {other.mix}, expected {self.mix}"
        if self.watched != other.watched:
            return "the message mix of the watched symbols differed"
        if self.unpriced != other.unpriced:
            return f"{other.unpriced} executions were of unknown orders, expected {self.unpriced}"
        return None
