"""The memory of a slice thread: words shared with Python, scratch messages, and the addresses of all the rest."""

from __future__ import annotations

from typing import Final, NamedTuple

from blackbox.guards import HELD_BLOCKS, SequencesAt
from blackbox.layout import HEADER_BYTES
from blackbox.sink import SinkAt
from blackbox.topics import NumberingAt
from blackbox.zmqlib import EVENTS_SCRATCH_WORDS, MESSAGE_BYTES

# Why the loop returned to Python.
COMMAND: Final = 1
"""Python asked for the thread."""
CONTROL: Final = 2
"""A heartbeat or confirmation lies in the key, header and body messages."""
DRAINED: Final = 3
"""Stopping, and what was received has been handed to the workers."""
TERMINATED: Final = 4
FAILED: Final = 5
"""libzmq refused something; `words[ERRNO]` says what."""

# Words shared with Python, also across processes; a cache line apart where the loop reads what Python writes.
ASKED: Final = 0
"""Python wants the thread: 1."""
STOPPING: Final = 8
"""0, STOP or TERMINATE."""
DRAIN_LEFT: Final = 9
"""Blocks that may still be received after STOP: no more than ZeroMQ could hold."""
RELEASED: Final = 10
"""1 once no worker runs any more: a slice that was to die need not kill the process."""
TROUBLE: Final = 16
"""1 once the slow-subscriber policy has a say, written by the loop."""
TROUBLE_LAG: Final = 17
ERRNO: Final = 18
CONFIRMED_LINES: Final = 24
"""A bit for each line whose publisher has confirmed the filters of CONFIRMED_VERSION."""
CONFIRMED_VERSION: Final = 25
FINISHED_LINES: Final = 26
"""A bit for each line whose publisher has said that it ends."""
DONE: Final = 27
"""1 once the slice thread and its workers have ended."""
SUBSCRIPTIONS: Final = 28
READY: Final = 29
"""1 once everything is compiled and connected."""
LOOK_AGAIN_AT: Final = 30
"""When an idle loop goes back to Python, to look for lines that have fallen silent; ns since the epoch."""
WORDS_SHARED: Final = 32

STOP: Final = 1
TERMINATE: Final = 2

# Policies for a slow subscriber.
POLICY_TERMINATE: Final = 0
POLICY_CONFLATE: Final = 1
POLICY_DROP: Final = 2
POLICY_WARN: Final = 3

EXIT_SLOW: Final = 3
"""Status with which a process ends itself, and with which the command line ends, when its subscriber was too slow."""
IDLE_MS: Final = 100
HELD_MS: Final = 5

KEY_AT: Final = EVENTS_SCRATCH_WORDS * 8
HEADER_AT: Final = KEY_AT + MESSAGE_BYTES
BODY_AT: Final = HEADER_AT + MESSAGE_BYTES
ENVELOPE_AT: Final = BODY_AT + MESSAGE_BYTES
COPY_AT: Final = ENVELOPE_AT + MESSAGE_BYTES
NEWEST_AT: Final = COPY_AT + MESSAGE_BYTES
"""The body of a conflated block."""
MESSAGES: Final = 6
"""How many messages lie side by side from KEY_AT on."""
HEAD_AT: Final = KEY_AT + MESSAGES * MESSAGE_BYTES
"""The header of the block at hand, aligned."""
NEWEST_HEAD_AT: Final = HEAD_AT + HEADER_BYTES
SCRATCH_WORDS: Final = (NEWEST_HEAD_AT + HEADER_BYTES) // 8

HELD_MESSAGE_BYTES: Final = HEADER_BYTES + MESSAGE_BYTES


PARKED: Final = HELD_BLOCKS
"""The place, behind those of held blocks, of the block that waits while held ones are delivered."""


class ConflationAt(NamedTuple):
    """Where a `Conflation` lies, for compiled code."""

    starts: int
    rooms: int
    lengths: int
    ts_event: int
    topic_sizes: int
    pending: int
    stamp: int
    places: int
    order: int
    generation: int
    arena: int
    arena_bytes: int
    state: int


class SliceAt(NamedTuple):
    """What a slice thread owns, as addresses: references to arrays would be counted, atomically, at every call."""

    sub: int
    router: int
    wake_fd: int
    trouble_fd: int
    words: int
    scratch: int
    counters: int
    worker_counters: int
    workers: int
    topics: NumberingAt
    set_of_topic: int
    sequences: SequencesAt
    held_messages: int
    slice_id: int
    policy: int
    queue_blocks: int
    conflation: ConflationAt | None
    """None: the policy is another, and nothing of conflation is compiled."""
    max_lag_ns: int
    grace_ns: int
    sink: SinkAt


class TableAt(NamedTuple):
    """The version of the subscriber's wishes that is in force."""

    version: int
    set_workers: int
    set_counts: int
    """Scratch, int64[sets], zero between blocks."""
    callbacks_of_set: int
    """int64[1 + workers, sets]: how many callbacks a match set means, on all workers and on each."""
    sets: int
