"""State of each connection to a slice's XPUB sockets: identity, subscriptions, refusals."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from blackbox.block.form.format import CONFIRM_KEY, HEARTBEAT_KEY, NONCE_BYTES, PATH_KEY, SHARED_KEY, TAP_KEY, WANT_KEY
from blackbox.publish.listeners.dropped_estimate import Certainty

MOST_TOLD_REFUSALS: Final = 100
"""Most refused prefixes in one answer."""
_MOST_ANSWERS: Final = 64
"""Confirmations of a connection that are withdrawn when it disconnects."""
MOST_SHOWN_PEERS: Final = 100
"""Connections listed individually in the statistics."""

Place = tuple[int, bytes]
"""A line, and a filter on it."""


class Why(IntEnum):
    """Reason for refusing a prefix. The values are part of the wire format."""

    NO_RIGHT = 1
    """The key has no right to the prefix."""
    TOO_MANY = 2
    """The connection has reached its limit."""
    ON_DEMAND = 3
    """An `on_demand` function refused the prefix."""


class Identity(NamedTuple):
    """A connection and its owner. `connection` and `cookie` distinguish it from others that used its descriptor."""

    line: int
    fd: int
    connection: int = 0
    """Address of libzmq's metadata of the connection."""
    cookie: int = 0
    address: str = ""
    key: str = ""
    """Its public key; empty: in the clear."""
    name: str = ""
    """The file of that key."""
    may: tuple[bytes, ...] | None = None
    """Prefixes that it may subscribe to; None: all."""

    @property
    def called(self) -> str:
        """Name of the peer for the log."""
        return f"key {self.name or self.key!r} at {self.address}" if self.key else self.address


class Peer:
    """One connection: its filters, its confirmations and what it was refused."""

    def __init__(self, identity: Identity) -> None:
        self.identity, self.line, self.fd = identity, identity.line, identity.fd
        self.filters: set[bytes] = set()
        self.acceptances: set[bytes] = set()
        self.refused: dict[bytes, Why] = {}
        """Prefixes that it requests and that are not in force."""
        self.late: list[tuple[bytes, int]] = []
        """Changes that followed an invalid message, to be applied with the next message."""
        self.late_since = 0.0
        self.nonces: set[bytes] = set()
        """Confirmations requested and not withdrawn: libzmq keeps them."""
        self.newest: Place | None = None
        """The confirmation requested last."""
        self.answers: deque[Place] = deque(maxlen=_MOST_ANSWERS)
        """Confirmations sent to it."""
        self.refusals = self.useless = self.wants = self.lost_messages = 0
        self.since_ns = time.time_ns()

    @property
    def is_tap(self) -> bool:
        """True if nothing may wait for it."""
        return TAP_KEY in self.filters

    def why_refused(self, prefix: bytes, most: int) -> Why | None:
        """Return why a prefix is refused; None: it is allowed."""
        topics = topics_of(prefix)
        if topics is None:
            return None
        if self.identity.may is not None and not topics.startswith(self.identity.may):
            return Why.NO_RIGHT
        return Why.TOO_MANY if len(self.filters) >= most and prefix not in self.filters else None

    def refuse(self, prefix: bytes, why: Why) -> None:
        """Record that a prefix was refused."""
        self.refusals += 1
        self.refused[prefix] = why


def topics_of(prefix: bytes) -> bytes | None:
    """Return the topic prefix of a filter of any kind; None: it is for control blocks."""
    if prefix[:1] != b"\0":
        return prefix
    return prefix[len(WANT_KEY) :] if prefix.startswith((WANT_KEY, SHARED_KEY)) else None


def is_put_in_force(prefix: bytes) -> bool:
    """Return True if libzmq must match the filter because something is sent under it."""
    return (
        prefix[:1] != b"\0"
        or prefix in (HEARTBEAT_KEY, PATH_KEY)
        or (prefix.startswith(CONFIRM_KEY) and len(prefix) == len(CONFIRM_KEY) + NONCE_BYTES)
    )


class PeerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One connection to a publisher or a relay, starting with its first subscription."""

    slice_id: int
    line: str
    """A or B."""
    address: str
    """host:port; empty: not over tcp."""
    key: str
    """File name of its key in `allowed_keys`; empty: in the clear."""
    since_ns: int
    """When it first subscribed, ns since 1970."""
    subscriptions: int
    """Filters that it has in force, including prefixes it wants."""
    refused: int
    """Number of its subscriptions refused for lack of rights or for a limit."""
    taken_bytes: int = 0
    """Bytes that its host has acknowledged, up to 0.25 s ago. 0 if unknown: not over tcp."""
    unsent_bytes: int = 0
    """Bytes waiting in the kernel because the peer reads too slowly. Up to `hwm_blocks` blocks in libzmq come on top.
    """
    behind_s: float = 0.0
    """Time for which data has waited for it while it took next to nothing."""
    age_s: float = 0.0
    """Time since the oldest data that its host has not acknowledged was handed to the kernel, up to 0.25 s ago."""
    dropped_blocks: int = 0
    """Blocks dropped for it by libzmq since it first had taken everything, estimated. `how_sure` names the certainty.
    """
    how_sure: Certainty = Certainty.UNKNOWN
    """Certainty of `dropped_blocks`."""
    lost_messages: int = 0
    """Messages of the slice that it reports as lost: exact, but also those lost before this hop, or by the peer itself.
    0 for a peer that reports none: a plain SUB socket, a relay, or one without loss.
    """
    is_tap: bool = False
    """True if it is a tap: it is disconnected before anything waits for it."""


class Peers(NamedTuple):
    """The connections with most subscriptions, and totals over all."""

    shown: tuple[PeerStatistics, ...]
    others: int
    """Number of connections not in `shown`."""
    subscriptions: int
    """Subscriptions of all connections."""


def most_of(peers: Iterable[PeerStatistics]) -> Peers:
    """Return the MOST_SHOWN_PEERS connections with most subscriptions or refusals."""
    every = sorted(peers, key=lambda peer: (peer.subscriptions, peer.refused), reverse=True)
    shown = tuple(every[:MOST_SHOWN_PEERS])
    return Peers(shown, len(every) - len(shown), sum(peer.subscriptions for peer in every))
