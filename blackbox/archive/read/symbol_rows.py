"""Select the rows of recorded blocks by symbol."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from blackbox.block.form.block import Block
from blackbox.block.form.format import layout_of, read_header
from blackbox.feed.symbol_choice import CHOSEN, SymbolChoice, TopicChoice
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import int32s_at
from blackbox.native.tables.prefix_trie import Trie, longest_prefix


class SymbolRows:
    """Selects rows by the symbols of their topics."""

    def __init__(self, symbols: SymbolChoice) -> None:
        """Select topics as `SymbolChoice.has`."""
        self._trie = TopicChoice(symbols.texts, symbols).trie()

    def of(self, rows: NDArray[numpy.int32] | None, block: Block, header: int, body: int) -> NDArray[numpy.int32]:
        """Return the selected ones of some rows, or of all if None. `header` and `body` are the block's addresses."""
        chosen = numpy.empty(block.topic_count, numpy.bool_)
        _choose_topics(header, body, self._trie, chosen)
        index = block.topic_index
        found = numpy.flatnonzero(chosen[index]) if rows is None else rows[chosen[index[rows]]]
        return found.astype(numpy.int32, copy=False)


@njit(nogil=True, cache=True)
def _choose_topics(header: int, body: int, trie: Trie, chosen: NDArray[numpy.bool_]) -> None:
    block = read_header(header)
    layout = layout_of(block)
    offsets = int32s_at(body + layout.topic_offsets, block.topics + 1)
    for topic in range(block.topics):
        start = numpy.int64(offsets[topic])
        size = numpy.int64(offsets[topic + 1]) - start
        chosen[topic] = longest_prefix(trie, body + layout.topics + start, size) == CHOSEN
