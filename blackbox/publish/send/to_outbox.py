"""Compiled: write blocks to a slice's outbox before they are sent, in the sending thread."""

from __future__ import annotations

import errno
from typing import Final

import numpy

from blackbox.block.batch.block_handler import BLOCK, CONTROL, IDLE, NOTE, handed_block_at
from blackbox.block.form.encode import finish_header
from blackbox.native.memory.intrinsics import call_with_address, inner
from blackbox.native.system.posix import now_ns
from blackbox.publish.send.sender_state import BODY_AT, TEMPLATE_AT, Sender, sender_state_at
from blackbox.transport.libzmq import msg_data, msg_size

_REFUSED: Final = errno.EIO


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
