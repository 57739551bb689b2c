"""The symbol rule: which part of a topic is its symbol. Used by routing, filters, archives, Spark and reports.

By default the symbol is the text before the topic's last dot, and the type the text after it: `BRK.A.P` has the symbol
`BRK.A`. The feed settings `symbol` and `separator` change that.

Routing by share hashes the symbol's *root*: the text before its first separator, `BRK` for `BRK.A`. All topics of one
symbol have one root, so they belong to one slice. A prefix that contains a separator, such as `AAPL.`, fixes the root
and so leads to one slice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from blackbox.errors import ConfigError

BEFORE_LAST = "before_last"
BEFORE_FIRST = "before_first"
WHOLE = "whole"
RULES = (BEFORE_LAST, BEFORE_FIRST, WHOLE)
"""The values of the feed setting `symbol`."""

MARKET_SYMBOL = b"#system"
"""The symbol that sources use for messages about the whole market."""


@dataclass(frozen=True)
class SymbolRule:
    """How a topic is split into symbol and type.

    `symbol` is "before_last", "before_first" or "whole"; `separator` is one ASCII character other than zero.

    Raises:
        ConfigError: one of them is something else.
    """

    symbol: str = BEFORE_LAST
    separator: str = "."

    def __post_init__(self) -> None:
        """Check both settings. Raises ConfigError."""
        if self.symbol not in RULES:
            raise ConfigError(f"symbol was {self.symbol!r}, expected one of: {', '.join(RULES)}")
        if len(self.separator) != 1 or not "\0" < self.separator < "\x80":
            raise ConfigError(f"separator was {self.separator!r}, expected one ASCII character other than zero")

    @property
    def topic(self) -> str:
        """The template of a topic, such as "{symbol}.{type}"."""
        separator = self.separator * (2 if self.separator in "{}" else 1)
        return "{symbol}" if self.symbol == WHOLE else f"{{symbol}}{separator}{{type}}"

    def split(self, topic: bytes) -> tuple[bytes, bytes | None]:
        """Return the symbol and the type of a topic; a topic without a separator is its own symbol and has no type."""
        separator = self.separator.encode()
        if self.symbol == WHOLE or separator not in topic:
            return topic, None
        head, _, tail = topic.rpartition(separator) if self.symbol == BEFORE_LAST else topic.partition(separator)
        return head, tail

    def symbol_of(self, topic: bytes) -> bytes:
        """Return the symbol of a topic."""
        return self.split(topic)[0]

    def symbols(self, topics: Iterable[bytes]) -> set[bytes]:
        """Return the distinct symbols of topics, without that of the whole market."""
        return {self.symbol_of(topic) for topic in topics} - {MARKET_SYMBOL}

    def root_of(self, text: bytes) -> bytes:
        """Return the root of a topic or symbol, which routing by share hashes."""
        return text.partition(self.separator.encode())[0]

    def fixes_root(self, prefix: bytes) -> bool:
        """Return True if all topics that start with `prefix` have one root."""
        return self.separator.encode() in prefix

    def topics_of(self, symbol: bytes) -> list[tuple[bytes, bool]]:
        """Return how the topics of a symbol start, each with True if that is the whole topic; empty: it has none."""
        separator = self.separator.encode()
        if self.symbol == WHOLE:
            return [(symbol, True)]
        with_type = (symbol + separator, False)
        if separator not in symbol:
            return [with_type, (symbol, True)]
        return [with_type] if self.symbol == BEFORE_LAST else []
