"""Encode columns as blocks and append them to a journal, in compiled code: a slice thread without a socket."""

from __future__ import annotations

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.append import append
from blackbox.archive.journal_state import journal_at
from blackbox.block.block_handler import BLOCK
from blackbox.block.encode import Rows, finish_header, plan_bytes, write_body, write_template
from blackbox.block.format import HEADER_BYTES
from blackbox.native.intrinsics import int64s_at
from blackbox.native.jit import njit
from blackbox.publish.batcher import Encoder, plan_next


class Journal(NamedTuple):
    """Where the blocks of one slice go."""

    state: int
    """Address of its JournalState."""
    header: int
    """Address of memory for a block's header."""
    body: int
    """Address of memory for a body, 8-byte aligned."""
    body_room: int


@njit(nogil=True, cache=True)
def put_rows(
    journal: Journal,
    encoder: Encoder,
    rows: Rows,
    groups: int,
    start: int,
    next_sequence: NDArray[numpy.int64],
    clock: NDArray[numpy.int64],
) -> tuple[int, int]:
    """Append the encoder's selection, grouped by key, from `start` on; return where it stopped, and 0.

    Or, where a body needs more room than there is, its bytes. A block is sent and received at the latest time so far of
    its slice's messages: `clock` holds that time, and the time before which it stays.
    """
    at = start
    for group in range(groups):
        key = encoder.selection.keys[group]
        stop = numpy.int64(encoder.selection.stops[group])
        while at < stop:
            plan = plan_next(encoder, rows, at, stop)
            size = int(plan_bytes(plan))
            if size > journal.body_room:
                return at, size
            selection = encoder.selection
            write_body(journal.body, plan, rows, selection.order, selection.topics, encoder.table, encoder.distinct)
            count = plan.stop - plan.start
            now = clock[0]
            for time in int64s_at(journal.body, count):
                if now < time < clock[1]:
                    now = time
            clock[0] = now
            write_template(journal.header, plan, journal.body, encoder.checksum, encoder.origin, numpy.int64(0))
            finish_header(journal.header, next_sequence[key], now, numpy.int64(0))
            next_sequence[key] += count
            state = journal_at(journal.state)
            state.kind = BLOCK
            state.head, state.body, state.body_bytes = journal.header, journal.body, size
            state.first_row = state.held = 0
            state.ts_recv = now
            append(journal.state)
            at = plan.stop
    return at, 0


assert HEADER_BYTES % 8 == 0
