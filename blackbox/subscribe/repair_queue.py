"""What a slice thread asks of archives, compiled: a queue of requests to the thread that fetches missing messages."""

from __future__ import annotations

from typing import Final

from blackbox.native.intrinsics import inner
from blackbox.native.posix import poke
from blackbox.native.records import Field, SharedRecord, load_shared, record_at, store_shared

MOST_REQUESTS: Final = 1_024
"""Requests of a slice that may wait; further ones are made once there is room."""


class RepairQueue(SharedRecord):
    """How far the two threads are. Each writes the fields of its own cache line."""

    asked = Field(own_line=True)
    """Requests made."""
    taken = Field()
    """Of what was `sent`, how much the slice thread has taken."""
    requests = Field()
    """Address of the `RepairRequest`s, MOST_REQUESTS of them, used in a circle."""
    wake_fd = Field()
    """Where the thread that fetches is woken."""
    answered = Field(own_line=True)
    """Requests that are done: their messages came, or are known to be gone."""
    answers = Field()
    """1 while there is an archive that answers, as far as is known."""
    sent = Field()
    """Blocks, and notes of how far archives were asked, that were sent to the slice thread."""


class RepairRequest(SharedRecord):
    """Numbers of one key that are missing."""

    key = Field()
    """The number of the key."""
    epoch = Field()
    first = Field()
    stop = Field()
    """The number behind the last one."""


repair_queue_at = record_at(RepairQueue)
_request_at = record_at(RepairRequest)
_REQUEST_BYTES: Final = RepairRequest.dtype.itemsize


@inner
def ask_archive(queue_at: int, key: int, epoch: int, first: int, stop: int) -> bool:
    """Ask for missing messages; return whether there was room."""
    queue = repair_queue_at(queue_at)
    asked = queue.asked
    if asked - load_shared(queue, "answered") >= MOST_REQUESTS:
        return False
    request = _request_at(queue.requests + _REQUEST_BYTES * (asked % MOST_REQUESTS))
    request.key = key
    request.epoch = epoch
    request.first = first
    request.stop = stop
    store_shared(queue, "asked", asked + 1)
    poke(queue.wake_fd, queue_at)
    return True


@inner
def has_repairs(queue_at: int) -> bool:
    """Whether something was sent to the slice thread that it has not taken yet."""
    queue = repair_queue_at(queue_at)
    is_more: bool = load_shared(queue, "sent") != queue.taken
    return is_more
