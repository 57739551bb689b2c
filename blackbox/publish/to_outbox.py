"""Give blocks to a slice's outbox before they are sent: compiled, in the thread that sends."""

from __future__ import annotations

import errno
from typing import Final

import numpy

from blackbox.block.block_handler import BLOCK, CONTROL, IDLE, handed_block_at
from blackbox.block.encode import finish_header
from blackbox.native.intrinsics import call_with_address, inner
from blackbox.native.posix import now_ns
from blackbox.publish.sender_state import BODY_AT, TEMPLATE_AT, Sender, sender_state_at
from blackbox.transport.libzmq import msg_data, msg_size

_REFUSED: Final = errno.EIO


@inner
def _hand(sender: Sender, kind: int, header: int, body: int) -> bool:
    """Give a block, or control block, to the outbox. False: it was not written."""
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
def is_kept(sender: Sender, key: int, header: int, body: int, sequence: int) -> bool:
    """Write a block into the outbox before it is sent, if there is one that lacks it. False: it was not written.

    Once it is written, its number is never used again, whichever process is killed.
    """
    if sender.outbox.function == 0 or sequence < sender.kept[key]:
        return True
    finish_header(header, sequence, now_ns(), numpy.int64(0))
    if _hand(sender, numpy.int64(BLOCK), header, body):
        return True
    state = sender_state_at(sender.state)
    state.refused = 1
    state.errno = _REFUSED
    return False


@inner
def tell_outbox(sender: Sender) -> None:
    """Give the outbox, if there is one, the control block just made: it keeps a mark of what that says."""
    if sender.outbox.function != 0:
        scratch = sender.scratch.ctypes.data
        _hand(sender, numpy.int64(CONTROL), scratch + TEMPLATE_AT, scratch + BODY_AT)
        call_with_address(sender.outbox.function, sender.outbox.record)  # as IDLE: it writes what it has gathered
