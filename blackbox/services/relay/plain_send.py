"""Send a block's messages one by one, for clients that cannot read blocks: compiled, without the GIL.

A message is `topic | ts_event | payload`, each copied into its own frame; without a value there is no third frame.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy
import zmq

from blackbox.block.form.format import FLAG_FIXED, has_value, layout_of, read_header
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import copy_bytes, inner, int32s_at
from blackbox.native.memory.records import Field, SharedRecord, record_at
from blackbox.transport.libzmq import (
    DONTWAIT,
    EAGAIN,
    MESSAGE_BYTES,
    SNDMORE,
    msg_data,
    msg_init_size,
    msg_send,
    zmq_errno,
    zmq_setsockopt,
)

_OPTION_AT: Final = MESSAGE_BYTES
SCRATCH_WORDS: Final = MESSAGE_BYTES // 8 + 1
"""int64 words of scratch: a message, and the value of an option."""
_TS_EVENT_BYTES: Final = 8
_NODROP: Final = int(zmq.XPUB_NODROP)


class PlainState(SharedRecord):
    """Counters of messages sent one by one."""

    messages = Field()
    """Messages offered to their subscribers."""
    full = Field()
    """Messages for which the queue of at least one subscriber was full."""


plain_state_at = record_at(PlainState)


class PlainAt(NamedTuple):
    """Destination of messages, for compiled code."""

    socket: int
    """A PUB with XPUB_NODROP: it rejects a message if a subscriber's queue is full."""
    state: int
    scratch: int


@inner
def _let_drop(at: PlainAt, drop: int) -> None:
    """Make libzmq drop messages for subscribers with a full queue, or reject them for all."""
    int32s_at(at.scratch + _OPTION_AT, 1)[0] = 1 - drop
    zmq_setsockopt(at.socket, _NODROP, at.scratch + _OPTION_AT, 4)


@inner
def _send(at: PlainAt, source: int, size: int, flags: int) -> Any:
    """Send a copy as a frame; return 0 or libzmq's error, which leaves the frame in the scratch."""
    if msg_init_size(at.scratch, size) != 0:
        return numpy.int64(zmq_errno())
    copy_bytes(msg_data(at.scratch), source, size)
    return numpy.int64(0 if msg_send(at.scratch, at.socket, flags) >= 0 else zmq_errno())


@inner
def _send_topic(at: PlainAt, source: int, size: int) -> Any:
    """Begin a message for all subscribers whose queue has room."""
    flags = numpy.int64(SNDMORE | DONTWAIT)
    error: int = _send(at, source, size, flags)
    if error != EAGAIN:
        return error
    plain_state_at(at.state).full += 1
    _let_drop(at, 1)
    return numpy.int64(0 if msg_send(at.scratch, at.socket, flags) >= 0 else zmq_errno())


@njit(nogil=True, cache=True)
def send_plain(at: PlainAt, head: int, body: int, rows: int, count: int) -> int:
    """Send messages of a checked block: its first `count`, or those of the int32 `rows`. Return 0 or libzmq's error.

    `head` and `body`: addresses of the block's header and body; `rows`: an address, or 0.
    """
    state = plain_state_at(at.state)
    header = read_header(head)
    layout = layout_of(header)
    topic_index = int32s_at(body + layout.topic_index, header.count)
    topic_offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    is_fixed = header.flags & FLAG_FIXED != 0
    offsets = int32s_at(body + layout.payload_offsets, 0 if is_fixed else header.count + 1)
    chosen = int32s_at(rows, count if rows != 0 else 0)
    more, last = numpy.int64(SNDMORE | DONTWAIT), numpy.int64(DONTWAIT)
    for place in range(count):
        row = numpy.int64(chosen[place]) if rows != 0 else place
        topic = numpy.int64(topic_index[row])
        start = numpy.int64(topic_offsets[topic])
        full = state.full
        error: int = _send_topic(at, body + layout.topics + start, numpy.int64(topic_offsets[topic + 1]) - start)
        has_payload = has_value(header, layout, body, row)
        if error == 0:
            ts_event = body + _TS_EVENT_BYTES * row
            error = _send(at, ts_event, numpy.int64(_TS_EVENT_BYTES), more if has_payload else last)
        if error == 0 and has_payload:
            begin = header.stride * row if is_fixed else numpy.int64(offsets[row])
            size = header.stride if is_fixed else numpy.int64(offsets[row + 1]) - begin
            error = _send(at, body + layout.payloads + begin, size, last)
        if state.full != full:
            _let_drop(at, 0)
        if error != 0:
            return error
        state.messages += 1
    return 0
