"""Choose topics by symbol: exactly the given symbols, by the feed's symbol rule."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from blackbox.arguments import all_as_bytes
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes, common_prefix, covering, is_covered, uncovered
from blackbox.feed.routing.slices import check_prefix
from blackbox.feed.routing.symbol import BEFORE_FIRST, SymbolRule
from blackbox.feed.routing.symbol_trie import build_symbol_trie
from blackbox.native.tables.prefix_trie import Trie

CHOSEN: Final = 2
"""Number of a chosen topic in the trie of a `TopicChoice`."""


class SymbolChoice(NamedTuple):
    """Some symbols of a feed, and how their topics start."""

    rule: SymbolRule
    names: frozenset[bytes]
    prefix: bytes
    """Longest common start of the topics of the choice."""
    starts: tuple[tuple[bytes, bool], ...]
    """Starts of the chosen topics, each with True if it is the whole topic. Other topics may start with them too."""
    texts: tuple[bytes, ...]
    """The texts of `starts`."""

    @classmethod
    def of(cls, feed: Feed, symbols: Iterable[str | bytes], prefix: Prefixes = b"") -> SymbolChoice:
        """Return the choice of topics that start with one of the prefixes and have one of these symbols.

        Raises TypeError unless `symbols` is a list of str or bytes; ConfigError if it is empty, or if no topic of the
        feed can have a symbol and the prefix.
        """
        prefixes = uncovered(covering(prefix))
        rule = feed.symbol_rule
        names = list(dict.fromkeys(all_as_bytes("symbols", symbols)))
        if not names:
            raise ConfigError("symbols was empty, expected at least one symbol")
        starts = dict[tuple[bytes, bool], None]()
        for name in names:
            own = _starts(feed, name)
            found = [(start, whole) for start, whole in own if is_covered(start, prefixes)]
            found += [(each, False) for start, whole in own if not whole for each in _longer(prefixes, start)]
            if not found:
                raise ConfigError(f"symbols had {name!r}, none of whose topics starts with prefix {prefix!r}")
            starts |= dict.fromkeys(found)
        texts = tuple(start for start, _ in starts)
        return cls(rule, frozenset(names), common_prefix(texts), tuple(starts), texts)

    def has(self, topic: bytes) -> bool:
        """Return True if a topic is chosen."""
        return topic.startswith(self.texts) and self.rule.symbol_of(topic) in self.names


class TopicChoice(NamedTuple):
    """Topics that start with one of some prefixes and, if symbols are given, have one of these."""

    prefixes: tuple[bytes, ...] = (b"",)
    symbols: SymbolChoice | None = None

    @classmethod
    def of(cls, feed: Feed, prefix: Prefixes, symbols: Iterable[str | bytes] | None) -> TopicChoice:
        """Return the choice of a feed's topics. Raises as `SymbolChoice.of`."""
        if symbols is None:
            return cls(covering(prefix))
        choice = SymbolChoice.of(feed, symbols, prefix)
        return cls(choice.texts, choice)

    def __str__(self) -> str:
        starts = f"that starts with {' or '.join(map(repr, self.prefixes))}"
        return starts if self.symbols is None else f"of the symbols {sorted(self.symbols.names)}, {starts}"

    def has(self, topic: bytes) -> bool:
        """Return True if a topic is chosen."""
        return topic.startswith(self.prefixes) if self.symbols is None else self.symbols.has(topic)

    @property
    def takes_all(self) -> bool:
        """True if all topics are chosen."""
        return b"" in self.prefixes and self.symbols is None

    @property
    def starts(self) -> list[tuple[bytes, bool]]:
        """Starts of the topics, each with True if it is the whole topic. No topic starts with two of them."""
        if self.symbols is None:
            return [(prefix, False) for prefix in self.prefixes]
        open_ = uncovered(start for start, whole in self.symbols.starts if not whole)
        kept = set(open_)
        return [
            (start, whole)
            for start, whole in self.symbols.starts
            if (not is_covered(start, open_) if whole else start in kept)
        ]

    @property
    def prefix(self) -> bytes:
        """Longest common start of the topics."""
        return common_prefix(self.prefixes)

    def trie(self) -> Trie:
        """Return the trie in which `longest_prefix` finds CHOSEN for each chosen topic except b""."""
        rule, names = (SymbolRule(), None) if self.symbols is None else (self.symbols.rule, self.symbols.names)
        return build_symbol_trie(
            self.prefixes,
            names or (),
            rule,
            lambda prefix, symbol: CHOSEN if prefix is not None and (names is None or symbol is not None) else 1,
        )


ALL_TOPICS: Final = TopicChoice()


def _longer(prefixes: Sequence[bytes], start: bytes) -> Iterator[bytes]:
    """Yield the prefixes, which are sorted, that are longer than `start` and start with it."""
    place = bisect_right(prefixes, start)
    while place < len(prefixes) and prefixes[place].startswith(start):
        yield prefixes[place]
        place += 1


def starts_by_slice(feed: Feed, starts: Iterable[tuple[bytes, bool]]) -> dict[int, list[tuple[bytes, bool]]]:
    """Group starts by the slices whose topics can have them; `starts` is as in `SymbolChoice`."""
    found: dict[int, list[tuple[bytes, bool]]] = {}
    for start, whole in starts:
        try:
            slices = (feed.slice_of(start),) if whole else feed.slices_for(start)
        except ConfigError:  # no slice covers this topic
            slices = ()
        for slice_id in slices:
            found.setdefault(slice_id, []).append((start, whole))
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
