"""What those below a relay have asked for on each line, and what of that goes up."""

from __future__ import annotations

from collections.abc import Sequence

from blackbox.block.acknowledgement import Acknowledgement
from blackbox.block.format import PATH_KEY
from blackbox.feed.feed import Feed
from blackbox.publish.subscriptions import MORE_FILTERS, Place, Subscriptions
from blackbox.relay.upstream import Upstream


class Below(Subscriptions):
    """The subscriptions below a relay's slice. Filters of data go up as each line's `Upstream` decides.

    What recorders tell goes up as it is. Acceptances stay here: those below are this relay's subscribers, and it is one
    of its source's. So do filters of readers of shared memory: there is none here, and they ask again for sockets.

    `wants_path` is set when somebody has asked how this relay is reached.
    """

    def __init__(self, feed: Feed, upstreams: Sequence[Upstream]) -> None:
        most_keys = feed.max_topics if feed.key_bytes else 1
        super().__init__(feed, len(upstreams), most_keys + MORE_FILTERS, _PassedUp(upstreams))
        self.wants_path = False
        self._upstreams = upstreams

    def filter_changed(self, place: Place, by: int) -> None:
        """Ask for more above, or for less."""
        line, prefix = place
        if prefix == PATH_KEY:
            self.wants_path |= by > 0
        elif prefix[:1] == b"\0":
            return
        elif by > 0:
            self._upstreams[line].want(prefix)
        else:
            self._upstreams[line].leave(prefix)


class _PassedUp:
    """Passes on what recorders tell."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = upstreams

    def begin_epoch(self, epoch: int) -> None:
        """Leave it to recorders to withdraw what they told of another epoch."""

    def note(self, line: int, said: bytes, _what: Acknowledgement) -> None:
        """Pass on how far a recorder is."""
        self._upstreams[line].tell_recorded(said)

    def withdraw(self, line: int, said: bytes) -> None:
        """Pass on that this stands no more."""
        self._upstreams[line].withdraw_recorded(said)
