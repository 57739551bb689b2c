"""Open the multicast lines of a slice as its feed says: to send to them, or to receive from them."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence

from blackbox.feed.endpoint import groups_of
from blackbox.feed.feed import Feed
from blackbox.native.system.limits import Needs, require_linux
from blackbox.transport.security.group_key import group_key_of
from blackbox.transport.udp.assembler import DatagramCounts
from blackbox.transport.udp.receiver import NO_LINES, LinesAt, MulticastLines
from blackbox.transport.udp.sender import Caster
from blackbox.transport.udp.sockets import change_group, open_receiver, open_sender

CASTER_NEEDS = Needs(descriptors=3)
"""Two sockets, and one that briefly looks for the route."""
RECEIVER_NEEDS = Needs(descriptors=3)
"""Two sockets, and what polls both."""


def open_caster(feed: Feed, slice_id: int, what: str) -> Caster | None:
    """Return the sender of a slice's multicast lines, if it has any.

    Raises EndpointError naming `what`, and ConfigError naming a faulty group key or another system than Linux.
    """
    part, sockets = feed.slices[slice_id], list[socket.socket]()
    if not part.multicast:
        return None
    require_linux(f"{what}: multicast lines")
    key = group_key_of(feed, part.multicast[0])
    try:
        for endpoint in part.multicast:
            sockets.append(open_sender(groups_of(endpoint, 1)[0], part.interface, feed.udp_ttl, what))
        return Caster(feed, slice_id, sockets, key)
    except BaseException:
        for each in sockets:
            each.close()
        raise


class Multicast:
    """Receiving side of the multicast lines of a slice, if it has any. Used by the slice thread.

    It joins the group of each endpoint; with channels, also those of the channels that its filters need.
    """

    def __init__(self, feed: Feed, slice_id: int) -> None:
        self._feed, self._part, self._slice_id = feed, feed.slices[slice_id], slice_id
        self._what = f"feed {feed.name!r} slice {slice_id}"
        self._sockets: list[socket.socket] = []
        self._lines: MulticastLines | None = None
        self._joined: set[int] = set()
        """Channels joined, by their keys."""

    @property
    def at(self) -> LinesAt:
        """The lines for compiled code."""
        return NO_LINES if self._lines is None else self._lines.at

    def open(self, counts: Sequence[DatagramCounts]) -> None:
        """Join. `counts`: one for each line. Raises as `open_caster`."""
        part, has_channels = self._part, self._feed.channels > 1
        if not part.multicast:
            return
        require_linux(f"{self._what}: multicast lines")
        key = group_key_of(self._feed, part.multicast[0])
        for endpoint in part.multicast:
            group = groups_of(endpoint, 1)[0]
            self._sockets.append(open_receiver(group, part.interface, self._what, joins_more=has_channels))
        self._lines = MulticastLines(self._slice_id, self._sockets, counts, key)

    def need(self, filters: Collection[bytes]) -> None:
        """Be in the groups of the channels with these keys; b"": all channels. Raises EndpointError."""
        channels = self._feed.channels
        if channels == 1 or not self._sockets:
            return
        wanted = set(range(1, channels + 1)) if b"" in filters else {each[0] for each in filters}
        for receiver, endpoint in zip(self._sockets, self._part.multicast, strict=True):
            groups = groups_of(endpoint, channels)
            for channel in sorted(wanted ^ self._joined):
                leaves = channel in self._joined
                change_group(receiver, groups[channel], self._part.interface, self._what, leaves=leaves)
        self._joined = wanted

    def close(self) -> None:
        """Leave all groups."""
        if self._lines is not None:
            self._lines.close()
        for each in self._sockets:
            each.close()
