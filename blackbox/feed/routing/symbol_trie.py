"""Tries for compiled code in which `longest_prefix` finds a topic's longest prefix and its symbol in one walk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy

from blackbox.feed.routing.symbol import BEFORE_FIRST, WHOLE, SymbolRule
from blackbox.native.tables.prefix_trie import Trie

_ROOT = 0
"""Number of the root: a walk that returns to it ends with the last number found."""


def build_symbol_trie(
    prefixes: Sequence[bytes],
    symbols: Iterable[bytes],
    rule: SymbolRule,
    number_of: Callable[[bytes | None, bytes | None], int],
) -> Trie:
    """Return a trie in which `longest_prefix` finds `number_of(prefix, symbol)` of any topic that is not empty.

    `prefix` is the longest of `prefixes` that the topic starts with; `symbol` is its symbol if that is one of
    `symbols`. Each is None if there is none. Numbers are 1 or more.

    Where a topic differs from all texts, its longest prefix is known. But its symbol may still change: with
    "before_last" a later separator moves the end of the symbol. So the walk enters a node that is its own child until
    a separator comes, and then a node that ends the walk.
    """
    separator, wanted = rule.separator.encode(), frozenset(symbols)
    known = frozenset(prefixes)
    texts = sorted({*prefixes, *(start for symbol in wanted for start, _ in rule.topics_of(symbol))})
    used = sorted({*b"".join(texts), *(b"" if rule.symbol == WHOLE else separator)})
    classes = {byte: (place + 1) & 0xFF for place, byte in enumerate(used)}  # as in `build_trie`
    byte_class = numpy.zeros(256, numpy.uint8)
    byte_class[used] = [classes[byte] for byte in used]

    children, strings = _nodes_of(texts, classes)
    found: list[bytes | None] = [None] * len(strings)  # the longest prefix of each; parents come before children
    for node, string in enumerate(strings):
        found[node] = string if string in known else found[node]
        for child in children[node].values():
            found[child] = found[node]

    ends: list[tuple[int, dict[int, int], int]] = []
    """Nodes added after those of texts: number, children, and the child of all other classes; -1: the node itself."""
    places: dict[tuple[int, int], int] = {}

    def end(number: int, after_separator: int) -> int:
        """Return the node of a walk that has left all texts; another number applies after the next separator."""
        key = number, after_separator
        if key not in places:
            places[key] = len(strings) + len(ends)
            ends.append((number, {}, _ROOT))
            if after_separator != number:
                place = places[key] - len(strings)
                ends[place] = number, {classes[separator[0]]: end(after_separator, after_separator)}, -1
        return places[key]

    width = len(used) + 1
    rows: list[tuple[int, dict[int, int], int]] = []
    for node, string in enumerate(strings):
        longest = found[node]
        symbol = rule.symbol_of(string)
        here = number_of(longest, symbol if symbol in wanted else None)
        plain = number_of(longest, None)
        has_symbol = rule.symbol != WHOLE and separator in string and symbol in wanted
        own = children[node]
        if has_symbol and rule.symbol == BEFORE_FIRST:
            rows.append((here, own, _ROOT))
            continue
        if has_symbol and plain != here:
            exit_at = end(here, plain)
            own = {classes[separator[0]]: end(plain, plain), **own}
        else:
            exit_at = _ROOT if plain == here else end(plain, plain)
        rows.append((here, own, exit_at))

    table = numpy.zeros((len(rows) + len(ends), width), numpy.int32)
    terminal = numpy.zeros(len(table), numpy.int32)
    for node, (number, own, other) in enumerate([*rows, *ends]):
        terminal[node] = number
        table[node] = node if other == -1 else other
        for branch, to in own.items():
            table[node, branch] = to
    return Trie(byte_class, table, terminal)


def _nodes_of(texts: list[bytes], classes: dict[int, int]) -> tuple[list[dict[int, int]], list[bytes]]:
    """Return the children of each node of a trie of sorted texts, by class of byte, and the text that leads to it."""
    children: list[dict[int, int]] = [{}]
    strings = [b""]
    for text in texts:
        node = 0
        for size, byte in enumerate(text):
            branch = classes[byte]
            if branch not in children[node]:
                children[node][branch] = len(children)
                children.append({})
                strings.append(text[: size + 1])
            node = children[node][branch]
    return children, strings
