"""The symbol rule in compiled code: where a topic's symbol ends. Apart from `symbol`, which loads without numba."""

from __future__ import annotations

from typing import NamedTuple

from blackbox.feed.symbol import BEFORE_FIRST, WHOLE, SymbolRule
from blackbox.native.intrinsics import bytes_at, inner


class CompiledSymbolRule(NamedTuple):
    """A `SymbolRule` as compiled code takes it."""

    separator: int
    """The separator's byte; -1: a topic is its symbol as a whole."""
    first: bool
    """Whether the first separator counts, and not the last one."""

    @classmethod
    def of(cls, rule: SymbolRule) -> CompiledSymbolRule:
        """Return the compiled form of a rule."""
        return cls(-1 if rule.symbol == WHOLE else ord(rule.separator), rule.symbol == BEFORE_FIRST)


@inner
def separator_at(rule: CompiledSymbolRule, topic: int, size: int) -> int:
    """Return the offset of the separator between symbol and type; -1 when the topic, at that address, has no type."""
    letters = bytes_at(topic, size)
    found = -1
    if rule.separator >= 0:
        for at in range(size):
            if letters[at] == rule.separator:
                found = at
                if rule.first:
                    break
    return found
