"""Which of those that bound an inproc endpoint one after the other a connection leads to.

libzmq has no events for inproc, and connects nobody again. To connect anew on mere silence would lose what a slow one
sends meanwhile.
"""

from __future__ import annotations

import threading
from collections import Counter

_bound: Counter[str] = Counter()
_lock = threading.Lock()


def is_inproc(address: str) -> bool:
    """Whether an address is one of this process."""
    return address.startswith("inproc:")


def note_bound(endpoint: str) -> None:
    """Note that an endpoint was bound, if it is one of this process."""
    if is_inproc(endpoint):
        with _lock:
            _bound[endpoint] += 1


def bound_number(address: str) -> int:
    """Return the number of who has bound it, or of the first who will. Ask before you connect."""
    return max(1, _bound[address])


def is_bound_anew(address: str, number: int) -> bool:
    """Whether another than that one has bound it, or one that does not note it."""
    return _bound[address] != number
