"""A feed with one of its two lines, for a process that publishes that line; another process publishes the other."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from blackbox.errors import ConfigError
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.feed import Feed

Line = Literal["A", "B"]
LINES: Final[tuple[Line, Line]] = ("A", "B")


def with_line(feed: Feed, line: Line) -> Feed:
    """Return the feed with the endpoints of one line only.

    A line is known by its position. So line B stays second: the first is a private line A that no subscriber knows.

    Raises ConfigError unless every slice has two lines that are sockets.
    """
    number = LINES.index(line)
    slices = []
    beside = free_endpoints("ipc", feed.name, len(feed.slices), 1) if number else []
    for slice_id, part in enumerate(feed.slices):
        if len(part.sockets) != len(LINES):
            raise ConfigError(
                f"slice {slice_id} of feed {feed.name!r} had endpoints {list(part.endpoints)}, expected line A and "
                "line B on tcp or ipc"
            )
        endpoints = (*beside[slice_id], part.sockets[1]) if number else part.sockets[:1]
        bind = (*beside[slice_id], part.bound[1]) if number else part.bound[:1]
        interface = "" if number else part.interface  # a setting of subscribers, which excludes ipc
        slices.append(msgspec.structs.replace(part, endpoints=endpoints, bind=bind, interface=interface))
    return msgspec.structs.replace(feed, slices=tuple(slices))
