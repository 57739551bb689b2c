"""States of an object from its start to its end, and the allowed transitions."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Self

log = logging.getLogger("blackbox")


class Life(StrEnum):
    """A state machine. Each member has its text, and the texts of the states that may follow.

        class DoorLife(Life):
            OPEN = "open", "shut"
            SHUT = "shut", "open", "locked"
            LOCKED = "locked"

    A state that may be entered again lists itself too. The object has one function `_enter`, which assigns the result
    of `enter`.
    """

    following: tuple[str, ...]

    def __new__(cls, text: str, *following: str) -> Self:
        """Make a member."""
        life = str.__new__(cls, text)
        life._value_, life.following = text, following
        return life

    def enter(self, life: Self, what: str) -> Self:
        """Return `life`, the next state of `what`, and log it. Raises RuntimeError if it may not follow this one."""
        if life not in self.following:
            expected = " or ".join(self.following) or "nothing more"
            raise RuntimeError(f"{what} was to be {life} when it was {self}, expected {expected}")
        if life is not self:
            log.debug("%s: %s -> %s", what, self, life)
        return life
