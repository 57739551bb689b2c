"""Unique inproc endpoints; detect that one was bound again by a new socket.

libzmq has no events for inproc and does not reconnect. Reconnecting after mere silence would lose the messages of a
slow peer.
"""

from __future__ import annotations

import threading
from collections import Counter
from itertools import count

_bound: Counter[str] = Counter()
_lock = threading.Lock()
_numbers = count()


def new_endpoint(what: str) -> str:
    """Return an endpoint that nothing else has: a closed socket or monitor keeps its own for some time."""
    return f"inproc://blackbox-{what}-{next(_numbers)}"


def is_inproc(address: str) -> bool:
    """Return True if an address is inproc."""
    return address.startswith("inproc:")


def note_bound(endpoint: str) -> None:
    """Note that an endpoint was bound, if it is inproc."""
    if is_inproc(endpoint):
        with _lock:
            _bound[endpoint] += 1


def bound_number(address: str) -> int:
    """Return how often an address was bound, at least 1. Call it before connecting."""
    return max(1, _bound[address])


def is_bound_anew(address: str, number: int) -> bool:
    """Return True if `number` is not the latest bind of the address."""
    return _bound[address] != number
