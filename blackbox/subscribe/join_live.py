"""Put what archives bring before what comes live, and go over to that without a seam: see `join_state`.

Compiled; runs in the slice thread.
"""

from __future__ import annotations

from blackbox.block.format import (
    Header,
    span_of,
)
from blackbox.native.intrinsics import inner, int64s_at
from blackbox.native.posix import now_ns, poke
from blackbox.native.prefix_trie import Trie
from blackbox.native.records import store_shared
from blackbox.subscribe.epochs import epoch_state_at
from blackbox.subscribe.gaps import (
    DUPLICATE,
    MAKE_ROOM,
    begin_recorded,
    come_to,
    enter_recorded,
    has_room,
    hold,
    is_behind,
    judge,
    lose_before,
    reaches,
)
from blackbox.subscribe.held_blocks import NONE
from blackbox.subscribe.join_state import (
    LIVE,
    MOST_ENDED,
    REPLAYING,
    SWITCHING,
    join_state_at,
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
    note_late,
    put_aside,
    row_of,
)
from blackbox.subscribe.sequences import (
    ARCHIVE,
    UNKNOWN,
    has_losses,
    held_block,
    is_current,
    key_state,
    note_behind,
    note_live,
)
from blackbox.subscribe.slice_memory import (
    BODY_AT,
    SliceAt,
    TableAt,
)
from blackbox.subscribe.state import FAILED, slice_counters_at
from blackbox.subscribe.worker_queues import fail, tell_live, tell_losses
from blackbox.transport.libzmq import msg_data


@inner
def _known_keys(at: SliceAt) -> int:
    """Return how many keys have a number."""
    known: int = int64s_at(at.sequences.keys.used, 1)[0]
    return known


@inner
def _be_live(at: SliceAt, table: TableAt) -> int:
    """Take what comes live from now on, and tell the workers that listen: 0 or FAILED."""
    join = join_state_at(at.sequences.join)
    epoch_state_at(at.sequences.state).all_told = 1  # of keys that the publisher has not told it has sent nothing
    join.lives += 1
    join.has_left_over = 1
    result: int = tell_live(at, table)
    store_shared(join, "phase", LIVE)
    poke(at.news_fd, at.state)
    return result


@inner
def _lose_end(at: SliceAt, epoch: int, key: int, stop: int) -> None:
    """Lose what a run is known to have sent of a key before a number, unless nobody knows where the key began."""
    join, state = join_state_at(at.sequences.join), key_state(at.sequences, key)
    is_short = is_behind(at.sequences, key, epoch)
    if state.expected == UNKNOWN:
        is_short = join.at_epoch != 0 and epoch != join.open_epoch
    if stop > 0 and is_short:
        begin_recorded(at.sequences, key, epoch, 0)
        lose_before(at.sequences, key, stop)


@inner
def _end_runs(at: SliceAt, table: TableAt, epoch: int) -> int:
    """Lose what runs before an epoch are known to have sent, and archives have not brought: 0 or FAILED."""
    join, current = join_state_at(at.sequences.join), epoch_state_at(at.sequences.state).epoch
    join.settled = max(join.settled, join.ended - MOST_ENDED)
    while join.settled < join.ended and join.ended_epoch[join.settled % MOST_ENDED] < epoch:
        place = join.settled % MOST_ENDED
        for key in range(_known_keys(at)):
            _lose_end(at, join.ended_epoch[place], key, key_state(at.sequences, key).ended_next[place])
        join.settled += 1
        if has_losses(at.sequences) and tell_losses(at, table, now_ns()) != 0:
            return FAILED
    if join.at_epoch < epoch and current != 0 and current < epoch:  # archives are ahead of what comes live
        for key in range(_known_keys(at)):
            _lose_end(at, current, key, key_state(at.sequences, key).live_next)
        if has_losses(at.sequences):
            return tell_losses(at, table, now_ns())
    return 0


@inner
def go_over(at: SliceAt, table: TableAt) -> int:
    """Go over to what comes live, if all before it has come: 0 or FAILED."""
    join = join_state_at(at.sequences.join)
    epoch = epoch_state_at(at.sequences.state).epoch
    if join.phase == LIVE or join.is_told == 0 or join.behind != 0 or epoch == 0 or join.at_epoch != epoch:
        return 0
    if join.images != 0:
        return 0
    if _end_runs(at, table, epoch) != 0:
        return FAILED
    return _be_live(at, table)


@inner
def _joins_live(at: SliceAt, key: int, header: Header) -> bool:
    """Whether all before the live block at hand has come.

    With keys not yet while archives bring what is older: what is live of one key would come amid that of others.
    """
    join = join_state_at(at.sequences.join)
    if join.images != 0:
        return False
    if at.key_bytes != 0 and join.phase != SWITCHING:
        return False
    if header.sequence == 0 and join.at_epoch == header.epoch:  # nothing is before it
        begin_recorded(at.sequences, key, header.epoch, 0)
    has_come: bool = reaches(at.sequences, key, header.epoch, header.sequence)
    return has_come


@inner
def order_joining(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, now: int, tick: int) -> int:
    """Deliver the live block at hand if all before it has come; else let it wait, or go: 0 or FAILED."""
    join = join_state_at(at.sequences.join)
    span = span_of(header, msg_data(at.scratch + BODY_AT))
    note_live(at.sequences, key, header.sequence + span)
    if at.key_bytes == 0:
        join.is_told = 1
    result = 0
    if _joins_live(at, key, header):
        line, size = line_of(at, header), header.body_bytes
        verdict = judge(at.sequences, key, line, header.epoch, header.sequence, span, size, tick, YES)
        first_row = row_of(at, verdict)
        if first_row != DUPLICATE:
            note_late(at, key)
            result = deliver_block(at, table, trie, first_row, now)
        if result == 0:
            result = deliver_held(at, table, trie, key, NO, END)
        note_behind(at.sequences, key)
    elif join.phase != REPLAYING and has_room(at.sequences, header.body_bytes):
        if not leave_shared_buffer(at):
            return fail(at)
        put_aside(at, hold(at.sequences, key, header.sequence, span, header.body_bytes, tick, now))
    else:
        let_all_go(at)
        if join.phase == SWITCHING:
            join.phase = REPLAYING
        slice_counters_at(at.counters).let_go += span
    return result if result != 0 else go_over(at, table)


@inner
def pass_gone(at: SliceAt, table: TableAt, trie: Trie, key: int, epoch: int, stop: int) -> int:
    """Lose what archives have no more before a number, and does not wait here: 0 or FAILED."""
    if _end_runs(at, table, epoch) != 0:
        return FAILED
    if enter_recorded(at.sequences, epoch) and begin_recorded(at.sequences, key, epoch, 0):
        if deliver_held(at, table, trie, key, YES, stop) != 0:
            return FAILED
        lose_before(at.sequences, key, stop)
    return _go_on(at, table, trie, key)


@inner
def _begin_key(at: SliceAt, key: int, epoch: int, sequence: int) -> bool:
    """Do as `begin_recorded`; what begins anywhere begins no later than what waits, or has yet to come live."""
    state = key_state(at.sequences, key)
    if is_current(at.sequences, epoch):
        if join_state_at(at.sequences.join).is_told != 0:
            sequence = min(sequence, state.live_next)
        if state.first != NONE:
            sequence = min(sequence, held_block(at.sequences, state.first).sequence)
    is_of: bool = begin_recorded(at.sequences, key, epoch, sequence)
    return is_of


@inner
def pass_quiet(at: SliceAt, table: TableAt, trie: Trie, key: int, epoch: int, following: int) -> int:
    """Begin a key live, of which nothing came since the time at which the slice begins: 0 or FAILED."""
    if enter_recorded(at.sequences, epoch) and key_state(at.sequences, key).expected == UNKNOWN:
        _begin_key(at, key, epoch, following)
    return _go_on(at, table, trie, key)


@inner
def _go_on(at: SliceAt, table: TableAt, trie: Trie, key: int) -> int:
    """Deliver what waited of a key for what is now known to be missing, after that is told: 0 or FAILED."""
    result = tell_losses(at, table, now_ns()) if has_losses(at.sequences) else 0
    if result == 0:
        result = deliver_held(at, table, trie, key, NO, END)
    note_behind(at.sequences, key)
    return result if result != 0 else go_over(at, table)


@inner
def order_replayed(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, now: int, tick: int) -> int:
    """Deliver the block at hand, which an archive has brought to who joins: 0 or FAILED."""
    if _end_runs(at, table, header.epoch) != 0:
        return FAILED
    is_at = enter_recorded(at.sequences, header.epoch)
    if not is_at or not _begin_key(at, key, header.epoch, header.sequence):
        slice_counters_at(at.counters).stale += header.count
        return 0
    span = span_of(header, msg_data(at.scratch + BODY_AT))
    verdict = MAKE_ROOM
    while verdict == MAKE_ROOM:
        verdict = judge(at.sequences, key, ARCHIVE, header.epoch, header.sequence, span, header.body_bytes, tick, YES)
        if verdict == MAKE_ROOM and deliver_held_before(at, table, trie, key, YES, header.sequence) != 0:
            return FAILED
    result = deliver_recorded(at, table, trie, key, verdict, now)
    note_behind(at.sequences, key)
    return result if result != 0 else go_over(at, table)


@inner
def _enter_heard(at: SliceAt, table: TableAt, trie: Trie, epoch: int) -> int:
    """Go on to the present run, of which archives have brought nothing yet, with what waits from its beginning on."""
    if _end_runs(at, table, epoch) != 0:
        return FAILED
    is_open = join_state_at(at.sequences.join).at_epoch == 0
    enter_recorded(at.sequences, epoch)
    for key in range(_known_keys(at)):
        first = key_state(at.sequences, key).first
        if first != NONE and not is_open and held_block(at.sequences, first).sequence == 0:
            begin_recorded(at.sequences, key, epoch, 0)
            if deliver_held(at, table, trie, key, NO, END) != 0:
                return FAILED
            note_behind(at.sequences, key)
    return 0


@inner
def note_reached(at: SliceAt, table: TableAt, trie: Trie, heard: int) -> int:
    """Take note that archives have brought all that they have, and let what comes live wait: 0 or FAILED.

    `heard`: the last epoch that they have heard of. All that they have of those before has come.
    """
    join = join_state_at(at.sequences.join)
    if join.phase == REPLAYING:
        join.phase = SWITCHING
    epoch = epoch_state_at(at.sequences.state).epoch
    if epoch == 0 or heard != epoch:
        return 0
    # Of who begins at a time, and has got nothing yet, not all archives may have been asked.
    is_begun = join.at_epoch != 0 or (join.is_told != 0 and join.behind == 0)
    if is_begun and join.at_epoch < epoch and _enter_heard(at, table, trie, epoch) != 0:
        return FAILED
    return go_over(at, table)


@inner
def go_over_with_gap(at: SliceAt, table: TableAt, trie: Trie) -> int:
    """Go over to what comes live though archives lack some of what was before: 0 or FAILED."""
    join, epoch = join_state_at(at.sequences.join), epoch_state_at(at.sequences.state).epoch
    if join.phase == LIVE or join.is_told == 0 or epoch == 0:
        return 0
    if _end_runs(at, table, epoch) != 0:
        return FAILED
    if not enter_recorded(at.sequences, epoch):
        return 0
    for key in range(_known_keys(at)):
        following = key_state(at.sequences, key).live_next
        if following > 0:
            _begin_key(at, key, epoch, following)
            come_to(at.sequences, key, following)
    join.phase = LIVE  # from here on what is missing is lost
    for key in range(_known_keys(at)):
        if key_state(at.sequences, key).live_next > 0:
            result = deliver_held(at, table, trie, key, YES, END)
            if result != 0:
                return result
    return _be_live(at, table)
