"""Lives: where something is between its start and its end, and what may come next."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Self

log = logging.getLogger("blackbox")


class Life(StrEnum):
    """Where something is in its life. Each member has its text, and the texts of those that may follow it.

        class DoorLife(Life):
            OPEN = "open", "shut"
            SHUT = "shut", "open", "locked"
            LOCKED = "locked"

    One that may be entered once more names itself, too. What lives it has one function, `_enter`, that assigns what
    `enter` returns.
    """

    following: tuple[str, ...]

    def __new__(cls, text: str, *following: str) -> Self:
        """Make a member."""
        life = str.__new__(cls, text)
        life._value_, life.following = text, following
        return life

    def enter(self, life: Self, what: str) -> Self:
        """Return `life`, the next one of `what`, and log it. Raises RuntimeError when it may not follow this one."""
        if life not in self.following:
            expected = " or ".join(self.following) or "nothing more"
            raise RuntimeError(f"{what} was to be {life} when it was {self}, expected {expected}")
        if life is not self:
            log.debug("%s: %s -> %s", what, self, life)
        return life
