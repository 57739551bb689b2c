"""State and addresses of a worker's compiled loop: its burst of blocks, each callback's rows, and its calls."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from blackbox.native.compile.kept_arguments import kept_at
from blackbox.native.memory.records import Field, SharedRecord, record_at

NEVER: Final = (1 << 63) - 1
"""No timer is due."""
ALL_ROWS: Final = 0
"""Instead of an address of row numbers: every row that was not delivered before."""


class WorkerReason(IntEnum):
    """Reason for compiled code to need Python."""

    DELIVER = 1
    """There are batches for Python callbacks."""
    FEW = 2
    """Like DELIVER, for a burst of one block of at most MOST_FEW messages that are all for one Python callback."""
    SWITCH = 3
    """The next block was matched with another version of the table: `next_version`."""
    EPOCH = 4
    """The next block is of another epoch: `next_epoch`."""
    GAP = 5
    """Hooks or books must process the gap in `notice`."""
    GROW = 6
    """`rows` must hold `rows_needed` for the current block."""
    TICK = 7
    """A timer is due."""
    RAISED = 8
    """Compiled callbacks raised, in a slice thread."""
    ENDED = 9
    """The slice thread has sent its end mark, or the subscriber was terminated."""
    FAILED = 10
    """libzmq returned an error; see `errno`."""
    TRACED = 11
    """Like DELIVER, for a burst of one block that is traced and only for Python callbacks."""


class WorkerState(SharedRecord):
    """State of a worker's loop between two calls of `collect`, also for Python."""

    next_version = Field()
    """Version of the match table of the pending block."""
    raised = Field()
    """Number of compiled callbacks that raised in the burst; they are listed in `raised`, in order."""
    rows = Field()
    """Address of the scratch for row numbers: int32[max_rows]."""
    max_rows = Field()
    rows_needed = Field()
    errno = Field()
    pending = Field()
    """1: a received block is not yet in a burst."""
    blocks = Field()
    """Blocks in the burst; a call of `collect` frees them first."""
    entries = Field()
    """Batches of the burst."""
    singles = Field()
    """1: each batch is the only message of a block, and the only batch of it."""
    burst = Field()
    """Address of the burst: Python replaces a burst that it keeps."""
    last = Field()
    """1: the slice thread has sent its end mark."""
    tick_ns = Field()
    """Time of the next timer, unix ns; or NEVER."""
    tick_within_ns = Field()
    """If `tick_ns` is further away than this, the clock was set back."""
    epoch = Field()
    """Epoch of the blocks; 0: none yet."""
    next_epoch = Field()
    """Epoch of the pending block."""

    traced = Field()
    """1: the only block of the burst is traced, and its record is not visible yet."""
    left_out = Field()
    """Rows of the last block that were left out: a callback had their message under an earlier topic."""
    notice = Field()
    """Address of a `GapNotice` received after the burst; 0: none."""


class GapNotice(SharedRecord):
    """Notice of lost messages to a worker, followed by the text of their key."""

    version = Field()
    """Version of the current match table."""
    epoch = Field()
    sequence = Field()
    """First lost sequence; -1: unknown, since the slow-subscriber policy dropped them."""
    count = Field()
    """0: the slice goes live, for the `sequence`-th time."""
    is_upper_bound = Field()
    """1: `count` is an upper bound."""
    ts_out = Field()
    """`ts_out` of the block that showed the loss."""
    key_bytes = Field()


class BatchEntry(SharedRecord):
    """A callback's rows of one block of the burst."""

    slot = Field()
    callback = Field()
    rows = Field()
    """Address of the row numbers, or ALL_ROWS."""
    count = Field()
    state = Field()
    """Address of a compiled callback's state."""


class BlockPlace(SharedRecord):
    """Addresses of a block of the burst."""

    envelope = Field()
    body = Field()
    body_bytes = Field()
    origins = Field()
    """Address of the messages' origins if a replay merged several blocks; else 0."""
    payload = Field()
    """Address of the payload of a block's only message."""
    payload_bytes = Field()
    """Its size; -1: there are more messages, or it has no value."""
    ts_event = Field()
    """`ts_event` of the only message."""


class CallbackCall(SharedRecord):
    """Argument of a compiled callback's C function."""

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
    """Set to 1 if the callback raised."""
    flags = Field()
    """Flags of the block's header."""
    origins = Field()
    """Address of the messages' origins; 0: all are of this block."""
    lost = Field()
    """Messages lost since the callback's last batch that may have matched its prefix."""


worker_state_at = record_at(WorkerState)
batch_entry_at = record_at(BatchEntry)
block_place_at = record_at(BlockPlace)
callback_call_at = record_at(CallbackCall)
gap_notice_at = record_at(GapNotice)
GAP_NOTICE_BYTES: Final = GapNotice.dtype.itemsize
ENTRY_BYTES: Final = BatchEntry.dtype.itemsize
PLACE_BYTES: Final = BlockPlace.dtype.itemsize


class WorkerAt(NamedTuple):
    """Addresses of a worker."""

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
    traces: int
    """Ring of traced blocks."""


class WorkerTableAt(NamedTuple):
    """One worker's part of a table: callbacks of each match set, and addresses of compiled ones and their states."""

    version: int
    starts: int
    sets: int
    callbacks: int
    functions: int
    states: int
    total: int
    many: int
    """Number of callbacks of the slice; those of other workers have no function here."""
    keys: int
    """Address of the starts of their topics' keys, concatenated."""
    key_ends: int
    """Address of int64[many + 1]: start of each, and end of the last one."""
    lost: int
    """Address of int64[many]: address of each compiled callback's counter of lost messages; 0 for others."""
    listens: int
    """1: Python must process gaps, for hooks or books."""
    gets_all: int
    """Address of uint8[many]: 1 if the callback gets a message once for each of its topics."""


class WorkerWithTable(NamedTuple):
    """A worker and its callbacks."""

    worker: WorkerAt
    table: WorkerTableAt


worker_with_table_at = kept_at(WorkerWithTable)
