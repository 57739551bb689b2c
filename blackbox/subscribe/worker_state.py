"""What a worker's compiled loop keeps, and where it lies: its burst of blocks, each callback's rows, and its calls."""

from __future__ import annotations

from typing import Final, NamedTuple

from blackbox.native.kept_arguments import kept_at
from blackbox.native.records import Field, SharedRecord, record_at

NEVER: Final = (1 << 63) - 1
"""In place of the time at which a timer is due."""
ALL_ROWS: Final = 0
"""In place of the address of row numbers: every row that was not delivered before."""


class WorkerState(SharedRecord):
    """What a worker's loop keeps between two calls of `collect`, and tells Python."""

    next_version = Field()
    """Of the match table that the pending block was matched with."""
    raised = Field()
    """How many compiled callbacks raised in the burst: they stand in `raised`, in the order in which they first did."""
    rows = Field()
    """Address of the scratch for row numbers: int32[max_rows]."""
    max_rows = Field()
    rows_needed = Field()
    errno = Field()
    pending = Field()
    """1: a block has been received that no burst holds yet."""
    blocks = Field()
    """Blocks in the burst; what is in it when `collect` is called is freed first."""
    entries = Field()
    """Batches of the burst."""
    singles = Field()
    """1: each of these is the only message of a block, and the only batch of it."""
    burst = Field()
    """Address of the burst: Python puts a fresh one there when it keeps the old."""
    last = Field()
    """1: the slice thread has said that nothing follows."""
    tick_ns = Field()
    """When a timer is due, unix ns; or NEVER."""
    tick_within_ns = Field()
    """Where `tick_ns` is further away than this, the clock was set back."""
    epoch = Field()
    """Of the blocks that are taken; 0: none has come."""
    next_epoch = Field()
    """Of the pending block."""

    notice = Field()
    """Address of a `GapNotice` that came behind the burst; 0: none did."""


class GapNotice(SharedRecord):
    """What a worker is told of messages that will not come; the text of their key stands behind it."""

    version = Field()
    """Of the match table that is in force."""
    epoch = Field()
    sequence = Field()
    """The number of the first one; -1: not known, the slow-subscriber policy dropped them."""
    count = Field()
    """0: the slice goes over to live, for the time of number `sequence`."""
    is_bound = Field()
    """1: `count` is an upper bound."""
    ts_out = Field()
    """Of what told of it."""
    key_bytes = Field()


class BatchEntry(SharedRecord):
    """Which rows of which block of the burst one callback gets."""

    slot = Field()
    callback = Field()
    rows = Field()
    """Address of the row numbers, or ALL_ROWS."""
    count = Field()
    state = Field()
    """Address of a compiled callback's state."""


class BlockPlace(SharedRecord):
    """Where a block of the burst lies."""

    envelope = Field()
    body = Field()
    body_bytes = Field()
    origins = Field()
    """Address of where each message came from, if a replay gathered them from several blocks; else 0."""
    payload = Field()
    """Address of the payload of a block's only message."""
    payload_bytes = Field()
    """Its size; -1: there are more messages, or it has no value."""
    ts_event = Field()
    """Of the only message."""


class CallbackCall(SharedRecord):
    """What a compiled callback is called with."""

    rows = Field()
    """Address of the row numbers."""
    row_count = Field()
    block_count = Field()
    """Rows of the whole block."""
    body = Field()
    topic_count = Field()
    numbers = Field()
    """Address of the number of each topic."""
    topic_bytes = Field()
    payload_bytes = Field()
    stride = Field()
    ts_out = Field()
    ts_recv = Field()
    sequence = Field()
    state = Field()
    """Address of the callback's state."""
    error = Field()
    """Set to 1 when the callback raised."""
    flags = Field()
    """Of the block's header."""
    origins = Field()
    """Address of where each message came from; 0: all came with this block."""
    lost = Field()
    """Messages lost since the callback's last batch that may have been for it."""


worker_state_at = record_at(WorkerState)
batch_entry_at = record_at(BatchEntry)
block_place_at = record_at(BlockPlace)
callback_call_at = record_at(CallbackCall)
gap_notice_at = record_at(GapNotice)
GAP_NOTICE_BYTES: Final = GapNotice.dtype.itemsize
ENTRY_BYTES: Final = BatchEntry.dtype.itemsize
PLACE_BYTES: Final = BlockPlace.dtype.itemsize


class WorkerAt(NamedTuple):
    """What a worker owns, as addresses."""

    dealer: int
    slice_state: int
    counters: int
    lags: int
    ages: int
    state: int
    scratch: int
    entries: int
    max_entries: int
    identity: int
    counts: int
    places: int
    touched: int
    raised: int
    raises: int
    call: int
    few: int
    places_of_blocks: int
    slice_counters: int


class WorkerTableAt(NamedTuple):
    """One worker's part of a table: the callbacks of each match set, and where compiled ones and their states are."""

    version: int
    starts: int
    sets: int
    callbacks: int
    functions: int
    states: int
    total: int
    many: int
    """How many callbacks the slice has; those of other workers have no function here."""
    keys: int
    """Address of the starts of their topics' keys, one behind the other."""
    key_ends: int
    """Address of int64[many + 1]: where each begins, and where the last one ends."""
    lost: int
    """Address of int64[many]: the address of each own compiled callback's count of messages lost; else 0."""
    listens: int
    """1: Python is to hear of gaps, for hooks or books."""


class WorkerWithTable(NamedTuple):
    """A worker, and the callbacks that it calls."""

    worker: WorkerAt
    table: WorkerTableAt


worker_with_table_at = kept_at(WorkerWithTable)
