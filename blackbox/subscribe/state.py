"""What a slice thread, its workers and their owner share: where each is in its life, and what it has counted."""

from __future__ import annotations

from typing import Final

from blackbox.life import Life
from blackbox.native.records import Field, Fields, SharedRecord, record_at

# Why the loop returned to Python.
COMMAND: Final = 1
"""Python asked for the thread."""
CONTROL: Final = 2
"""A heartbeat or confirmation lies in the key, header and body messages."""
DRAINED: Final = 3
"""Stopping, and what was received has been handed to the workers."""
TERMINATED: Final = 4
FAILED: Final = 5
"""libzmq refused something; `errno` of the slice's state says what."""

STOP: Final = 1
TERMINATE: Final = 2


class SliceLife(Life):
    """Where a slice thread is in its life."""

    NEW = "new", "opening"
    """Its thread has not begun. OPENING follows."""
    OPENING = "opening", "running", "closing"
    """It starts workers, compiles, connects. Then it is RUNNING; CLOSING if that fails."""
    RUNNING = "running", "closing"
    """It receives. CLOSING when it was told to stop or terminate, or by an error."""
    CLOSING = "closing", "ended"
    """It waits for its workers, and closes what it has opened. ENDED follows."""
    ENDED = "ended"
    """Its workers have ended too. Nothing follows."""


LIVES: Final = tuple(SliceLife)
"""By their numbers in shared memory."""


class SliceState(SharedRecord):
    """What a slice thread and its owner tell each other, also across processes.

    What the loop reads and others write has a cache line of its own.
    """

    asked = Field(own_line=True)
    """Python wants the thread: 1."""
    stopping = Field(own_line=True)
    """0, STOP or TERMINATE: what the owner has asked for."""
    drain_left = Field()
    """Blocks that may still be received after STOP: no more than ZeroMQ could hold."""
    released = Field()
    """1 once no worker runs any more: a slice thread that was to end the process need not do so."""
    alert = Field(own_line=True)
    """1 once the slow-subscriber policy has applied; written by the loop."""
    alert_lag_ns = Field()
    alert_age_ns = Field()
    acts_from_ns = Field()
    """Monotonic time from which on the slow-subscriber policy acts."""
    errno = Field()
    gap_epoch = Field()
    """Of the messages whose loss ends the subscriber; `gap_count` is 0 as long as there are none."""
    gap_sequence = Field()
    gap_count = Field()
    gap_key = Field()
    """The number of their key."""
    gap_is_upper_bound = Field()
    """1: `gap_count` is an upper bound."""
    accepted_epoch = Field()
    accepted_sequence = Field()
    """Losses up to this position do not end the subscriber."""
    life = Field(own_line=True)
    """Its place in `LIVES`."""
    confirmed_lines = Field()
    """A bit for each line whose publisher has confirmed the filters of `confirmed_version`."""
    confirmed_version = Field()
    finished_lines = Field()
    """A bit for each line whose publisher has said that it ends."""
    finished_ns = Field()
    """When a publisher last said so, by the monotonic clock."""
    subscriptions = Field()
    look_again_at_ns = Field()
    """When an idle loop goes back to Python, to look for lines that have fallen silent; by the monotonic clock."""
    largest_body = Field()
    """Bytes of the largest body that has come."""
    reads = Field()
    """Times the loop has looked for a block. It does not while it waits for a worker."""
    excused_ns = Field()
    """How much of this block's lag does not count: it passed while archives were asked."""
    look_at_held_ns = Field()
    """When all blocks that wait for the other line are looked at again; by the monotonic clock."""
    is_shared = Field()
    """1 when blocks came last from the publisher's shared memory."""
    other_key_rule = Field()
    """The key rule, plus 1, of the last block that was refused because of it; 0: none was."""
    other_version = Field()
    """The version, plus 1, of the last block that was refused because of it; 0: none was."""
    wants_clean = Field()
    """1: the loop goes back to Python once nothing was delivered behind `OrderState.proven`."""
    other_slice = Field()
    """The slice, plus 1, of the last block that was refused because of it; 0: none was."""


class SliceCounters(SharedRecord):
    """What a slice thread counts. Unless said otherwise the unit is messages.

    *Deliveries* are messages times the callbacks that want them.
    """

    received = Field()
    blocks = Field()
    """Blocks received, control blocks not counted."""
    body_bytes = Field()
    matched = Field()
    dropped = Field()
    """Deliveries given up by the slow-subscriber policy."""
    malformed = Field()
    """Blocks."""
    gaps = Field()
    repaired = Field()
    """Brought by archives."""
    let_go = Field()
    """Live, but not delivered: the slice was still catching up, and archives brought them."""
    duplicates = Field()
    stale = Field()
    """Of an epoch that had already been followed by another."""
    implausible = Field()
    """In blocks that were not believed: see `epochs` and `gaps`."""
    implausible_control = Field()
    """Heartbeats, or numbers in them, that were not believed."""
    untracked = Field()
    """Delivered, but of a key for which the key table had no room."""
    unnumbered = Field()
    """Blocks with a topic for which the topic table had no room."""
    epochs = Field()
    """Runs of the publisher seen."""
    held = Field()
    """Blocks that wait for the other line now."""
    negative_lag = Field()
    """Blocks that seemed to come from the future."""
    clock_offset_ns = Field()
    """Taken off every lag. Below 0 it is how far the publisher's clock is ahead, at least."""
    clock_steps = Field()
    """Times a clock was stepped, the publisher's or this host's."""
    slow = Field()
    """Blocks whose lag was above the limit."""
    conflated = Field()
    """Deliveries replaced by that of a newer message of the same topic."""
    last_received_ns = Field()
    """When the last valid frame came, ns since the epoch."""
    control = Field()
    """Heartbeats and confirmations."""
    ended_connections = Field()
    """Connections ended because bytes came on them without end, but no block."""
    last_lag_ns = Field()
    """Of the last block, as corrected."""
    waits = Field()
    """Times the slice thread found a worker's queue full."""
    due = Field()
    """Deliveries of what was matched."""
    faults = Fields(32)
    """Malformed blocks, by `Fault`."""


class WorkerCounters(SharedRecord):
    """What a worker counts, in a cache line of its own."""

    delivered = Field(own_line=True)
    """Deliveries made."""
    batches = Field()
    blocks = Field()
    """Blocks taken off the queue."""
    sent = Field()
    """Blocks put into the queue; written by the slice thread."""
    errors = Field()
    """Callbacks that raised."""
    busy_since_ns = Field()
    """When the callback that runs now was entered, by the monotonic clock; 0 between callbacks."""
    has_more = Field()
    """Not 0: blocks that were taken off the queue wait behind the one that is delivered."""
    failed = Field()
    """Deliveries on which the callback raised, or that were skipped: `misfits`."""
    misfits = Field()
    """Messages that were no record of the schema, for callbacks that get fields."""
    unwanted = Field()
    """Deliveries not made: the callback had been removed."""
    untold = Field()
    """Messages of blocks that it did not get, since it was last told; written by the slice thread."""


WORKER_COUNTERS_BYTES: Final = WorkerCounters.dtype.itemsize
slice_state_at = record_at(SliceState)
slice_counters_at = record_at(SliceCounters)
worker_counters_at = record_at(WorkerCounters)

IDLE_MS: Final = 100
"""How long an idle thread sleeps at most before it looks again."""
HELD_MS: Final = 5
"""The same, of a slice thread in which blocks wait."""
