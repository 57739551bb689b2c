"""The symbol rule: which part of a topic is its symbol, and which part routing hashes."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from blackbox.errors import ConfigError
from blackbox.feed.routing.compiled_routing import CompiledSymbolRule, separator_at
from blackbox.feed.routing.symbol import RULES, SymbolRule

rules = st.builds(SymbolRule, st.sampled_from(RULES), st.sampled_from("./A"))
texts = st.text("AB./", max_size=8).map(str.encode)


def slow_split(rule: SymbolRule, topic: bytes) -> tuple[bytes, bytes | None]:
    """Split a topic as the setting's description says."""
    letters = [bytes([byte]) for byte in topic]
    places = [at for at, letter in enumerate(letters) if letter == rule.separator.encode()]
    if not places or rule.symbol == "whole":
        return topic, None
    at = places[-1] if rule.symbol == "before_last" else places[0]
    return b"".join(letters[:at]), b"".join(letters[at + 1 :])


@njit
def separator_in(rule: CompiledSymbolRule, topic: NDArray[numpy.uint8], size: int) -> int:
    found: int = separator_at(rule, topic.ctypes.data, size)
    return found


@given(rules, texts)
def test_split_in_python_and_compiled_agrees_with_the_reference(rule: SymbolRule, topic: bytes) -> None:
    symbol, kind = slow_split(rule, topic)
    assert (rule.split(topic), rule.symbol_of(topic)) == ((symbol, kind), symbol)
    assert rule.root_of(topic) == rule.root_of(symbol)
    padded = numpy.frombuffer(topic + b"......", numpy.uint8)
    assert separator_in(CompiledSymbolRule.of(rule), padded, len(topic)) == (-1 if kind is None else len(symbol))


@given(rules, texts, texts)
def test_topics_of_a_symbol_have_its_starts_and_fixed_roots(rule: SymbolRule, symbol: bytes, topic: bytes) -> None:
    if rule.fixes_root(symbol):
        assert rule.root_of(symbol + topic) == rule.root_of(symbol)
    starts = rule.topics_of(symbol)
    if slow_split(rule, topic)[0] == symbol:
        assert any(topic == text if whole else topic.startswith(text) for text, whole in starts)
    for text, whole in starts:
        assert slow_split(rule, text if whole else text + b"B")[0] == symbol


def test_symbols_are_counted_without_the_market_itself() -> None:
    assert SymbolRule().symbols([b"A.P", b"A.E", b"B.P", b"#system.S"]) == {b"A", b"B"}


@pytest.mark.parametrize(
    ("symbol", "separator", "text"),
    [
        ("first", ".", "symbol was 'first', expected one of: before_last, before_first, whole"),
        ("whole", "", "separator was '', expected one ASCII character other than zero"),
        ("whole", "\0", "separator was '.x00', expected one ASCII character other than zero"),
        ("whole", "·", "separator was '·', expected one ASCII character other than zero"),
    ],
)
def test_invalid_rule_is_refused(symbol: str, separator: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SymbolRule(symbol, separator)
