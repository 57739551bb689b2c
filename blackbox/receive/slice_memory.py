"""Memory layout of a slice thread: its scratch messages, and the addresses that its loop uses.

Plain addresses, because numba would count references to arrays atomically at every call.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from blackbox.block.batch.block_handler import BlockHandlerAt
from blackbox.block.form.format import HEADER_BYTES
from blackbox.native.tables.name_table import NumberingAt
from blackbox.receive.deliver.worker_state import WorkerAt, WorkerTableAt
from blackbox.receive.order.state import HELD_BLOCKS, OrderAt
from blackbox.transport.libzmq import EVENTS_SCRATCH_WORDS, MESSAGE_BYTES
from blackbox.transport.shared_memory.reader import ReaderAt
from blackbox.transport.udp.receiver import LinesAt

KEY_AT: Final = EVENTS_SCRATCH_WORDS * 8
HEADER_AT: Final = KEY_AT + MESSAGE_BYTES
BODY_AT: Final = HEADER_AT + MESSAGE_BYTES
ENVELOPE_AT: Final = BODY_AT + MESSAGE_BYTES
COPY_AT: Final = ENVELOPE_AT + MESSAGE_BYTES
NEWEST_AT: Final = COPY_AT + MESSAGE_BYTES
"""Body of a conflated block."""
WAITING_AT: Final = NEWEST_AT + MESSAGE_BYTES
"""Three frames received on a socket that wait for earlier blocks in shared memory."""
NOTICE_AT: Final = WAITING_AT + 3 * MESSAGE_BYTES
"""A gap notice for a worker."""
MESSAGES: Final = 10
"""Number of adjacent messages from KEY_AT on."""
HEAD_AT: Final = KEY_AT + MESSAGES * MESSAGE_BYTES
"""Header of the current block, aligned."""
NEWEST_HEAD_AT: Final = HEAD_AT + HEADER_BYTES
SCRATCH_WORDS: Final = (NEWEST_HEAD_AT + HEADER_BYTES) // 8

HELD_MESSAGE_BYTES: Final = HEADER_BYTES + MESSAGE_BYTES


PARKED: Final = 0
"""Place of the current block while held blocks are delivered; before the places of held blocks."""
DOUBTED_AT: Final = HELD_BLOCKS + 1
"""Place of line A's first block of an unconfirmed epoch, after those of held blocks; the next one is line B's."""
AT_BEGIN: Final = DOUBTED_AT + 2
"""Place of the current block while earlier ones are delivered at the beginning of an epoch."""
HELD_MESSAGES: Final = AT_BEGIN + 1


class ConflationAt(NamedTuple):
    """Addresses of a `Conflation`, for compiled code."""

    starts: int
    rooms: int
    lengths: int
    ts_event: int
    sequences: int
    same: int
    topic_sizes: int
    pending: int
    seen: int
    order: int
    generation: int
    arena: int
    arena_bytes: int
    state: int


class SliceAt(NamedTuple):
    """Addresses and settings of a slice thread's loop."""

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
    """Address of the publishers' hints for topic numbers: see `number_by_hint`."""
    order: OrderAt
    clock: int
    held_messages: int
    slice_id: int
    key_rule: int
    """Key rule of the feed file, which every block must have."""
    action: int
    queue_blocks: int
    conflation: ConflationAt
    max_lag_ns: int
    max_age_ns: int
    grace_ns: int
    handler: BlockHandlerAt
    own: WorkerAt
    """Callbacks of the slice thread: their table, and the C function that calls Python for them."""
    own_table: WorkerTableAt
    ask: int
    shared: ReaderAt
    multicast: LinesAt
    repair_socket: int
    """Socket for blocks from archives; 0: archives are not used."""
    stops_at_gaps: int
    """1: lost messages are an error."""
    spin_ns: int
    """Time in ns to poll after the last message before sleeping."""
    relay_times: int
    """Ring of the times that relays send about traced blocks."""
    trace_mask: int
    """Chooses traced blocks: see `trace_mask`."""


class TableAt(NamedTuple):
    """Addresses of the current match table."""

    version: int
    set_workers: int
    set_counts: int
    """Scratch, int64[sets], zero between blocks."""
    callbacks_of_set: int
    """int64[1 + workers, sets]: number of callbacks of a match set, over all workers and on each."""
    sets: int
    listeners: int
    """A bit per worker with callbacks or hooks that get gap notices; the last one for the slice thread's."""
