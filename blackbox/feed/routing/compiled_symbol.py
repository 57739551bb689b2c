"""Compiled: find the end of a topic's symbol. Not in `symbol`, which must load without numba."""

from __future__ import annotations

from typing import NamedTuple

from blackbox.feed.routing.symbol import BEFORE_FIRST, WHOLE, SymbolRule
from blackbox.native.memory.intrinsics import bytes_at, inner


class CompiledSymbolRule(NamedTuple):
    """A `SymbolRule` for compiled code."""

    separator: int
    """The separator's byte; -1: the whole topic is its symbol."""
    first: bool
    """True if the symbol ends at the first separator, not the last."""

    @classmethod
    def of(cls, rule: SymbolRule) -> CompiledSymbolRule:
        """Return the compiled form of a rule."""
        return cls(-1 if rule.symbol == WHOLE else ord(rule.separator), rule.symbol == BEFORE_FIRST)


@inner
def separator_at(rule: CompiledSymbolRule, topic: int, size: int) -> int:
    """Return the offset of the separator between symbol and type; -1: no type. `topic`: address of the topic."""
    letters = bytes_at(topic, size)
    found = -1
    if rule.separator >= 0:
        for at in range(size):
            if letters[at] == rule.separator:
                found = at
                if rule.first:
                    break
    return found
