"""A feed of one slice, and messages with an old send time."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from blackbox import Feed
from blackbox.testing import RawPublisher

SECOND_NS = 10**9
LIMIT_NS = 100 * SECOND_NS
"""Default lag limit in these tests: more than a busy machine ever takes."""
LATE_NS = 5 * LIMIT_NS


def one_slice(**settings: Any) -> Feed:
    return msgspec.structs.replace(Feed.local("slow", slices=1), **{"max_lag_ns": LIMIT_NS} | settings)


def late(publisher: RawPublisher, text: bytes, lag_ns: int = LATE_NS, topic: bytes = b"T") -> None:
    """Send a message stamped as sent `lag_ns` ago."""
    publisher.send(publisher.encode([(topic, text)], ts_out=time.time_ns() - lag_ns))
