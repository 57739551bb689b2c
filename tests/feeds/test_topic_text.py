"""Topics: the template of each feed, and those written in compiled code equal those of the template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from blackbox_feeds.binance import Binance
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.iex import Iex
from blackbox_feeds.io.template import TopicForm
from blackbox_feeds.io.topic_text import is_symbol
from blackbox_feeds.io.topics import SYSTEM_SYMBOL, TopicTable, key_number
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.tape import Tape
from hypothesis import example, given
from hypothesis import strategies as st

from blackbox.errors import ConfigError, SourceError
from blackbox.feed.routing.symbol import MARKET_SYMBOL, SymbolRule
from tests.feeds.build import messages_of

SYMBOLS = st.one_of(
    st.just(0),
    st.just(SYSTEM_SYMBOL),
    st.binary(min_size=8, max_size=8).map(lambda text: int.from_bytes(text, "little", signed=True)),
    st.text("AB \0", max_size=8).map(lambda text: int.from_bytes(text.encode().ljust(8), "little")),
)
KEYS = st.lists(st.tuples(SYMBOLS, st.integers(0, 255), st.integers(0, 0xFFFF)), min_size=1, max_size=30)
TEMPLATES = st.lists(st.sampled_from(["{symbol}", "{type}", "{locate}", ".", "%", "é{{"]), min_size=1, max_size=6)


def expected(form: TopicForm, symbol: int, kind: int, locate: int) -> bytes:
    """Return the topic of a message, in plain Python."""
    text = symbol.to_bytes(8, "little", signed=True).rstrip(b" \0")
    if symbol and "locate" not in form.names:
        locate = 0  # a key has only the fields that distinguish topics
    name = MARKET_SYMBOL if symbol == SYSTEM_SYMBOL else text or b"#%d" % locate
    return form.topic(name, bytes([kind]), locate)


@given(TEMPLATES.map("".join), st.lists(KEYS, min_size=1, max_size=3))
def test_topics_follow_the_template(template: str, chunks: list[list[tuple[int, int, int]]]) -> None:
    form = TopicForm(template, locates=True)
    table = TopicTable(form)
    before: tuple[bytes, ...] = ()
    for keys in chunks:
        index = numpy.array([key_number(table.at, symbol, kind | locate << 8) for symbol, kind, locate in keys])
        index = index.astype(numpy.int32)
        table.settle(index)
        assert [table.topics[place] for place in index] == [expected(form, *key) for key in keys]
        assert table.topics[: len(before)] == before
        assert len(set(table.topics)) == len(table.topics)
        before = table.topics


@given(st.binary(min_size=8, max_size=8))
@example(b"AAPL    ")
@example(b"AAPL\0\0\0\0")
@example(b"A B C   ")
@example(b"AAPL\x7f   ")
@example(b"A\0B     ")
@example(b"#13     ")
@example(b"caf\xe9    ")
@example(b"        ")
@example(b"\xff" * 8)
def test_a_symbol_is_printable_ascii_without_a_hash_in_front(text: bytes) -> None:
    kept = text.rstrip(b" \0")
    expected = all(0x20 <= byte <= 0x7E for byte in kept) and not kept.startswith(b"#")
    assert is_symbol(int.from_bytes(text, "little", signed=True)) == expected
    assert is_symbol(int.from_bytes(text.translate(bytes(0x20 + k % 0x5F for k in range(256))), "little")) == (
        text.translate(bytes(0x20 + k % 0x5F for k in range(256)))[:1] != b"#"
    )


@given(st.lists(st.text([chr(c) for c in range(0x20, 0x7F)], max_size=8), min_size=1, max_size=20))
def test_symbol_to_topic_to_symbol_is_the_identity(symbols: list[str]) -> None:
    table = TopicTable(TopicForm("{symbol}.{type}", locates=True))
    kept = [symbol for symbol in dict.fromkeys(s.rstrip() for s in symbols) if symbol and not symbol.startswith("#")]
    numbers = [int.from_bytes(symbol.ljust(8).encode(), "little", signed=True) for symbol in kept]
    index = numpy.array([key_number(table.at, number, ord("P")) for number in numbers], numpy.int32)
    table.settle(index)
    rule = SymbolRule()
    assert [rule.symbol_of(table.topics[place]).decode() for place in index] == kept
    assert len(set(index.tolist())) == len(kept)


FEEDS: list[tuple[Callable[..., Any], str]] = [
    (Binance, "lines of receive time and"),
    (Dbn, "a DBN file"),
    (Iex, "a pcap or pcapng capture"),
    (Tape, "a CSV of tape"),
]


@pytest.mark.parametrize(("feed", "_"), FEEDS)
def test_only_itch_has_locates(feed: Callable[..., Any], _: str) -> None:
    with pytest.raises(ConfigError, match=r"expected text with \{symbol\}, \{type\}$"):
        feed("file", topic="{locate}")


@pytest.mark.parametrize("template", ["", "{price}", "{symbol", "{symbol!r}", "{type:>3}", "{}", "\0x", "\udcff", 5])
def test_a_wrong_template_is_refused(template: Any) -> None:
    with pytest.raises(ConfigError, match="topic template was"):
        Itch50("day.itch", "2019-12-30", template)


@pytest.mark.parametrize(("feed", "expected"), [*FEEDS, (Itch50, "an ITCH 5.0 file or")])
def test_a_missing_file_is_one_clear_error(feed: Callable[..., Any], expected: str) -> None:
    options = {"date": "2019-12-30"} if feed is Itch50 else {}
    with pytest.raises(SourceError, match=f"cannot be read: No such file or directory, expected {expected}"):
        messages_of(feed("none", **options))
