"""Topics chosen by symbol, compared with a plain loop over the symbols of topics."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Feed
from blackbox.feed.routing.prefixes import covering
from blackbox.feed.routing.symbol import RULES, SymbolRule
from blackbox.feed.routing.symbol_trie import build_symbol_trie
from blackbox.feed.symbol_choice import CHOSEN, SymbolChoice, TopicChoice, starts_by_slice
from blackbox.native.tables.prefix_trie import longest_prefix
from tests.examples import examples

words = st.text("AB./", min_size=1, max_size=6).map(str.encode)
"""Topics, symbols and prefixes of few letters, so that most are prefixes of each other and contain separators."""
odd = st.binary(min_size=1, max_size=3).filter(lambda text: text[0] != 0)
rules = st.builds(SymbolRule, st.sampled_from(RULES), st.sampled_from("./"))


@settings(deadline=None, max_examples=examples(500))
@given(st.lists(words | odd, max_size=6), st.lists(words | odd, max_size=6), rules, st.lists(words | odd, max_size=40))
def test_the_trie_finds_prefix_and_symbol_of_every_topic(
    prefixes: list[bytes], symbols: list[bytes], rule: SymbolRule, topics: list[bytes]
) -> None:
    numbers: dict[tuple[bytes | None, bytes | None], int] = {}
    prefixes = sorted(set(prefixes))

    def number_of(prefix: bytes | None, symbol: bytes | None) -> int:
        return numbers.setdefault((prefix, symbol), len(numbers) + 1)

    trie = build_symbol_trie(prefixes, symbols, rule, number_of)
    for topic in [*topics, *prefixes, *symbols, *(symbol + b"." for symbol in symbols)]:
        started = [prefix for prefix in prefixes if topic.startswith(prefix)]
        symbol = rule.symbol_of(topic)
        expected = max(started, key=len, default=None), symbol if symbol in symbols else None
        text = numpy.frombuffer(topic, numpy.uint8)
        assert longest_prefix(trie, text.ctypes.data, len(topic)) == numbers.get(expected), (topic, expected)


@pytest.mark.parametrize("rule", RULES)
def test_a_trie_of_all_bytes_finds_prefix_and_symbol(rule: str) -> None:
    prefixes = [b"\xff\0", *(bytes([byte]) for byte in range(1, 256))]
    numbers: dict[tuple[bytes | None, bytes | None], int] = {}
    trie = build_symbol_trie(
        prefixes, [b"\xff"], SymbolRule(rule), lambda *key: numbers.setdefault(key, len(numbers) + 1)
    )
    for topic in (b"\xff", b"\xff.", b"\xff.x", b"\xff.x.x", b"\xff\0", b"\xff\xff.x", b".x", b"x.\xff"):
        symbol = SymbolRule(rule).symbol_of(topic)
        expected = b"\xff\0" if topic == b"\xff\0" else topic[:1], symbol if symbol == b"\xff" else None
        text = numpy.frombuffer(topic, numpy.uint8)
        assert longest_prefix(trie, text.ctypes.data, len(topic)) == numbers[expected]


def feed_by(rule: SymbolRule, slices: int = 4) -> Feed:
    local = Feed.local("choice", slices=slices)
    return Feed(name="choice", slices=local.slices, symbol=rule.symbol, separator=rule.separator)


@settings(deadline=None, max_examples=examples(300))
@given(words, st.lists(words, min_size=1, max_size=4), rules, st.lists(words, max_size=40))
def test_a_choice_has_and_requests_exactly_the_topics_of_its_symbols(
    prefix: bytes, symbols: list[bytes], rule: SymbolRule, topics: list[bytes]
) -> None:
    feed = feed_by(rule)
    for start in (b"", prefix):
        try:
            choice = SymbolChoice.of(feed, symbols, start)
        except ConfigError:
            continue
        starts = starts_by_slice(feed, choice.starts)
        for topic in [*topics, *symbols, *(symbol + b"." for symbol in symbols)]:
            expected = topic.startswith(start) and rule.symbol_of(topic) in symbols
            assert choice.has(topic) == expected
            if expected:
                assert topic.startswith(tuple(start for start, _ in starts[feed.slice_of(topic)]))


@settings(deadline=None, max_examples=examples(300))
@given(
    st.lists(words, max_size=3),
    st.none() | st.lists(words, min_size=1, max_size=4),
    rules,
    st.lists(words, max_size=40),
)
def test_prefixes_and_symbols_choose_the_topics_of_a_plain_loop(
    prefixes: list[bytes], symbols: list[bytes] | None, rule: SymbolRule, topics: list[bytes]
) -> None:
    try:
        choice = TopicChoice.of(feed_by(rule), prefixes, symbols)
    except ConfigError:
        assert symbols is not None
        return
    trie = choice.trie()
    for topic in [*topics, *prefixes, *(symbols or []), *(symbol + b"./" for symbol in symbols or [])]:
        expected = any(topic.startswith(prefix) for prefix in prefixes or [b""])
        expected = expected and (symbols is None or rule.symbol_of(topic) in symbols)
        text = numpy.frombuffer(topic, numpy.uint8)
        assert choice.has(topic) == expected
        assert (longest_prefix(trie, text.ctypes.data, len(topic)) == CHOSEN) == expected
        fitting = [start for start, whole in choice.starts if topic == start or (topic.startswith(start) and not whole)]
        assert len(fitting) <= 1, "a bridge sends no message twice"
        assert fitting or not expected


def test_a_choice_of_many_symbols_is_made() -> None:
    names = [b"S%d" % number for number in range(5_000)]
    assert covering(names) == tuple(names[:10])
    choice = TopicChoice.of(feed_by(SymbolRule()), b"", names)
    assert choice.starts == [start for name in names for start in ((name + b".", False), (name, True))]
    choice = TopicChoice.of(feed_by(SymbolRule()), [name + b".T" for name in names], names)
    assert choice.starts == [(name + b".T", False) for name in names]


@pytest.mark.parametrize(
    ("rule", "symbols", "prefix", "error", "text"),
    [
        ("before_last", "AAPL", b"", TypeError, "symbols was 'AAPL', expected a list or tuple of str or bytes"),
        ("before_last", [5], b"", TypeError, r"symbols was 5 \(int\), expected str or bytes"),
        ("before_last", [], b"", ConfigError, "symbols was empty, expected at least one symbol"),
        ("before_last", [""], b"", ConfigError, "symbols had an empty one"),
        ("before_last", ["\0H"], b"", ConfigError, "starts with a zero byte"),
        ("before_last", ["AAPL"], b"B", ConfigError, "had b'AAPL', none of whose topics starts with prefix b'B'"),
        ("before_first", ["BRK.B"], b"", ConfigError, "ends before the first '.' .*: choose its topics by prefix"),
        ("whole", ["BRK"], b"BRK.", ConfigError, "none of whose topics starts with prefix b'BRK.'"),
    ],
)
def test_symbols_that_no_topic_can_have_are_refused(
    rule: str, symbols: Any, prefix: bytes, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        SymbolChoice.of(feed_by(SymbolRule(rule)), symbols, prefix)
