"""What a slice's sender keeps, for its compiled loop and for Python."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.block_handler import BlockHandlerAt
from blackbox.block.encode import TopicTable
from blackbox.block.format import HEADER_BYTES
from blackbox.native.records import Field, SharedRecord, record_at
from blackbox.transport.libzmq import EVENTS_SCRATCH_WORDS, MESSAGE_BYTES
from blackbox.transport.shared_memory_writer import WriterAt

SHARED: Final = 256
"""What a filter of a reader of shared memory adds to `Sender.wanted`."""


class SenderState(SharedRecord):
    """What a sender's compiled loop keeps, and Python looks at."""

    messages = Field()
    """Sent, each counted once however many lines it went to; so are the next three."""
    blocks = Field()
    body_bytes = Field()
    unwanted = Field()
    """Messages of keys that nobody had subscribed to."""
    waits = Field()
    """Times a send waited for a slow subscriber."""
    shared_memory_dropped = Field()
    """Messages for which shared memory had no place."""
    refused = Field()
    """1: the outbox did not take a block."""
    errno = Field()
    """Why libzmq refused a message; 0: it did not."""
    handled = Field()
    """Messages that were sent or not wanted, but are still in the ring: the pass that they belong to was given up."""
    heartbeat_at = Field()
    """When the next heartbeat is due, by the monotonic clock."""
    sent_at = Field()
    """When the ring was last sent empty, by the monotonic clock."""
    paid_until = Field()
    """When as many messages could have been sent, each in a block of its own, by the monotonic clock."""
    asked_at = Field()
    """When writers were last asked: what is in the ring and was not seen then came later, ns since the epoch."""
    asked_from = Field()
    """The tail then, or SURE; see `ring.ask`."""
    passes = Field()
    """Times that all was sent which was in the ring."""
    read_at = Field()
    """When subscriptions may be read again while there is something to send, by the monotonic clock."""
    epoch = Field()
    """Of what is sent now."""
    sequence = Field()
    """Sequence of the next message in the present epoch."""
    kept = Field()
    """Sequence at the end of the outbox at the start. Until it is reached, nothing is written there."""
    next_epoch = Field()
    """The epoch that is to begin before anything else is published; 0: none."""
    keys = Field(own_line=True)
    """Number of keys; written by publishing threads."""


sender_state_at = record_at(SenderState)


class Sender(NamedTuple):
    """What a slice's sender owns. Sockets are addresses; `socket_b` is 0 without a second line."""

    socket_a: int
    socket_b: int
    readable_a: int
    """As `wait_readable` takes the descriptor that tells of `socket_a`: it may not touch one that others use."""
    readable_b: int
    wake_fd: int
    linger_ns: int
    heartbeat_ns: int
    state: int
    """Address of its SenderState."""
    keys: TopicTable
    ends: NDArray[numpy.int64]
    """Sequence after the last message of each key."""
    counts: NDArray[numpy.int64]
    """Number of messages of each key."""
    wanted: NDArray[numpy.uint16]
    """Of each key: 1 for each filter of a socket that lets it through, SHARED for each of a reader of shared memory."""
    starts: NDArray[numpy.int64]
    lengths: NDArray[numpy.int32]
    ts_event: NDArray[numpy.int64]
    scratch: NDArray[numpy.int64]
    sleep_scratch: NDArray[numpy.int64]
    """Of the thread that sleeps, while another uses `scratch`."""
    shared: WriterAt
    outbox: BlockHandlerAt
    """What is to have each block before it is sent; or NO_HANDLER."""
    spin_ns: int
    """For how long the thread looks on, after what it sent last, before it sleeps."""
    others_send: bool
    """Whether threads that publish may send in its place: they never wait for a slow subscriber."""


KEY_AT: Final = EVENTS_SCRATCH_WORDS * 8
HEADER_AT: Final = KEY_AT + MESSAGE_BYTES
COPY_AT: Final = HEADER_AT + MESSAGE_BYTES
BODY_AT: Final = COPY_AT + MESSAGE_BYTES
TEMPLATE_AT: Final = BODY_AT + MESSAGE_BYTES
SCRATCH_WORDS: Final = (TEMPLATE_AT + HEADER_BYTES) // 8
"""int64 words of `Sender.scratch`: poll items, four messages, a header."""
