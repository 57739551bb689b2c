"""Topics from a template, made once per distinct topic and looked up in compiled code per message.

A message's key is its symbol (eight bytes as an integer; 0 if unknown) and a tag (type and locate). Compiled code
numbers new keys as they come; their topics are written at the end of the chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.errors import SourceError
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import int64s_at
from blackbox.native.tables.name_table import FULL, Numbering, NumberingAt, number_of
from blackbox_feeds.io.template import TopicForm
from blackbox_feeds.io.topic_text import SYSTEM_SYMBOL, CompiledForm, write_topics

__all__ = ["FULL", "SYSTEM_SYMBOL", "KeyedTopics", "SymbolTopics", "TopicTable", "TopicsAt", "key_number"]

MAX_TOPICS = 1 << 20
"""More distinct keys than this indicate corrupt input."""

_KEY = Struct("<qq")


class TopicsAt(NamedTuple):
    """A `TopicTable` for compiled code."""

    keys: NumberingAt
    key: int
    """Address of two int64, a buffer for a key."""
    symbol_mask: int
    known_mask: int
    """The bits of the tag that distinguish topics."""
    unknown_mask: int
    """The same for a message without a symbol."""


@njit(nogil=True, cache=True)
def key_number(topics: TopicsAt, symbol: int, tag: int) -> int:
    """Return the number of a message's key, a new one if it is new, or `FULL`. `tag`: type | locate << 8."""
    key = int64s_at(topics.key, 2)
    key[0] = symbol & topics.symbol_mask
    key[1] = tag & (topics.known_mask if key[0] != 0 else topics.unknown_mask)
    return number_of(topics.keys, topics.key, 16)


class KeyedTopics:
    """Topics by the numbers of keys, which compiled code assigns by `number_of`."""

    def __init__(self, most_keys: int, mean_key_bytes: int, topic_of: Callable[[bytes], bytes | int]) -> None:
        """Take up to `most_keys` distinct keys; `topic_of` writes the topic of one, or returns a number below 0."""
        self.keys = Numbering(most_keys, mean_key_bytes)
        self.topics: tuple[bytes, ...] = ()
        """The topics so far."""
        self._topic_of = topic_of
        self._place_of: dict[bytes, int] = {}
        self._place_of_key = numpy.empty(0, numpy.int32)

    def settle(self, topic_index: NDArray[numpy.int32]) -> None:
        """Write the topics of new keys, and convert `topic_index` from numbers of keys to indices in `topics`.

        A key without a topic gets the number that `topic_of` returned. Two keys may have one topic, e.g. if their
        symbols differ only in padding.
        """
        known = len(self._place_of_key)
        if len(self.keys) > known:
            self._place_of_key = numpy.append(self._place_of_key, self._write_topics(known))
        if len(self.topics) < len(self._place_of_key):
            topic_index[:] = self._place_of_key[topic_index]

    def _write_topics(self, known: int) -> NDArray[numpy.int32]:
        """Write the topics of the keys from number `known` on; return their indices."""
        new = self.keys.names(known)
        topics = map(self._topic_of, new)
        places = [
            topic if isinstance(topic, int) else self._place_of.setdefault(topic, len(self._place_of))
            for topic in topics
        ]
        if len(self._place_of) > len(self.topics):
            self.topics = tuple(self._place_of)
        return numpy.array(places, numpy.int32)


class SymbolTopics(KeyedTopics):
    """Topics by symbol and tag. `at` is for compiled code."""

    def __init__(self, form: TopicForm, topic_of: Callable[[int, int], bytes]) -> None:
        """Distinguish topics by the fields of the template; `topic_of` writes the topic of a symbol and a tag."""
        super().__init__(MAX_TOPICS, _KEY.size, lambda key: topic_of(*_KEY.unpack(key)))
        symbol_mask = -1 if "symbol" in form.names else 0
        locate_mask = 0xFFFF00
        known = (0xFF if "type" in form.names else 0) | (locate_mask if "locate" in form.names else 0)
        # An unknown symbol is written as its locate, which distinguishes such topics.
        unknown = known | (locate_mask if symbol_mask else 0)
        self._key = numpy.zeros(2, numpy.int64)
        self.at = TopicsAt(self.keys.at, self._key.ctypes.data, symbol_mask, known, unknown)
        self._form = form

    def overflow(self) -> SourceError:
        """Return the error for `FULL`."""
        return SourceError(
            f"the input has more than {MAX_TOPICS} distinct topics by template "
            f"{self._form.template!r}: it is corrupt, or the template is too fine"
        )


class TopicTable(SymbolTopics):
    """Topics by symbol, type and locate, written in compiled code."""

    def __init__(self, form: TopicForm) -> None:
        """Use the topics of a template."""
        super().__init__(form, lambda *_: b"")
        self._compiled = CompiledForm.of(form)
        self._texts = Numbering(MAX_TOPICS, len(self._compiled.scratch))

    def _write_topics(self, known: int) -> NDArray[numpy.int32]:
        places = numpy.empty(len(self.keys) - known, numpy.int32)
        write_topics(self.keys.at.text + _KEY.size * known, self._compiled, self._texts.at, places)
        if len(self._texts) > len(self.topics):
            self.topics += tuple(self._texts.names(len(self.topics)))
        return places
