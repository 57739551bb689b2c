"""State shared by a slice thread, its workers and their owner: life and counters."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from blackbox.life import Life
from blackbox.native.memory.records import Field, Fields, SharedRecord, record_at


class Reason(IntEnum):
    """Reason for the loop to return to Python; 0: it goes on."""

    COMMAND = 1
    """Python asked for the thread."""
    CONTROL = 2
    """A heartbeat or confirmation is in the key, header and body messages."""
    DRAINED = 3
    """Stopping, and everything received was passed to the workers."""
    TERMINATED = 4
    FAILED = 5
    """libzmq returned an error; see `errno` of the slice's state."""


class Stopping(IntEnum):
    """Request of the owner; 0: none."""

    STOP = 1
    """Deliver what was received, then end."""
    TERMINATE = 2
    """End now; queued messages are lost."""


class SliceLife(Life):
    """Stages in the life of a slice thread."""

    NEW = "new", "opening"
    """Not started. OPENING follows."""
    OPENING = "opening", "running", "closing"
    """It starts workers, compiles, connects. RUNNING after that; CLOSING if it fails."""
    RUNNING = "running", "closing"
    """It receives. CLOSING when it is stopped or terminated, or after an error."""
    CLOSING = "closing", "ended"
    """It waits for its workers and closes everything. ENDED follows."""
    ENDED = "ended"
    """Its workers have ended too. The last stage."""


LIVES: Final = tuple(SliceLife)
"""By their index in shared memory."""


class SliceState(SharedRecord):
    """Fields for communication between a slice thread and its owner, also across processes.

    A field that the loop reads and others write has its own cache line.
    """

    asked = Field(own_line=True)
    """1: Python has a command for the thread."""
    stopping = Field(own_line=True)
    """A `Stopping`, or 0."""
    drain_left = Field()
    """Blocks still to receive after STOP, at most what ZeroMQ could have queued."""
    released = Field()
    """1 once all workers have ended: the slice thread need not exit the process."""
    alert = Field(own_line=True)
    """1 once the slow-subscriber policy has applied; written by the loop."""
    alert_lag_ns = Field()
    alert_age_ns = Field()
    acts_from_ns = Field()
    """Monotonic time from which the slow-subscriber policy acts."""
    errno = Field()
    gap_epoch = Field()
    """Epoch of the messages whose loss ends the subscriber; valid if `gap_count` is not 0."""
    gap_sequence = Field()
    gap_count = Field()
    gap_stop = Field()
    """Sequence after the last of them."""
    gap_key = Field()
    """Number of their key."""
    gap_is_upper_bound = Field()
    """1: `gap_count` is an upper bound."""
    accepted_epoch = Field()
    accepted_sequence = Field()
    """Losses up to this position do not end the subscriber."""
    life = Field(own_line=True)
    """Index in `LIVES`."""
    confirmed_lines = Field()
    """A bit for each line whose publisher has confirmed the filters of `confirmed_version`."""
    confirmed_version = Field()
    newest_version = Field()
    """Version of the newest match table; written by the owner."""
    finished_lines = Field()
    """A bit for each line whose publisher has ended."""
    finished_ns = Field()
    """Time when a publisher last ended, by the monotonic clock."""
    subscriptions = Field()
    look_again_at_ns = Field()
    """When an idle loop returns to Python to check for silent lines; by the monotonic clock."""
    largest_body = Field()
    """Size of the largest body received."""
    reads = Field()
    """Times that the loop has looked for a block, which it does not while it waits for a worker."""
    idle_ns = Field()
    """When the loop last found no message waiting, by the monotonic clock."""
    excused_ns = Field()
    """Part of this block's lag that does not count: time spent reading archives."""
    look_at_held_ns = Field()
    """When all held blocks are checked again; by the monotonic clock."""
    is_shared = Field()
    """1 if the last blocks came from the publisher's shared memory."""
    other_key_rule = Field()
    """Key rule, plus 1, of the last block rejected because of it; 0: none."""
    other_version = Field()
    """Version, plus 1, of the last block rejected because of it; 0: none."""
    wants_clean = Field()
    """1: the loop returns to Python once no message after `OrderState.proven` was delivered."""
    other_slice = Field()
    """Slice, plus 1, of the last block rejected because of it; 0: none."""


class SliceCounters(SharedRecord):
    """Counters of a slice thread, in messages unless stated otherwise.

    *Deliveries* are messages times their callbacks.
    """

    received = Field()
    blocks = Field()
    """Blocks received, without control blocks."""
    body_bytes = Field()
    matched = Field()
    dropped = Field()
    """Deliveries dropped by the slow-subscriber policy."""
    malformed = Field()
    """Invalid blocks."""
    gaps = Field()
    repaired = Field()
    """Messages from archives."""
    let_go = Field()
    """Live messages not delivered because the slice was catching up; archives delivered them."""
    duplicates = Field()
    stale = Field()
    """Messages of an earlier epoch."""
    implausible = Field()
    """Messages in implausible blocks: see `epochs` and `order`."""
    implausible_control = Field()
    """Implausible heartbeats, or sequences in them."""
    untracked = Field()
    """Delivered messages of keys without room in the key table."""
    unnumbered = Field()
    """Blocks with a topic without room in the topic table."""
    epochs = Field()
    """Epochs of the publisher seen."""
    held = Field()
    """Blocks held now for the other line."""
    negative_lag = Field()
    """Blocks with a send time in the future."""
    clock_offset_ns = Field()
    """Subtracted from every lag. Negative: the publisher's clock is ahead by at least this."""
    clock_steps = Field()
    """Steps of the publisher's or this host's clock."""
    slow = Field()
    """Blocks with a lag above the limit."""
    conflated = Field()
    """Deliveries replaced by a newer message of the same topic."""
    last_received_ns = Field()
    """Time of the last valid frame, ns since the epoch."""
    control = Field()
    """Heartbeats and confirmations."""
    ended_connections = Field()
    """Connections closed because they carried bytes without end but no block."""
    last_lag_ns = Field()
    """Corrected lag of the last block."""
    last_age_ns = Field()
    """Corrected age of the last block; 0: unknown."""
    waits = Field()
    """Times that the slice thread found a worker's queue full."""
    due = Field()
    """Deliveries of matched messages."""
    faults = Fields(32)
    """Malformed blocks by `Fault`."""


class WorkerCounters(SharedRecord):
    """Counters of a worker, in its own cache line."""

    delivered = Field(own_line=True)
    """Deliveries made."""
    batches = Field()
    blocks = Field()
    """Blocks taken from the queue."""
    sent = Field()
    """Blocks put into the queue; written by the slice thread."""
    errors = Field()
    """Callbacks that raised."""
    busy_since_ns = Field()
    """Start of the running callback by the monotonic clock; 0 between callbacks."""
    has_more = Field()
    """Not 0: further blocks taken from the queue wait after the current one."""
    failed = Field()
    """Deliveries for which the callback raised, or that were skipped: `misfits`."""
    misfits = Field()
    """Messages that do not match the schema, for callbacks with fields."""
    unwanted = Field()
    """Deliveries skipped because the callback was removed."""
    untold = Field()
    """Messages of dropped blocks since its last notice; written by the slice thread."""


WORKER_COUNTERS_BYTES: Final = WorkerCounters.dtype.itemsize
slice_state_at = record_at(SliceState)
slice_counters_at = record_at(SliceCounters)
worker_counters_at = record_at(WorkerCounters)

IDLE_MS: Final = 100
"""Longest sleep of an idle thread before it checks again."""
HELD_MS: Final = 5
"""The same for a slice thread with held blocks."""
