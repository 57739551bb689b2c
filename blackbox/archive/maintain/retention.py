"""Limits for the recordings of a feed that are kept."""

from __future__ import annotations

from typing import Final

import msgspec

from blackbox.arguments import check_integers
from blackbox.errors import ConfigError


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a feed's recordings; None: no limit.

    Days are session dates and include the current one. Days that all named consumers have passed are deleted beyond
    `days` or `bytes`, other days beyond `most_days` or `most_bytes`.
    """

    days: int | None = None
    """Older days are deleted, unless a consumer still needs them."""
    bytes: int | None = None
    """The oldest days are deleted above this total size, unless a consumer still needs them."""
    most_days: int | None = None
    """Older days are deleted, even if a consumer needs them."""
    most_bytes: int | None = None
    messages_per_topic: int | None = None
    """Number of newest messages kept of each topic. Older ones are dropped from days that are over."""
    only_wanted: bool = False
    """True if messages of topics that no named consumer wants are dropped from days that are over."""

    def check(self) -> None:
        """Raise ValueError for an invalid limit, ConfigError for one without effect."""
        if self.messages_per_topic is not None:
            check_integers(("messages_per_topic", self.messages_per_topic, 1, 1 << 62))
        for name, least, most in (("days", self.days, self.most_days), ("bytes", self.bytes, self.most_bytes)):
            for what, bound in ((name, least), (f"most_{name}", most)):
                if bound is not None:
                    check_integers((what, bound, 1, 1 << 62))
            if least is not None and most is not None and most < least:
                raise ConfigError(f"most_{name} was {most}, expected at least {name}, {least}")

    @property
    def has_limits(self) -> bool:
        """True if there is any limit."""
        return self.drops or any(each is not None for each in (self.days, self.bytes, self.most_days, self.most_bytes))

    @property
    def drops(self) -> bool:
        """True if messages may be dropped from days that are kept."""
        return self.only_wanted or self.messages_per_topic is not None


EVERYTHING: Final = Retention()
