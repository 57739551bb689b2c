"""State of each line of a slice in a relay, for its compiled loop and for Python."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy

from blackbox.block.form.encode import TopicTable
from blackbox.block.form.format import HEADER_BYTES
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.native.memory.records import Field, record_at
from blackbox.native.tables.name_table import Numbering, NumberingAt
from blackbox.publish.send.sender_state import SCRATCH_WORDS, Sender, SenderState
from blackbox.transport.libzmq import EVENTS_SCRATCH_WORDS, MESSAGE_BYTES, close_messages, init_messages
from blackbox.transport.shared_memory.reader import ReaderAt
from blackbox.transport.shared_memory.writer import WriterAt

KEY_AT: Final = 0
HEADER_AT: Final = KEY_AT + MESSAGE_BYTES
BODY_AT: Final = HEADER_AT + MESSAGE_BYTES
COPY_AT: Final = BODY_AT + MESSAGE_BYTES
WAITING_AT: Final = COPY_AT + MESSAGE_BYTES
"""Three messages of a block received on a socket that waits for earlier blocks in shared memory."""
MESSAGES: Final = 7
EVENTS_AT: Final = MESSAGES * MESSAGE_BYTES
OWN_HEADER_AT: Final = EVENTS_AT + 8 * EVENTS_SCRATCH_WORDS
UNWANTED_AT: Final = OWN_HEADER_AT + HEADER_BYTES
_SCRATCH_WORDS: Final = (UNWANTED_AT + MAX_KEY_BYTES) // 8
"""int64 words of a line's scratch: its messages, scratch for reading events, an aligned header, an unwanted key."""


class LineState(SenderState):
    """State of a line in a relay's loop: a sender's (`epoch`, `sequence`, `keys`), and what it has received."""

    heard_ns = Field()
    """Time of the last message by the monotonic clock."""
    heartbeats = Field()
    """Heartbeats forwarded."""
    no_blocks = Field()
    """Messages that were not blocks, and were dropped."""
    faults = Field()
    """Unreadable control blocks, and blocks with an unreadable header: forwarded for receivers to reject."""
    gaps = Field()
    """Messages missing between blocks without a key. Not counted with keys, across a new connection, and while a
    confirmation is awaited, since filters may have been withdrawn before."""
    received = Field()
    """Sequence after the last such block; valid if `follows` is 1."""
    follows = Field()
    knows_ends = Field()
    """1: no data block has passed since the control block with the ends of all keys. 0: a key may have a later end.

    Only the source knows the ends, since blocks may have been lost on the way to the relay.
    """
    nonce = Field()
    """Nonce of the awaited confirmation, as a word."""
    answered = Field()
    """1: the confirmation has arrived."""
    answer_flags = Field()
    began = Field()
    """1: a new epoch has begun."""
    ended = Field()
    """1: the last block of the epoch has passed."""
    has_refusal = Field()
    """1: the source's refusal is in the scratch."""
    ranges = Field()
    """Address of the ranges (`ranges_of`) of all confirmed filters; 0: unknown, or data is in shared memory."""
    range_count = Field()
    has_unwanted = Field()
    """Size plus 1 of a key in none of these ranges. The key is in the scratch; `unwanted` counts such messages."""
    has_path = Field()
    """1: the path of the relay above is in the scratch."""
    trace_mask = Field()
    """Chooses traced blocks: see `blackbox.block.form.sampling`."""
    traced_in_ns = Field()
    """Time when the last traced block was received; 0: it is known below."""
    traced_out_ns = Field()
    """Time just before it was sent."""
    traced_end = Field()
    """Sequence after its last message."""
    traced_flags = Field()
    """FLAG_LINE_B if it has that flag."""


class SliceRelayState(SenderState):
    """State of a relay's slice: `passes`, times that all pending subscriptions were read, and `read_at`."""

    closing = Field(own_line=True)
    """1: the loop must return."""


line_state_at = record_at(LineState)
slice_relay_state_at = record_at(SliceRelayState)


class LineAt(NamedTuple):
    """Addresses of a line, for compiled code."""

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
    cast_line: int
    """The multicast line that takes its blocks, if the slice has any."""


class SliceRelayAt(NamedTuple):
    """Addresses of a relay's slice, for compiled code; with one line, `second` equals `first`."""

    first: LineAt
    second: LineAt
    lines: int
    state: int
    polls: int
    """Address of `zmq_pollitem_t`: the wake-up pipe, then XSUB, XPUB and connection monitor of each line."""
    wake_fd: int
    spin_ns: int
    shared: WriterAt
    """Shared memory for readers below on this host."""
    above: ReaderAt
    """The source's shared memory, if the slice has one line."""
    caster: int
    """Address of the `CasterState` of multicast lines below; 0: none."""


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
        """Close the messages in the scratch."""
        close_messages(self.scratch, MESSAGES)

    def at(self, xsub: int, xpub: int, cast_line: int) -> LineAt:
        """Return the addresses."""
        return LineAt(
            xsub,
            xpub,
            self.state.address,
            self._keys.at,
            self._sizes.ctypes.data,
            self._ends.ctypes.data,
            self._counts.ctypes.data,
            self.scratch,
            cast_line,
        )

    def sender(self, xpub: int, slice_id: int, key_rule: int, caster: int) -> Sender:
        """Return the sender of control blocks on the line, with the sequences of the forwarded blocks."""
        return Sender(
            slice_id=slice_id,
            key_rule=key_rule,
            state=self.state.address,
            keys=TopicTable(self._keys.text, self._keys.starts, self._sizes),
            ends=self._ends,
            counts=self._counts,
            scratch=numpy.zeros(SCRATCH_WORDS, numpy.int64),
            socket_a=xpub,
            socket_b=xpub,
            caster=caster,
        )
