"""What is known of each connection to a slice's XPUB sockets: who it is, what it has asked for, what it was refused."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from blackbox.block.format import CONFIRM_KEY, HEARTBEAT_KEY, NONCE_BYTES, PATH_KEY, SHARED_KEY, WANT_KEY

MOST_TOLD_REFUSALS: Final = 100
"""Refused prefixes that one answer tells."""
_MOST_ANSWERS: Final = 64
"""Confirmations sent to one connection that are forgotten with it."""
MOST_SHOWN_PEERS: Final = 100
"""Connections of which statistics tell one by one."""


class Why(IntEnum):
    """Why a prefix was refused; the numbers stand in the answer."""

    NO_RIGHT = 1
    """The key has no right to it."""
    TOO_MANY = 2
    """The connection has asked for as many as it may."""
    ON_DEMAND = 3
    """A function of `on_demand` refused it."""


class Peer:
    """One connection: `key` is its public key, `name` that key's file; both are empty in the clear.

    `connection` and `cookie` tell it from others that have its descriptor. `may`: prefixes that it may ask for; None:
    all. `late`: changes that came behind a message that was none, to be taken in with its next one. `refused`: prefixes
    that it asks for and that are not in force.
    """

    __slots__ = (
        "acceptances",
        "address",
        "answers",
        "connection",
        "cookie",
        "fd",
        "filters",
        "key",
        "late",
        "late_since",
        "line",
        "may",
        "name",
        "newest",
        "nonces",
        "refusals",
        "refused",
        "since_ns",
        "useless",
        "wants",
    )

    def __init__(
        self,
        line: int,
        fd: int,
        connection: int = 0,
        cookie: int = 0,
        address: str = "",
        key: str = "",
        name: str = "",
        may: tuple[bytes, ...] | None = None,
    ) -> None:
        self.line, self.fd, self.connection, self.cookie = line, fd, connection, cookie
        self.address, self.key, self.name, self.may = address, key, name, may
        self.filters: set[bytes] = set()
        self.acceptances: set[bytes] = set()
        self.refused: dict[bytes, Why] = {}
        self.late: list[tuple[bytes, int]] = []
        self.late_since = 0.0
        self.nonces: set[bytes] = set()
        """Confirmations that it has asked for and not withdrawn: libzmq keeps them."""
        self.newest: tuple[int, bytes] | None = None
        """The confirmation that it asked for last."""
        self.answers: deque[tuple[int, bytes]] = deque(maxlen=_MOST_ANSWERS)
        """Those that were sent to it."""
        self.refusals = self.useless = self.wants = 0
        self.since_ns = time.time_ns()

    @property
    def called(self) -> str:
        """Who it is, for the log."""
        return f"key {self.name or self.key!r} at {self.address}" if self.key else self.address

    def why_refused(self, prefix: bytes, most: int) -> Why | None:
        """Say why what it asks for is not put in force; None: it may have it."""
        topics = topics_of(prefix)
        if topics is None:
            return None
        if self.may is not None and not topics.startswith(self.may):
            return Why.NO_RIGHT
        return Why.TOO_MANY if len(self.filters) >= most and prefix not in self.filters else None

    def refuse(self, prefix: bytes, why: Why) -> None:
        """Note what it is refused."""
        self.refusals += 1
        self.refused[prefix] = why


def topics_of(prefix: bytes) -> bytes | None:
    """Return the prefix of topics that a filter asks for, in whatever way; None: it is for control blocks."""
    if prefix[:1] != b"\0":
        return prefix
    return prefix[len(WANT_KEY) :] if prefix.startswith((WANT_KEY, SHARED_KEY)) else None


def is_put_in_force(prefix: bytes) -> bool:
    """Whether libzmq is to match a filter: something is sent under it."""
    return (
        prefix[:1] != b"\0"
        or prefix in (HEARTBEAT_KEY, PATH_KEY)
        or (prefix.startswith(CONFIRM_KEY) and len(prefix) == len(CONFIRM_KEY) + NONCE_BYTES)
    )


class PeerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One connection to a publisher or a relay, from its first subscription on."""

    slice_id: int
    line: str
    """A or B."""
    address: str
    """host:port; empty: not over tcp."""
    key: str
    """The name of its key's file in `allowed_keys`; empty: in the clear."""
    since_ns: int
    """When it first asked for something, ns since 1970."""
    subscriptions: int
    """Filters that it has in force, what it wants among them."""
    refused: int
    """How often it asked for what it may not have, or for more than it may."""
    taken_bytes: int = 0
    """That its host has acknowledged, as of the last look, some 0.25 s ago. 0 where it is not known: not over tcp."""
    unsent_bytes: int = 0
    """That wait in the system because the peer takes no more; besides up to `hwm_blocks` blocks in libzmq."""
    behind_s: float = 0.0
    """For how long something has waited for it while it took next to nothing."""


class Peers(NamedTuple):
    """Those with most subscriptions, and what all of them have together."""

    shown: tuple[PeerStatistics, ...]
    others: int
    """How many are not among `shown`."""
    subscriptions: int
    """Of all of them."""


def most_of(peers: Iterable[PeerStatistics]) -> Peers:
    """Return the MOST_SHOWN_PEERS that have most subscriptions, or have asked most often in vain."""
    every = sorted(peers, key=lambda peer: (peer.subscriptions, peer.refused), reverse=True)
    shown = tuple(every[:MOST_SHOWN_PEERS])
    return Peers(shown, len(every) - len(shown), sum(peer.subscriptions for peer in every))
