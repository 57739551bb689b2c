"""Topics written in compiled code: those that the template gives, text by text."""

from __future__ import annotations

import numpy
from blackbox_feeds.io.template import TopicForm
from blackbox_feeds.io.topics import SYSTEM_SYMBOL, TopicTable, key_number, printable
from hypothesis import given
from hypothesis import strategies as st

from blackbox.feed.symbol import MARKET_SYMBOL

SYMBOLS = st.one_of(
    st.just(0),
    st.just(SYSTEM_SYMBOL),
    st.binary(min_size=8, max_size=8).map(lambda text: int.from_bytes(text, "little", signed=True)),
    st.text("AB \0", max_size=8).map(lambda text: int.from_bytes(text.encode().ljust(8), "little")),
)
KEYS = st.lists(st.tuples(SYMBOLS, st.integers(0, 255), st.integers(0, 0xFFFF)), min_size=1, max_size=30)
TEMPLATES = st.lists(st.sampled_from(["{symbol}", "{type}", "{locate}", ".", "%", "é{{"]), min_size=1, max_size=6)


def expected(form: TopicForm, symbol: int, kind: int, locate: int) -> bytes:
    """The topic of a message, in plain Python."""
    text = printable(symbol.to_bytes(8, "little", signed=True).rstrip(b" \0"))
    if symbol and "locate" not in form.names:
        locate = 0  # a key has only what tells its topic from others
    name = MARKET_SYMBOL if symbol == SYSTEM_SYMBOL else text or b"#%d" % locate
    return form.topic(name, printable(bytes([kind])), locate)


@given(TEMPLATES.map("".join), st.lists(KEYS, min_size=1, max_size=3))
def test_topics_are_what_the_template_gives(template: str, chunks: list[list[tuple[int, int, int]]]) -> None:
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
