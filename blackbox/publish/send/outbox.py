"""The sender's side of an outbox: its interface, and compiled calls that store each block before it is sent.

The journal is in `blackbox.archive.record.outbox`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from importlib import import_module
from typing import Final, NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.block_handler import (
    BLOCK,
    CONTROL,
    IDLE,
    NO_HANDLER,
    NOTE,
    BlockHandlerAt,
    handed_block_at,
)
from blackbox.block.form.block import Block
from blackbox.block.form.encode import finish_header
from blackbox.block.form.format import HEADER_BYTES
from blackbox.block.position import End
from blackbox.feed.feed import Feed
from blackbox.native.memory.intrinsics import call_with_address, inner
from blackbox.native.system.posix import now_ns
from blackbox.publish.send.batcher import Stored
from blackbox.publish.send.sender_state import BODY_AT, TEMPLATE_AT, Sender, sender_state_at
from blackbox.transport.libzmq import msg_data, msg_size

_REFUSED: Final = errno.EIO


class OutboxSlice(NamedTuple):
    """One slice of an outbox."""

    handler: BlockHandlerAt
    """Handler for its blocks."""
    failure: Callable[[], str]
    """Return the reason why it refuses blocks."""
    sequence: int
    """Next sequence, after all written messages of the continued epoch."""
    ends: dict[bytes, End]
    """End of each key at that sequence."""
    again: list[Block]
    """Last blocks that no archive has acknowledged. They are sent again unchanged."""

    def begin(self) -> tuple[int, dict[bytes, End]]:
        """Return the first sequence to send (again or for the first time), and the end of each key there."""
        sequence = self.again[0].sequence if self.again else self.sequence
        ends = {block.key: End(block.previous, block.key_sequence) for block in reversed(self.again)}
        return sequence, self.ends | ends


class Again(NamedTuple):
    """Blocks of one slice to send again."""

    keys: list[bytes]
    """Key of each row of `stored`."""
    stored: Stored
    columns: tuple[NDArray[numpy.uint8 | numpy.int64], ...]
    """Memory of `stored`."""

    @classmethod
    def of(cls, box: OutboxSlice) -> Again:
        """Return the blocks in columns."""
        headers = numpy.frombuffer(b"".join(bytes(block.header) for block in box.again), numpy.uint8)
        heads = headers.ctypes.data + HEADER_BYTES * numpy.arange(len(box.again), dtype=numpy.int64)
        bodies = numpy.array([block.body.ctypes.data for block in box.again], numpy.int64)
        absent = numpy.zeros(len(box.again), numpy.int64)
        stored = Stored(heads.ctypes.data, bodies.ctypes.data, absent.ctypes.data, len(box.again), is_again=True)
        return cls([block.key for block in box.again], stored, (headers, heads, bodies, absent))


class OpenOutbox(NamedTuple):
    """State of an outbox when it is opened."""

    epoch: int
    """Epoch that continues or begins."""
    slices: list[OutboxSlice]


NO_OUTBOX: Final = OutboxSlice(NO_HANDLER, str, 0, {}, [])


class PublisherOutbox(Protocol):
    """A publisher's outbox."""

    again_wait_s: float
    """Time to wait for subscribers to blocks that are sent again."""

    def open(self, feed: Feed) -> OpenOutbox:
        """Open and lock the files. Raises BlackBoxError if they cannot be opened or another publisher has them."""

    def close(self) -> None:
        """Close the files after the senders have ended. Raises JournalError if a block it took was not written."""


def outbox_of(outbox: PublisherOutbox | str | os.PathLike[str] | None) -> PublisherOutbox | None:
    """Return the outbox in a directory, or the one given."""
    if isinstance(outbox, str | os.PathLike):
        # The outbox is in `archive`, a later folder: import it only if a directory is given.
        made: PublisherOutbox = import_module("blackbox.archive.record.outbox").Outbox(outbox)
        return made
    return outbox


# Compiled: in the sending thread.


@inner
def _hand(sender: Sender, kind: int, header: int, body: int) -> bool:
    """Write a block or control block to the outbox. Return False if that failed."""
    handed = handed_block_at(sender.outbox.record)
    handed.kind = kind
    handed.head = header
    handed.body = msg_data(body)
    handed.body_bytes = msg_size(body)
    handed.first_row = 0
    handed.ts_recv = now_ns()
    handed.held = 0
    handed.in_force = 1
    call_with_address(sender.outbox.function, sender.outbox.record)
    handed.kind = IDLE
    return handed.refused == 0


@inner
def is_kept(sender: Sender, header: int, body: int) -> bool:
    """Write a block to the outbox, if there is one, before it is sent. Return False if that failed.

    The sequences of a written block are never reused, even if the process is killed.
    """
    if sender.outbox.function == 0:
        return True
    finish_header(header, now_ns(), numpy.int64(0))
    return bool(_hand(sender, numpy.int64(BLOCK), header, body) or _refuse(sender))


@inner
def _refuse(sender: Sender) -> bool:
    state = sender_state_at(sender.state)
    state.refused = 1
    state.errno = _REFUSED
    return False


@inner
def is_noted(sender: Sender, note: int, size: int, is_alone: int) -> bool:
    """Write a note to the outbox, if there is one. Return False if that failed."""
    if sender.outbox.function == 0:
        return True
    handed = handed_block_at(sender.outbox.record)
    handed.kind = NOTE
    handed.body = note
    handed.body_bytes = size
    handed.first_row = sender_state_at(sender.state).sequence
    handed.ts_recv = now_ns()
    handed.in_force = is_alone
    call_with_address(sender.outbox.function, sender.outbox.record)
    handed.kind = IDLE
    return handed.refused == 0 or _refuse(sender)


@inner
def tell_outbox(sender: Sender) -> None:
    """Write the current control block to the outbox, if there is one, unless blocks remain to be sent again."""
    state = sender_state_at(sender.state)
    if sender.outbox.function != 0 and state.sequence >= state.kept:
        scratch = sender.scratch.ctypes.data
        _hand(sender, numpy.int64(CONTROL), scratch + TEMPLATE_AT, scratch + BODY_AT)
        call_with_address(sender.outbox.function, sender.outbox.record)  # the kind IDLE flushes the buffer
