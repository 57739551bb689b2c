"""Choose topics by symbol: exactly the given symbols, as the feed's symbol rule finds them in topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from blackbox.arguments import all_as_bytes
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.prefixes import common_prefix
from blackbox.feed.routing import check_prefix
from blackbox.feed.symbol import BEFORE_FIRST, SymbolRule


class SymbolChoice(NamedTuple):
    """Some symbols of a feed, and how their topics start."""

    rule: SymbolRule
    names: frozenset[bytes]
    prefix: bytes
    """Longest common start of the topics of the choice."""
    starts: tuple[tuple[bytes, bool], ...]
    """How topics of the choice start, each with whether that is the whole topic. Other topics may start so, too."""

    @classmethod
    def of(cls, feed: Feed, symbols: Iterable[str | bytes], prefix: bytes = b"") -> SymbolChoice:
        """Return the choice of topics that start with `prefix` and have one of these symbols.

        Raises TypeError unless `symbols` is a list of str or bytes; ConfigError when it is empty, or when no topic of
        the feed can have a symbol and the prefix.
        """
        rule = feed.symbol_rule
        names = list(dict.fromkeys(all_as_bytes("symbols", symbols)))
        if not names:
            raise ConfigError("symbols was empty, expected at least one symbol")
        starts = dict[tuple[bytes, bool], None]()
        for name in names:
            found = [(start, whole) for start, whole in _starts(feed, name) if start.startswith(prefix)]
            if not found and any(not whole and prefix.startswith(start) for start, whole in _starts(feed, name)):
                found = [(prefix, False)]
            if not found:
                raise ConfigError(f"symbols had {name!r}, none of whose topics starts with prefix {prefix!r}")
            starts |= dict.fromkeys(found)
        return cls(rule, frozenset(names), common_prefix([start for start, _ in starts]), tuple(starts))

    def has(self, topic: bytes) -> bool:
        """Return whether a topic is chosen."""
        return topic.startswith(self.prefix) and self.rule.symbol_of(topic) in self.names


def starts_by_slice(feed: Feed, starts: Iterable[tuple[bytes, bool]]) -> dict[int, list[bytes]]:
    """Return by slice how topics there start; `starts` is as in `SymbolChoice`."""
    found: dict[int, list[bytes]] = {}
    for start, whole in starts:
        try:
            slices = (feed.slice_of(start),) if whole else feed.slices_for(start)
        except ConfigError:  # no slice covers this topic
            slices = ()
        for slice_id in slices:
            found.setdefault(slice_id, []).append(start)
    return found


def _starts(feed: Feed, name: bytes) -> list[tuple[bytes, bool]]:
    if not name:
        raise ConfigError("symbols had an empty one, expected at least one byte")
    check_prefix(name, "symbol")
    rule = feed.symbol_rule
    if rule.symbol == BEFORE_FIRST and rule.separator.encode() in name:
        raise ConfigError(
            f"symbols had {name!r}, but a symbol of feed {feed.name!r} ends before the first {rule.separator!r} "
            '(symbol = "before_first"): choose its topics by prefix'
        )
    return rule.topics_of(name)
