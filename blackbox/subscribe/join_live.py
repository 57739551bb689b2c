"""Put what archives bring before what comes live, and go over to that without a seam: see `join_state`.

Compiled; runs in the slice thread.
"""

from __future__ import annotations

import numpy

from blackbox.block.format import (
    Header,
    span_of,
)
from blackbox.native.intrinsics import inner
from blackbox.native.posix import now_ns, poke
from blackbox.native.prefix_trie import Trie
from blackbox.native.records import store_shared
from blackbox.subscribe.epochs import epoch_state_at
from blackbox.subscribe.gaps import (
    DUPLICATE,
    MAKE_ROOM,
    begin_recorded,
    come_to,
    has_room,
    hold,
    is_behind,
    judge,
    lose_before,
    reaches,
)
from blackbox.subscribe.join_state import (
    LIVE,
    MOST_ENDED,
    REPLAYING,
    SWITCHING,
    join_state_at,
    note_live,
)
from blackbox.subscribe.release import (
    END,
    NO,
    YES,
    deliver_block,
    deliver_held,
    deliver_held_before,
    deliver_recorded,
    leave_shared_buffer,
    let_all_go,
    line_of,
    put_aside,
    row_of,
)
from blackbox.subscribe.sequences import ARCHIVE, has_losses
from blackbox.subscribe.slice_memory import (
    BODY_AT,
    SliceAt,
    TableAt,
)
from blackbox.subscribe.state import FAILED, slice_counters_at
from blackbox.subscribe.worker_queues import fail, tell_live, tell_losses
from blackbox.transport.libzmq import msg_data


@inner
def _be_live(at: SliceAt, table: TableAt) -> int:
    """Take what comes live from now on, and tell the workers that listen: 0 or FAILED."""
    join = join_state_at(at.sequences.join)
    join.lives += 1
    result: int = tell_live(at, table)
    store_shared(join, "phase", LIVE)
    poke(at.news_fd, at.state)
    return result


@inner
def go_over(at: SliceAt, table: TableAt, key: int) -> int:
    """Go over to what comes live, if all before it has come: 0 or FAILED."""
    join = join_state_at(at.sequences.join)
    epoch = epoch_state_at(at.sequences.state).epoch
    if join.phase == LIVE or join.is_told == 0 or not reaches(at.sequences, key, epoch, join.live_next):
        return 0
    return _be_live(at, table)


@inner
def order_joining(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, now: int, tick: int) -> int:
    """Deliver the live block at hand if all before it has come; else let it wait, or go: 0 or FAILED."""
    join = join_state_at(at.sequences.join)
    span = span_of(header, msg_data(at.scratch + BODY_AT))
    note_live(at.sequences.join, header.sequence + span)
    result = 0
    if reaches(at.sequences, key, header.epoch, header.sequence):
        line, size = line_of(at, header), header.body_bytes
        verdict = judge(at.sequences, key, line, header.epoch, header.sequence, span, size, tick, YES)
        first_row = row_of(at, verdict)
        if first_row != DUPLICATE:
            result = deliver_block(at, table, trie, first_row, now)
        if result == 0:
            result = deliver_held(at, table, trie, key, NO, END)
    elif join.phase == SWITCHING and has_room(at.sequences, header.body_bytes):
        if not leave_shared_buffer(at):
            return fail(at)
        put_aside(at, hold(at.sequences, key, header.sequence, span, header.body_bytes, tick, now))
    else:
        let_all_go(at)
        if join.phase == SWITCHING:
            join.phase = REPLAYING
        slice_counters_at(at.counters).let_go += span
    return result if result != 0 else go_over(at, table, key)


@inner
def pass_gone(at: SliceAt, table: TableAt, key: int, epoch: int, stop: int) -> int:
    """Lose what archives have no more before a number: 0 or FAILED."""
    if begin_recorded(at.sequences, key, epoch, 0):
        lose_before(at.sequences, key, stop)
    return tell_losses(at, table, now_ns()) if has_losses(at.sequences) else 0


@inner
def _end_runs(at: SliceAt, table: TableAt, key: int, epoch: int) -> int:
    """Lose what runs before an epoch are known to have sent, and archives have not brought: 0 or FAILED."""
    join = join_state_at(at.sequences.join)
    for number in range(max(0, join.ended - MOST_ENDED), join.ended):
        ended, following = join.ended_epoch[number % MOST_ENDED], join.ended_next[number % MOST_ENDED]
        if ended < epoch and is_behind(at.sequences, key, ended):
            result = pass_gone(at, table, key, ended, following)
            if result != 0:
                return result
    return 0


@inner
def order_replayed(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, now: int, tick: int) -> int:
    """Deliver the block at hand, which an archive has brought to who joins: 0 or FAILED."""
    if _end_runs(at, table, key, header.epoch) != 0:
        return FAILED
    if not begin_recorded(at.sequences, key, header.epoch, header.sequence):
        slice_counters_at(at.counters).stale += header.count
        return 0
    span = span_of(header, msg_data(at.scratch + BODY_AT))
    verdict = MAKE_ROOM
    while verdict == MAKE_ROOM:
        verdict = judge(at.sequences, key, ARCHIVE, header.epoch, header.sequence, span, header.body_bytes, tick, YES)
        if verdict == MAKE_ROOM and deliver_held_before(at, table, trie, key, YES, header.sequence) != 0:
            return FAILED
    result = deliver_recorded(at, table, trie, key, verdict, now)
    return result if result != 0 else go_over(at, table, key)


@inner
def note_reached(at: SliceAt, table: TableAt, heard: int) -> int:
    """Take note that archives have brought all that they have, and let what comes live wait: 0 or FAILED.

    `heard`: the last epoch that they have heard of.
    """
    join = join_state_at(at.sequences.join)
    if join.phase == REPLAYING:
        join.phase = SWITCHING
    epoch = epoch_state_at(at.sequences.state).epoch
    if join.is_told != 0 and join.live_next == 0 and epoch != 0 and heard == epoch:
        if _end_runs(at, table, numpy.int64(0), epoch) != 0:
            return FAILED
        begin_recorded(at.sequences, 0, epoch, 0)  # the publisher's run has not begun to send
        return go_over(at, table, 0)
    return 0


@inner
def go_over_with_gap(at: SliceAt, table: TableAt, trie: Trie) -> int:
    """Go over to what comes live though archives lack some of what was before: 0 or FAILED."""
    join, epoch = join_state_at(at.sequences.join), epoch_state_at(at.sequences.state).epoch
    if join.phase == LIVE or join.is_told == 0 or epoch == 0:
        return 0
    if _end_runs(at, table, numpy.int64(0), epoch) != 0:
        return FAILED
    begin_recorded(at.sequences, 0, epoch, join.live_next)
    come_to(at.sequences, 0, join.live_next)
    join.phase = LIVE  # from here on what is missing is lost
    result = deliver_held(at, table, trie, numpy.int64(0), YES, END)
    return result if result != 0 else _be_live(at, table)
