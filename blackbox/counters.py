"""The counters of one slice of a subscriber: int64 words that one thread writes and any may read."""

from __future__ import annotations

from enum import IntEnum


class Count(IntEnum):
    """Places in a slice's counters. Unless said otherwise the unit is messages, written by the slice thread.

    *Deliveries* are messages times the callbacks that want them.
    """

    RECEIVED = 0
    BLOCKS = 1
    """Blocks received, control blocks not counted."""
    BODY_BYTES = 2
    MATCHED = 3
    DROPPED = 4
    """Deliveries given up by the slow-subscriber policy."""
    MALFORMED = 5
    """Blocks."""
    GAPS = 6
    DUPLICATES = 7
    STALE = 8
    """Of an epoch that had already been followed by another."""
    UNTRACKED = 9
    """Delivered, but of a key for which the sequence table had no room."""
    UNNUMBERED = 10
    """Blocks with a topic for which the topic table had no room."""
    EPOCHS = 11
    """Runs of the publisher seen."""
    HELD = 12
    """Blocks that wait for the other line now."""
    NEGATIVE_LAG = 13
    """Blocks that seemed to come from the future."""
    SMALLEST_LAG = 14
    """ns; below 0 it is how far the publisher's clock is ahead, at least."""
    SLOW = 15
    """Blocks whose lag was above the limit."""
    CONFLATED = 16
    """Deliveries replaced by that of a newer message of the same topic."""
    LAST_RECEIVED = 17
    """When the last valid frame came, ns since the epoch."""
    CONTROL = 18
    """Heartbeats and confirmations."""
    LAST_LAG = 19
    """ns, of the last block, as corrected."""
    WAITS = 20
    """Times the slice thread found a worker's queue full."""
    DUE = 21
    """Deliveries of what was matched."""
    FAULTS = 32
    """FAULTS + fault: malformed blocks by `Fault`."""
    SIZE = 64


class WorkerCount(IntEnum):
    """Places in a worker's counters, written by the worker."""

    DELIVERED = 0
    """Deliveries made."""
    BATCHES = 1
    BLOCKS = 2
    """Blocks taken off the queue."""
    SENT = 3
    """Blocks put into the queue; written by the slice thread."""
    ERRORS = 4
    """Callbacks that raised."""
    BUSY_SINCE = 5
    """When the callback that runs now was entered, ns; 0 between callbacks."""
    FAILED = 6
    """Deliveries on which the callback raised."""
    UNWANTED = 7
    """Deliveries not made: the callback had been removed."""
    SIZE = 8
