"""Losses of an input: the first few described, the others counted."""

from __future__ import annotations

from typing import Final

NAMED: Final = 3
"""Most losses described."""


class Losses:
    """Losses of one kind, such as bad lines."""

    def __init__(self, many: str) -> None:
        """`many`: the plural of the losses, such as "bad lines"."""
        self._many = many
        self._named: list[str] = []
        self.count = 0
        """Losses so far."""

    def name(self, text: str) -> None:
        """Describe a loss, if it is one of the first. The caller adds it to `count`."""
        if len(self._named) < NAMED:
            self._named.append(text)

    @property
    def first(self) -> str:
        """The first loss described."""
        return self._named[0]

    def __str__(self) -> str:
        more = self.count - len(self._named)
        return "; ".join([*self._named, *([f"and {more:,} more {self._many}"] if more else [])])


def notes_of(*counts: tuple[str, int]) -> tuple[str, ...]:
    """Return a line for each count above 0, after the words for it."""
    return tuple(f"{words}: {count:,}" for words, count in counts if count > 0)
