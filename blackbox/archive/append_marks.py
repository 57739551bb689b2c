"""Append marks to a segment, in compiled code: what `blackbox.archive.marks` reads."""

from __future__ import annotations

from typing import Final

import numpy

from blackbox.archive.format import ENTRY_BYTES, FILE_HEAD_BYTES, mark_bytes
from blackbox.archive.index_entry import add_mark_to_entry
from blackbox.archive.journal_record import chain_after
from blackbox.archive.journal_state import (
    AT_ENDED,
    AT_LINK,
    AT_RECORDS,
    BUFFER_BYTES,
    COUNTER_BYTES,
    SEALED_MAX,
    end_of_segment,
    flush,
    flush_entries,
    journal_at,
    seal,
)
from blackbox.archive.key_positions import KeysAt, forget_keys, keys_that_differ, write_keys
from blackbox.archive.marks import (
    AFTER_KILL,
    EPOCH_BEGIN,
    NAMES_LEFT_OUT,
    RECORDER_BEGIN,
    RECORDER_END,
    SEGMENT_BEGIN,
    SEGMENT_END,
    Totals,
    write_mark,
)
from blackbox.block.format import read_header
from blackbox.native.intrinsics import bytes_at, copy_bytes, inner
from blackbox.native.jit import njit

_MARK_BODY_BYTES: Final = BUFFER_BYTES // 2
"""A mark that would be larger leaves out the names of its keys."""


@inner
def keys_of(at: int) -> KeysAt:
    """Return where the numbers of the keys lie."""
    keys = journal_at(at).keys
    return KeysAt(keys[0], keys[1], keys[2], keys[3], keys[4], keys[5], keys[6], keys[7], keys[8])


@inner
def put_mark(at: int, kind: int, ts: int, ts_out: int, heard: int) -> None:
    """Append a mark. `heard`: address of a control block's body, whose keys are named where numbers differ; or 0."""
    state = journal_at(at)
    flags = names = topic_bytes = ts_event = numpy.int64(0)
    if kind == RECORDER_BEGIN and state.after_kill != 0:
        flags = numpy.int64(AFTER_KILL)
    if heard != 0:
        ts_event = read_header(state.head).ts_in
        names, topic_bytes = keys_that_differ(keys_of(at), state.head, heard)
    size = mark_bytes(0)
    if names > 0:
        body_bytes = write_keys(keys_of(at), state.head, heard, names, topic_bytes, numpy.int64(0))
        if body_bytes > _MARK_BODY_BYTES:
            names, flags = numpy.int64(0), numpy.int64(NAMES_LEFT_OUT)
        else:
            size = mark_bytes(body_bytes)
    if state.buffered + size > BUFFER_BYTES and not flush(at):
        return
    start = end_of_segment(at)
    place = state.buffer + state.buffered
    bytes_at(place, size)[:] = 0
    body_bytes = numpy.int64(0)
    if names > 0:
        body = place + mark_bytes(0)
        body_bytes = write_keys(keys_of(at), state.head, heard, names, topic_bytes, body)
    totals = Totals(state.day_records, state.day_messages, state.day_marks, state.chain)
    write_mark(place, kind, flags, ts, state.epoch, names, ts_out, ts_event, totals, body_bytes)
    state.day_marks += 1
    state.chain = chain_after(state.chain, place, at + AT_LINK)
    state.buffered += size
    grown = state.entries + ENTRY_BYTES * SEALED_MAX
    if not add_mark_to_entry(grown, start, size, state.epoch):
        seal(at)
        if state.error == 0:
            add_mark_to_entry(grown, start, size, state.epoch)


@inner
def begin_segment(at: int, ts: int) -> None:
    """Mark the beginning of a segment that holds nothing yet, and that of the recorder."""
    state = journal_at(at)
    if end_of_segment(at) == FILE_HEAD_BYTES:
        put_mark(at, numpy.int64(SEGMENT_BEGIN), ts, numpy.int64(0), numpy.int64(0))
        if state.started != 0:
            put_mark(at, numpy.int64(RECORDER_BEGIN), state.started, numpy.int64(0), numpy.int64(0))
            state.started = 0


@njit(nogil=True, cache=True)
def finish(at: int, is_last: bool, ts: int) -> bool:
    """Mark the end of the segment, unless it holds nothing, and write what is in memory, entries and all.

    `is_last`: the recorder stops.
    """
    state = journal_at(at)
    is_ended = state.error == 0 and end_of_segment(at) > FILE_HEAD_BYTES
    if is_ended:
        if is_last:
            put_mark(at, numpy.int64(RECORDER_END), ts, numpy.int64(0), numpy.int64(0))
        put_mark(at, numpy.int64(SEGMENT_END), ts, numpy.int64(0), numpy.int64(0))
    done = flush(at)
    if is_ended and state.error == 0:  # a refused write has cut the mark off
        copy_bytes(at + AT_ENDED, at + AT_RECORDS, COUNTER_BYTES)
    seal(at)
    flush_entries(at)
    return bool(done)


@inner
def begin_epoch(at: int, epoch: int, ts_recv: int, ts_out: int) -> None:
    """Mark an epoch that begins. It may be below those before, when a publisher's clock was set back."""
    state = journal_at(at)
    if epoch != state.epoch:
        state.epoch = epoch
        forget_keys(keys_of(at))
        put_mark(at, numpy.int64(EPOCH_BEGIN), ts_recv, ts_out, numpy.int64(0))
