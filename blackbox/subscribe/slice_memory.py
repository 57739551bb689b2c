"""Where the memory of a slice thread lies: its scratch messages, and the addresses of all that its loop uses.

Plain addresses: references to arrays would be counted, atomically, at every call.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from blackbox.block.block_handler import BlockHandlerAt
from blackbox.block.format import HEADER_BYTES
from blackbox.native.name_table import NumberingAt
from blackbox.subscribe.order_state import HELD_BLOCKS, OrderAt
from blackbox.subscribe.worker_state import WorkerAt, WorkerTableAt
from blackbox.transport.libzmq import EVENTS_SCRATCH_WORDS, MESSAGE_BYTES
from blackbox.transport.shared_memory_reader import ReaderAt

KEY_AT: Final = EVENTS_SCRATCH_WORDS * 8
HEADER_AT: Final = KEY_AT + MESSAGE_BYTES
BODY_AT: Final = HEADER_AT + MESSAGE_BYTES
ENVELOPE_AT: Final = BODY_AT + MESSAGE_BYTES
COPY_AT: Final = ENVELOPE_AT + MESSAGE_BYTES
NEWEST_AT: Final = COPY_AT + MESSAGE_BYTES
"""The body of a conflated block."""
WAITING_AT: Final = NEWEST_AT + MESSAGE_BYTES
"""Three frames that came on a socket, and wait until the blocks in shared memory before them are taken."""
NOTICE_AT: Final = WAITING_AT + 3 * MESSAGE_BYTES
"""A gap that a worker is told of."""
MESSAGES: Final = 10
"""How many messages lie side by side from KEY_AT on."""
HEAD_AT: Final = KEY_AT + MESSAGES * MESSAGE_BYTES
"""The header of the block at hand, aligned."""
NEWEST_HEAD_AT: Final = HEAD_AT + HEADER_BYTES
SCRATCH_WORDS: Final = (NEWEST_HEAD_AT + HEADER_BYTES) // 8

HELD_MESSAGE_BYTES: Final = HEADER_BYTES + MESSAGE_BYTES


PARKED: Final = 0
"""The place, before those of held blocks, of the block that waits while held ones are delivered."""
DOUBTED_AT: Final = HELD_BLOCKS + 1
"""The place, behind those of held blocks, of line A's first block of an epoch that is not believed yet; then B's."""
AT_BEGIN: Final = DOUBTED_AT + 2
"""The place of the block that waits while those before it are delivered, at the begin of an epoch."""
HELD_MESSAGES: Final = AT_BEGIN + 1


class ConflationAt(NamedTuple):
    """Where a `Conflation` lies, for compiled code."""

    starts: int
    rooms: int
    lengths: int
    ts_event: int
    sequences: int
    topic_sizes: int
    pending: int
    seen: int
    order: int
    generation: int
    arena: int
    arena_bytes: int
    state: int


class SliceAt(NamedTuple):
    """What a slice thread owns, and the settings of its loop."""

    sub: int
    router: int
    wake_fd: int
    news_fd: int
    state: int
    scratch: int
    counters: int
    worker_counters: int
    workers: int
    topics: NumberingAt
    set_of_topic: int
    hints: int
    """Of publishers, by which topics are found: see `number_by_hint`."""
    order: OrderAt
    clock: int
    held_messages: int
    slice_id: int
    key_rule: int
    """Of the feed file: that of every block must be the same."""
    action: int
    queue_blocks: int
    conflation: ConflationAt
    max_lag_ns: int
    max_age_ns: int
    grace_ns: int
    handler: BlockHandlerAt
    own: WorkerAt
    """Of the callbacks that run in the slice thread itself; their table, and what calls Python for them."""
    own_table: WorkerTableAt
    ask: int
    shared: ReaderAt
    repair_socket: int
    """Where archives' blocks come; 0: they are not asked."""
    stops_at_gaps: int
    """1: lost messages are an error."""
    spin_ns: int
    """For how long the thread looks on, after what came last, before it sleeps."""


class TableAt(NamedTuple):
    """The version of a match table that is in force."""

    version: int
    set_workers: int
    set_counts: int
    """Scratch, int64[sets], zero between blocks."""
    callbacks_of_set: int
    """int64[1 + workers, sets]: how many callbacks a match set means, on all workers and on each."""
    sets: int
    listeners: int
    """A bit for each worker with callbacks or hooks that are told of gaps; behind them, for the slice's own."""
