"""What a relay keeps of each line of a slice, for its compiled loop and for Python."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy

from blackbox.block.block_handler import NO_HANDLER
from blackbox.block.encode import Origin, TopicTable
from blackbox.block.format import HEADER_BYTES
from blackbox.feed.key_rule import MAX_KEY_BYTES
from blackbox.native.name_table import Numbering, NumberingAt
from blackbox.native.records import Field, record_at
from blackbox.publish.sender_state import SCRATCH_WORDS, Sender, SenderState
from blackbox.transport.libzmq import EVENTS_SCRATCH_WORDS, MESSAGE_BYTES, close_messages, init_messages
from blackbox.transport.shared_memory_reader import ReaderAt
from blackbox.transport.shared_memory_writer import NO_WRITER, WriterAt

KEY_AT: Final = 0
HEADER_AT: Final = KEY_AT + MESSAGE_BYTES
BODY_AT: Final = HEADER_AT + MESSAGE_BYTES
COPY_AT: Final = BODY_AT + MESSAGE_BYTES
WAITING_AT: Final = COPY_AT + MESSAGE_BYTES
"""Three messages of a block that came on a socket, and waits until those before it are taken from shared memory."""
MESSAGES: Final = 7
EVENTS_AT: Final = MESSAGES * MESSAGE_BYTES
OWN_HEADER_AT: Final = EVENTS_AT + 8 * EVENTS_SCRATCH_WORDS
UNWANTED_AT: Final = OWN_HEADER_AT + HEADER_BYTES
_SCRATCH_WORDS: Final = (UNWANTED_AT + MAX_KEY_BYTES) // 8
"""int64 words of a line's scratch: its messages, what asking for events takes, an aligned header, an unwanted key."""


class LineState(SenderState):
    """State of a line in a relay's loop: that of a sender (`epoch`, `sequence`, `keys`), and what it has received."""

    heard_ns = Field()
    """When something came last, by the monotonic clock."""
    heartbeats = Field()
    """Passed on."""
    no_blocks = Field()
    """Messages that were no blocks, and went no further."""
    faults = Field()
    """Unreadable control blocks, and blocks with an unreadable header: passed on, for receivers to refuse."""
    knows_ends = Field()
    """1: no data block has passed since the control block with the ends of all keys. 0: a key may have a later end.

    Blocks may have been lost on the way to the relay, so only the source knows their ends."""
    nonce = Field()
    """Of the confirmation that is waited for, as a word."""
    answered = Field()
    """1: it has come."""
    answer_flags = Field()
    began = Field()
    """1: another epoch has begun."""
    ended = Field()
    """1: the last block of the epoch has passed."""
    has_refusal = Field()
    """1: what the source does not put in force lies in the scratch."""
    ranges = Field()
    """Address of what `ranges_of` returned for all filters in force above; 0: not known, or data comes in memory."""
    range_count = Field()
    has_unwanted = Field()
    """Size plus 1 of a key in none of these ranges. The key lies in the scratch, `unwanted` counts the messages."""
    has_path = Field()
    """1: what the relay above says of itself lies in the scratch."""


class SliceRelayState(SenderState):
    """What a relay's slice keeps: `passes`, times that all subscriptions were read which had come, and `read_at`."""

    closing = Field(own_line=True)
    """1: the loop is to return."""


line_state_at = record_at(LineState)
slice_relay_state_at = record_at(SliceRelayState)


class LineAt(NamedTuple):
    """Where a line lies, for compiled code."""

    xsub: int
    xpub: int
    state: int
    keys: NumberingAt
    sizes: int
    ends: int
    """End of each key."""
    counts: int
    """Number of messages of each key."""
    scratch: int


class SliceRelayAt(NamedTuple):
    """A relay's slice, for compiled code; `second` is `first` again where there is one line."""

    first: LineAt
    second: LineAt
    lines: int
    state: int
    polls: int
    """Address of `zmq_pollitem_t`: the wake-up pipe, then three of each line: XSUB, XPUB, news of connections."""
    wake_fd: int
    spin_ns: int
    shared: WriterAt
    """Where blocks are written for readers below on this host."""
    above: ReaderAt
    """Where the blocks of its only line are read in memory of the source."""


class LineMemory:
    """A line's state, its keys with their ends, and scratch; used by the thread of its slice."""

    def __init__(self, max_keys: int) -> None:
        self.state = LineState()
        self._keys = Numbering(max_keys, MAX_KEY_BYTES)
        self._sizes = numpy.zeros(max_keys, numpy.int32)
        self._ends, self._counts = numpy.zeros((2, max_keys), numpy.int64)
        self._scratch = numpy.zeros(_SCRATCH_WORDS, numpy.int64)
        self.scratch = self._scratch.ctypes.data
        init_messages(self.scratch, MESSAGES)

    def close(self) -> None:
        """Release the messages that lie in the scratch."""
        close_messages(self.scratch, MESSAGES)

    def at(self, xsub: int, xpub: int) -> LineAt:
        """Return where it lies."""
        return LineAt(
            xsub,
            xpub,
            self.state.address,
            self._keys.at,
            self._sizes.ctypes.data,
            self._ends.ctypes.data,
            self._counts.ctypes.data,
            self.scratch,
        )

    def sender(self, xpub: int) -> Sender:
        """Return what sends control blocks on the line, with the numbers of what has passed."""
        nothing = numpy.zeros(1, numpy.int64)
        return Sender(
            socket_a=xpub,
            socket_b=xpub,
            readable_a=0,
            readable_b=0,
            wake_fd=0,
            linger_ns=0,
            heartbeat_ns=0,
            state=self.state.address,
            keys=TopicTable(self._keys.text, self._keys.starts, self._sizes),
            ends=self._ends,
            counts=self._counts,
            wanted=numpy.zeros(1, numpy.uint16),
            starts=nothing,
            lengths=numpy.zeros(1, numpy.int32),
            ts_event=nothing,
            scratch=numpy.zeros(SCRATCH_WORDS, numpy.int64),
            sleep_scratch=nothing,
            shared=NO_WRITER,
            outbox=NO_HANDLER,
            spin_ns=0,
            others_send=False,
        )

    def origin(self, slice_id: int, key_rule: int) -> Origin:
        """Return where the blocks come from that pass now."""
        return Origin(0, slice_id, key_rule, self.state.epoch)
