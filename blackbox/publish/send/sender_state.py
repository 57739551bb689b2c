"""State of a slice's sender, shared by its compiled loop and Python."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.block_handler import NO_HANDLER, BlockHandlerAt
from blackbox.block.form.encode import TopicTable
from blackbox.block.form.format import HEADER_BYTES
from blackbox.native.memory.records import Field, SharedRecord, record_at
from blackbox.transport.libzmq import EVENTS_SCRATCH_WORDS, MESSAGE_BYTES
from blackbox.transport.shared_memory.writer import NO_WRITER, WriterAt

_NOTHING: Final[NDArray[numpy.int64]] = numpy.zeros(0, numpy.int64)
SHARED: Final = 256
"""Amount that a filter of a reader of shared memory or multicast adds to `Sender.wanted`."""
MULTICAST: Final = 1 << 15
"""Amount that multicast lines add to it: they carry every key."""


class SenderState(SharedRecord):
    """Counters and times of a sender's compiled loop, readable from Python."""

    messages = Field()
    """Messages sent. This and the next three count once, however many lines are used."""
    blocks = Field()
    body_bytes = Field()
    wire_bytes = Field()
    """Bytes of all frames sent on line A, or on a relay's line, with those of control blocks and ZeroMQ's framing."""
    wire_bytes_b = Field()
    """Those on line B of a publisher."""
    unwanted = Field()
    """Messages of keys without a subscriber."""
    waits = Field()
    """Times that a send waited for a slow subscriber."""
    shared_memory_dropped = Field()
    """Messages for which shared memory had no room."""
    refused = Field()
    """1: the outbox refused a block."""
    errno = Field()
    """Error number with which libzmq refused a message; 0: none."""
    handled = Field()
    """Messages sent or unwanted that are still in the ring because their pass was aborted."""
    discarded = Field()
    """Messages that were never sent; counted at the end."""
    heartbeat_at = Field()
    """When the next heartbeat is due, monotonic."""
    sent_at = Field()
    """When the ring was last sent empty, monotonic."""
    paid_until = Field()
    """Time at which all messages would have been sent at the sustainable rate, one block each, monotonic."""
    asked_at = Field()
    """When writers were last asked: messages that were not seen then came later. ns since the epoch."""
    asked_from = Field()
    """The tail at that time, or SURE; see `ring.ask`."""
    passes = Field()
    """Number of times that the ring was sent empty."""
    read_at = Field()
    """When subscriptions may be read again while there are messages to send, monotonic."""
    tap_bell = Field()
    """Descriptor to write to after a send that waited, while taps are connected; 0: none is."""
    epoch = Field()
    """Epoch of the blocks being sent."""
    sequence = Field()
    """Sequence of the next message in the current epoch."""
    kept = Field()
    """Sequence at the end of the outbox at the start. Until it is reached, nothing is written there."""
    next_epoch = Field()
    """Epoch that must begin before further messages are published; 0: none."""
    keys = Field(own_line=True)
    """Number of keys; written by publishing threads."""


sender_state_at = record_at(SenderState)


class Sender(NamedTuple):
    """Everything a slice's sender owns. Sockets are addresses; 0: the line is not a ZeroMQ socket, or absent."""

    slice_id: int
    key_rule: int
    state: int
    """Address of its SenderState."""
    keys: TopicTable
    ends: NDArray[numpy.int64]
    """Sequence after the last message of each key."""
    counts: NDArray[numpy.int64]
    """Number of messages of each key."""
    scratch: NDArray[numpy.int64]
    socket_a: int
    socket_b: int
    # Only the send loop uses what follows; a relay sends control blocks without it.
    readable_a: int = 0
    """Descriptor that signals `socket_a`, encoded for `wait_readable`: a thread must not poll a socket in use by
    another.
    """
    readable_b: int = 0
    wake_fd: int = 0
    linger_ns: int = 0
    heartbeat_ns: int = 0
    wanted: NDArray[numpy.uint16] = numpy.zeros(0, numpy.uint16)
    """For each key: 1 per matching socket filter, plus SHARED per matching filter of readers of shared memory or
    multicast, plus MULTICAST if there are multicast lines.
    """
    starts: NDArray[numpy.int64] = _NOTHING
    lengths: NDArray[numpy.int32] = numpy.zeros(0, numpy.int32)
    ts_event: NDArray[numpy.int64] = _NOTHING
    sleep_scratch: NDArray[numpy.int64] = _NOTHING
    """Scratch for the sleeping thread, while another uses `scratch`."""
    shared: WriterAt = NO_WRITER
    outbox: BlockHandlerAt = NO_HANDLER
    """Receives each block before it is sent; or NO_HANDLER."""
    spin_ns: int = 0
    """Time that the thread polls after its last send before it sleeps."""
    others_send: bool = False
    """True if publishing threads may send for it: they never wait for a slow subscriber."""
    caster: int = 0
    """Address of the `CasterState` of multicast lines; 0: none."""


KEY_AT: Final = EVENTS_SCRATCH_WORDS * 8
HEADER_AT: Final = KEY_AT + MESSAGE_BYTES
COPY_AT: Final = HEADER_AT + MESSAGE_BYTES
BODY_AT: Final = COPY_AT + MESSAGE_BYTES
TEMPLATE_AT: Final = BODY_AT + MESSAGE_BYTES
SCRATCH_WORDS: Final = (TEMPLATE_AT + HEADER_BYTES) // 8
"""int64 words of `Sender.scratch`: poll items, four messages, a header."""
