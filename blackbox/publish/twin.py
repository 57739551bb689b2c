"""Twins: two publishers of the same messages, in two processes, each on its own line of a feed."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from blackbox.errors import ConfigError, PublisherError
from blackbox.feed.feed import Feed
from blackbox.feed.with_line import LINES, Line, with_line
from blackbox.timestamps import SECOND_NS

_AHEAD_NS: Final = 24 * 3_600 * SECOND_NS
"""Subscribers reject an epoch that begins further in the future."""


class Twin(msgspec.Struct, frozen=True):
    """A publisher with a twin: both publish the same messages in the same order, from the first message on.

    Subscribers take each message from the line that delivers it first, so no message is lost while one of the twins
    lives. A twin that starts again publishes everything once more; subscribers drop what they have.

    A twin that is closed announces its end only with `close(says_end=True)`, at the end of the session: else the other
    one goes on.

    Subscribers match the lines by sequence alone: twins that differ in their messages, their order, or what they leave
    out corrupt the feed. So a twin ends with an error if its source lacks messages, and its feed has no keys, as the
    order of keys in a slice depends on timing.
    """

    line: Line
    """Line that it publishes."""
    epoch: int
    """Epoch of both twins: ns since 1970, such as the start of the venue's session. A new session needs a larger one,
    at most 24 hours in the future."""

    def feed_of(self, feed: Feed, *, has_outbox: bool = False) -> Feed:
        """Return the feed with the twin's line only.

        Raises ConfigError for an unknown line, an epoch out of range, a feed with keys or channels, or without two
        lines that are sockets, or with an outbox.
        """
        if self.line not in LINES:
            raise ConfigError(f"line was {self.line!r}, expected 'A' or 'B'")
        if not 0 < self.epoch <= time.time_ns() + _AHEAD_NS:
            raise ConfigError(
                f"epoch was {self.epoch}, expected ns since 1970, at most 24 hours after now: subscribers reject others"
            )
        if has_outbox:
            raise ConfigError("twin and outbox were both given, expected one: a twin publishes again from the start")
        if feed.key_rule:
            raise ConfigError(f"feed {feed.name!r} had key_bytes or channels, expected none with twins")
        return with_line(feed, self.line)


def refuse(twin: Twin | None, what: str) -> None:
    """Raise PublisherError for a twin: `what` would make it differ from the other one."""
    if twin is not None:
        raise PublisherError(
            f"line {twin.line}: {what}; expected none of this from a twin, as the other one would number differently: "
            "start this twin again, from the first message"
        )
