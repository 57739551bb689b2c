"""What the demo's callbacks find out about a session: the same, however it came to them."""

from __future__ import annotations

from typing import NamedTuple


class SymbolResult(NamedTuple):
    """What the callbacks found out about one symbol."""

    symbol: str
    shares: int
    trades: int
    vwap: float
    """Dollars."""
    last: float | None
    """Dollars; None: no message told it."""


class Findings(NamedTuple):
    """What the callbacks found out about a session."""

    symbols: list[SymbolResult]
    """Every symbol that was traded, the largest volume first."""
    mix: dict[str, int]
    """Messages by type."""
    watched: dict[bytes, tuple[int, ...]]
    """The same of the watched symbols, int[256], from the calls for each message."""
    unpriced: int
    """Executions of unknown orders."""

    def difference(self, other: Findings) -> str | None:
        """The first thing in which another one differs; None: it is the same to the last digit."""
        for one, two in zip(self.symbols, other.symbols, strict=False):
            if one != two:
                return f"{one.symbol} was {two[1:] if one.symbol == two.symbol else two}, expected {one[1:]}"
        if len(self.symbols) != len(other.symbols):
            return f"{len(other.symbols)} symbols were traded, expected {len(self.symbols)}"
        if self.mix != other.mix:
            return f"the message mix was {other.mix}, expected {self.mix}"
        if self.watched != other.watched:
            return "the message mix of the watched symbols was another one"
        if self.unpriced != other.unpriced:
            return f"{other.unpriced} executions were of unknown orders, expected {self.unpriced}"
        return None
