"""The status of one part of a process, as `GET /status` returns it and tools read it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from blackbox.block.position import Number
from blackbox.documents import Decoder

MOST_STATUS_BYTES: Final = 16 << 20
"""Largest answer of `/status` that a reader should accept."""


class SliceDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of a publisher, subscriber or relay."""

    slice_id: int
    epoch: int = 0
    """Epoch sent, received or forwarded; 0: none yet."""
    sequence: int = 0
    """Sequence of the next message in that epoch; 0 if unknown."""
    silence_s: float = 0.0
    """Seconds since the last message or heartbeat of a publisher."""
    reason: str = ""
    """Why the slice is not ready; empty: it is."""
    addresses: tuple[str, ...] = ()
    """Its own addresses of the connections to its publishers, HOST:PORT, by which these list it as a peer."""


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one part of a process, such as a publisher, at one moment."""

    role: str
    """publisher, subscriber, recorder, archive, relay, hub, bridge, replay or source."""
    feed: str
    """Name of the feed."""
    host: str
    pid: int
    version: str
    """Version of blackbox."""
    started_ns: Number
    """When serving began, ns since 1970."""
    now_ns: Number
    """Time of this status, ns since 1970."""
    ready: bool
    """True if it does its work now; else `reasons` say why not."""
    healthy: bool
    """False if it has failed or makes no progress; the first of `reasons` say why."""
    since_ns: Number = 0
    """When `ready` and `healthy` became as they are, ns since 1970; 0: not known."""
    reasons: tuple[str, ...] = ()
    """Sentences about what is wrong, or what it waits for."""
    statistics: dict[str, Any] = {}
    """Fields of its statistics object, as builtin types."""
    more: tuple[dict[str, Any], ...] = ()
    """Further statistics: those of a recorder's archive or a bridge's subscriber."""
    slices: tuple[SliceDetail, ...] = ()


_STATUSES: Final = Decoder[tuple[ProcessStatus, ...]]("json", tuple[ProcessStatus, ...], MOST_STATUS_BYTES)


def decode_statuses(answer: bytes) -> tuple[ProcessStatus, ...]:
    """Return the statuses in an answer of `/status`. Raises msgspec.DecodeError if it is not one."""
    return _STATUSES.decode(answer)
