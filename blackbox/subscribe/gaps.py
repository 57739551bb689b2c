"""Sequence numbers, compiled: duplicates of two lines, gaps per (epoch, slice, key), and blocks that wait their turn.

With one line a gap is final at once: the transport keeps order. With two, the block after a gap is held until the other
line has brought what is missing or has itself passed it; for at most `line_wait_ns`, and not at all for a line that has
been silent for `line_dead_ns`. Times are those of the monotonic clock.
"""

from __future__ import annotations

from typing import Final

import numpy

from blackbox.block.format import MAX_KEY_BYTES, MAX_SEQUENCE, layout_of, read_header
from blackbox.native.intrinsics import inner, int32s_at, int64s_at, saturated
from blackbox.native.jit import njit
from blackbox.native.name_table import FULL
from blackbox.native.posix import poke
from blackbox.native.prefix_trie import Trie, longest_prefix
from blackbox.native.records import load_shared, store_shared
from blackbox.subscribe.doubt import (
    PLAUSIBLE_JUMP,
    believe,
    is_plausible,
    place_for,
    refute,
)
from blackbox.subscribe.epochs import epoch_state_at, judge_epoch
from blackbox.subscribe.held_blocks import (
    HELD_BLOCKS,
    NONE,
    dequeue,
    enqueue,
)
from blackbox.subscribe.join_state import FALLEN_BACK, is_joining, join_state_at
from blackbox.subscribe.repair_queue import ask_archive, repair_queue_at
from blackbox.subscribe.sequences import (
    ARCHIVE,
    UNKNOWN,
    KeyState,
    SequencesAt,
    held_block,
    held_state_at,
    is_alive,
    is_current,
    is_known,
    is_wanted,
    key_state,
    leave_run,
    lose,
    note_behind,
    note_live,
    number_key,
)
from blackbox.subscribe.state import slice_counters_at

DUPLICATE: Final = -1
HOLD: Final = -2
MAKE_ROOM: Final = -4
"""There is no room to hold a block: release those of this key, gaps and all, and judge again."""
IMPLAUSIBLE: Final = -6
"""Its number is too far ahead to be believed at once: `keep_doubted`."""
_NO_LIMIT: Final = (1 << 63) - 1


@inner
def _begin_key(at: SequencesAt, key: int, epoch: int, sequence: int) -> None:
    """Start a key in this epoch, at `sequence`.

    It starts at 0 if the publisher has told all its keys since we subscribed: it cannot have sent this one before. So
    does a key that was known in another epoch: what was sent before we were connected again is missing.
    """
    state = key_state(at, key)
    is_followed = state.expected != UNKNOWN and state.epoch != epoch
    leave_run(at, key, epoch)
    state.expected = state.began = 0 if is_followed or epoch_state_at(at.state).all_told else sequence
    state.epoch = epoch
    for line in range(2):
        state.line_next[line] = 0
        refute(at, state, line)
    state.line_next[ARCHIVE] = 0
    state.asked_to = 0


@njit(nogil=True, cache=True)
def enter_epoch(at: SequencesAt, epoch: int, line: int, proven: int, now_ns: int) -> int:
    """Note that a block of `epoch` came on `line`; return what `judge_epoch` says."""
    return judge_epoch(epoch_state_at(at.state), slice_counters_at(at.counters), epoch, line, proven, now_ns)


@inner
def _passed(at: SequencesAt, key: int, since: int, sequence: int, now_ns: int, waited: bool) -> bool:
    """Whether every line that is alive has passed `sequence`, and archives have.

    These are asked for what is missing from `since` on. `waited`: no line is waited for any longer.
    """
    state = key_state(at, key)
    for line in range(at.lines):
        can_bring = not waited and is_alive(at, line, now_ns) and state.line_next[line] <= sequence
        if can_bring:
            return False
    return at.asks == 0 or _archives_passed(at, key, since, sequence + 1) > sequence


@inner
def _archives_passed(at: SequencesAt, key: int, since: int, stop: int) -> int:
    """Return up to which number archives are done; ask them for [since, stop) if they were not yet."""
    state = key_state(at, key)
    if state.line_next[ARCHIVE] < stop and state.asked_to < stop:
        first = max(since, state.asked_to)
        if first >= stop or ask_archive(at.repair, key, state.epoch, first, stop):
            state.asked_to = stop
    return state.line_next[ARCHIVE]


@inner
def enter_recorded(at: SequencesAt, epoch: int) -> bool:
    """Note that archives bring blocks of an epoch while we join; False: it is over."""
    join = join_state_at(at.join)
    if epoch > join.at_epoch:
        if join.at_epoch == 0 and join.opens != 0:
            join.open_epoch = epoch
        join.at_epoch = epoch
    is_at: bool = epoch == join.at_epoch
    return is_at


@inner
def begin_recorded(at: SequencesAt, key: int, epoch: int, sequence: int) -> bool:
    """Take a block that an archive has brought while we join; False: it is of an epoch that is over.

    Where the slice began at a time, the first epoch begins where the archive does; later ones at 0.
    """
    state = key_state(at, key)
    if state.expected != UNKNOWN and epoch <= state.epoch:
        return epoch == state.epoch
    is_open = state.expected == UNKNOWN and epoch == join_state_at(at.join).open_epoch
    leave_run(at, key, epoch)
    state.expected = state.began = sequence if is_open else 0
    state.epoch = epoch
    state.asked_to = 0
    for line in range(3):
        state.line_next[line] = 0
    return True


@inner
def can_fall_back(at: SequencesAt, has_keys: bool) -> bool:
    """Whether archives can go on from what comes next of all keys, as far as is known."""
    is_known = epoch_state_at(at.state).all_told != 0 if has_keys else key_state(at, 0).expected != UNKNOWN
    answers: int = load_shared(repair_queue_at(at.repair), "answers")
    return at.asks != 0 and is_known and answers != 0


@inner
def fall_back(at: SequencesAt, epoch: int) -> None:
    """Go back to the archives in a run, of each key from the next expected number on."""
    join = join_state_at(at.join)
    join.from_epoch = join.at_epoch = epoch
    join.opens = join.open_epoch = 0
    join.falls += 1
    store_shared(join, "phase", FALLEN_BACK)
    poke(repair_queue_at(at.repair).wake_fd, at.state)


@inner
def note_ends(at: SequencesAt, epoch: int) -> None:
    """Take note of how far keys are known to have come in a run."""
    for key in range(int64s_at(at.keys.used, 1)[0]):
        state = key_state(at, key)
        state.live_next = known_end(at, key) if state.expected != UNKNOWN and state.epoch == epoch else 0


@inner
def is_behind(at: SequencesAt, key: int, epoch: int) -> bool:
    """Whether a key is in this epoch, or an earlier one."""
    state = key_state(at, key)
    return state.expected != UNKNOWN and state.epoch <= epoch


@inner
def known_end(at: SequencesAt, key: int) -> int:
    """Return the first number beyond all that any line is known to have sent of a key, in its epoch."""
    state = key_state(at, key)
    return max(state.expected, state.line_next[0], state.line_next[1])


@inner
def lose_rests(at: SequencesAt) -> None:
    """Count as lost what epochs that are over are known to have sent, and has not come."""
    for key in range(int64s_at(at.keys.used, 1)[0]):
        state = key_state(at, key)
        if state.expected != UNKNOWN and state.epoch != epoch_state_at(at.state).epoch and state.first == NONE:
            lose_before(at, key, known_end(at, key))


@inner
def lose_before(at: SequencesAt, key: int, stop: int) -> None:
    """Count as lost all from the expected number of a key up to `stop`."""
    state = key_state(at, key)
    if stop > state.expected:
        lose(at, key, stop - state.expected)
        state.expected = stop


@inner
def come_to(at: SequencesAt, key: int, sequence: int) -> None:
    """Note that all lines and archives have passed every number before `sequence`."""
    state = key_state(at, key)
    for line in range(3):
        state.line_next[line] = max(state.line_next[line], sequence)


@inner
def reaches(at: SequencesAt, key: int, epoch: int, sequence: int) -> bool:
    """Whether all before a number of a key has come, in the epoch that goes on."""
    return is_wanted(at, key, epoch) and key_state(at, key).expected >= sequence


@inner
def has_room(at: SequencesAt, body_bytes: int) -> bool:
    """Whether one more block may wait."""
    held_state = held_state_at(at.held_state)
    return held_state.taken < HELD_BLOCKS and body_bytes <= at.held_limit - held_state.held_bytes


@inner
def let_go(at: SequencesAt, place: int) -> int:
    """Free the place of a held block that nobody waits for any more; return how many numbers it had."""
    held = held_block(at, place)
    count = held.count
    dequeue(held_state_at(at.held_state), key_state(at, held.key), at.held, place)
    slice_counters_at(at.counters).held -= 1
    return count


@inner
def pass_by(at: SequencesAt, key: int, epoch: int, sequence: int) -> None:
    """Note that archives have nothing more of a key before a number."""
    if is_wanted(at, key, epoch):
        state = key_state(at, key)
        state.line_next[ARCHIVE] = max(state.line_next[ARCHIVE], sequence)


@inner
def _end_of_held(at: SequencesAt, state: KeyState, sequence: int) -> int:
    """Return where the run of missing numbers before `sequence` begins; what is expected if archives were not asked."""
    if state.first == NONE:
        return state.expected
    last = held_block(at, state.last)
    if state.asked_to < last.sequence:
        return state.expected
    end = last.sequence + last.count
    return end if end <= sequence else state.expected


@inner
def judge(
    at: SequencesAt,
    key: int,
    line: int,
    epoch: int,
    sequence: int,
    count: int,
    body_bytes: int,
    now_ns: int,
    force: int,
) -> int:
    """What to do with a block of `count` numbers whose epoch goes on. `force`: do not wait for another line.

    Return the first number to deliver, from the block's first one on (0 unless it overlaps what was delivered), or
    DUPLICATE, IMPLAUSIBLE, HOLD or MAKE_ROOM. Count gaps and duplicates and move the expected sequence on, except for
    the last three.
    """
    if not is_known(at, key, epoch):
        _begin_key(at, key, epoch, sequence)
    state = key_state(at, key)
    end = sequence + count
    if line != ARCHIVE and not is_plausible(at, state, line, sequence, end, now_ns):
        return IMPLAUSIBLE
    counters = slice_counters_at(at.counters)
    state.line_next[line] = max(state.line_next[line], end)
    from_line = numpy.int64(line != ARCHIVE)  # archives bring more than they were asked for
    if end <= state.expected:
        counters.duplicates = saturated(counters.duplicates, count * from_line)
        return DUPLICATE
    if sequence <= state.expected:
        first = state.expected - sequence
        counters.duplicates = saturated(counters.duplicates, first * from_line)
        state.expected = end
        return first
    # A gap. The other line may still bring what is missing.
    if force == 0 and not _passed(at, key, _end_of_held(at, state, sequence), sequence - 1, now_ns, False):
        return HOLD if has_room(at, body_bytes) else MAKE_ROOM
    if state.first != NONE and is_current(at, epoch) and held_block(at, state.first).sequence < sequence:
        return MAKE_ROOM  # what is held before it goes first
    lose(at, key, sequence - state.expected)
    state.expected = end
    return 0


@inner
def hold(at: SequencesAt, key: int, sequence: int, count: int, body_bytes: int, now_ns: int, came_ns: int) -> int:
    """Take a place for a block that `judge` said to HOLD; return its number. `came_ns`: see `came_at`."""
    place = place_for(at, key, sequence, count, body_bytes)
    held = held_block(at, place)
    held.since_ns = now_ns
    held.came_ns = came_ns
    enqueue(held_state_at(at.held_state), key_state(at, key), at.held, place)
    slice_counters_at(at.counters).held += 1
    return place


@inner
def next_ready(at: SequencesAt, key: int, now_ns: int, force: int, until: int) -> int:
    """Return the place of the next held block of `key` whose turn has come, or NONE; `release` then frees it.

    Only blocks before sequence number `until` count. `force`: its turn has come, gap or no gap.
    """
    place = key_state(at, key).first
    if place == NONE:
        return NONE
    held = held_block(at, place)
    if held.sequence >= until:
        return NONE
    waited = now_ns - held.since_ns >= at.line_wait_ns
    is_next = held.sequence <= key_state(at, key).expected
    if is_joining(at.join):  # archives may be at a run before the one of what is held
        is_next |= force != 0
        return place if is_next and is_current(at, key_state(at, key).epoch) else NONE
    missing = key_state(at, key).expected
    is_next |= force != 0
    return place if is_next or _passed(at, key, missing, held.sequence - 1, now_ns, waited) else NONE


@inner
def release(at: SequencesAt, place: int) -> int:
    """Free a place that `next_ready` gave and count what is missing before it; return as `judge`."""
    held = held_block(at, place)
    state = key_state(at, held.key)
    sequence, count = held.sequence, held.count
    counters = slice_counters_at(at.counters)
    dequeue(held_state_at(at.held_state), state, at.held, place)
    counters.held -= 1
    end = sequence + count
    if state.expected == UNKNOWN:
        return DUPLICATE  # forgotten meanwhile: nobody wants it
    if end <= state.expected:
        counters.duplicates = saturated(counters.duplicates, count)
        return DUPLICATE
    first = max(0, state.expected - sequence)
    counters.duplicates = saturated(counters.duplicates, first)
    if sequence > state.expected:
        lose(at, held.key, sequence - state.expected)
    state.expected = end
    return first


@inner
def oldest_held(at: SequencesAt) -> int:
    """Return the place of the block that has waited longest, or NONE."""
    return held_state_at(at.held_state).oldest


@inner
def next_of_another_key(at: SequencesAt, place: int) -> int:
    """Return the place of the next block that came behind the one at `place` and is of another key, or NONE."""
    key = held_block(at, place).key
    while place != NONE and held_block(at, place).key == key:
        place = held_block(at, place).newer
    return place


@inner
def came_at(at: SequencesAt, place: int) -> int:
    """Return when a held block came, ns since 1970, if the time that it waited is no lag; else 0."""
    return held_block(at, place).came_ns


@inner
def key_at(at: SequencesAt, place: int) -> int:
    """Return the key of the held block at a place."""
    return held_block(at, place).key


@inner
def settle(at: SequencesAt, key: int, now_ns: int, until: int) -> None:
    """Count as lost what every live line has passed before `until`, if no block is held; archives are asked first."""
    state = key_state(at, key)
    if state.expected == UNKNOWN or state.first != NONE or is_joining(at.join):
        return
    reached = max(state.line_next[0], state.line_next[1])
    for line in range(at.lines):
        if is_alive(at, line, now_ns):
            reached = min(reached, state.line_next[line])
    reached = min(reached, until)
    if reached > state.expected and at.asks != 0:
        reached = min(reached, _archives_passed(at, key, state.expected, reached))
    if reached > state.expected:
        lose(at, key, reached - state.expected)
        state.expected = reached


@inner
def _note_next(at: SequencesAt, key: int, line: int, epoch: int, following: int, baseline: int, now_ns: int) -> None:
    if is_joining(at.join):
        note_live(at, key, following)
        return
    if not is_known(at, key, epoch):
        if not epoch_state_at(at.state).all_told and baseline == 0:
            return
        _begin_key(at, key, epoch, following)
    state = key_state(at, key)
    if baseline != 0 and state.expected - following > PLAUSIBLE_JUMP:
        _begin_key(at, key, epoch, following)  # the known number came from an unconfirmed block
    if baseline != 0 and state.doubted_end[line] <= following:
        believe(at, state, line, now_ns)
    elif baseline != 0:
        refute(at, state, line)
    elif not is_plausible(at, state, line, following, following, now_ns):
        slice_counters_at(at.counters).implausible_control += 1
        return
    state.line_next[line] = max(state.line_next[line], following)
    settle(at, key, now_ns, numpy.int64(_NO_LIMIT))


@njit(nogil=True, cache=True)
def note_sequences(
    at: SequencesAt, filters: Trie, header_at: int, body: int, line: int, epoch: int, baseline: int, now_ns: int
) -> None:
    """Take in the next sequence number of every key on `line`, from a heartbeat or confirmation.

    Only keys that `filters` let through count. Missing messages are counted when no line can bring them and nothing is
    held. `baseline`: the filters are in force from here on, so that keys become known which were not.
    """
    header = read_header(header_at)
    layout = layout_of(header)
    if is_joining(at.join):
        join_state_at(at.join).is_told = 1
    offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    following = int64s_at(body + layout.payloads, header.count)
    is_done = not is_joining(at.join)
    for row in range(header.count):
        start = numpy.int64(offsets[row])
        size = numpy.int64(offsets[row + 1]) - start
        name = body + layout.topics + start
        sane = size <= MAX_KEY_BYTES and 0 <= following[row] <= MAX_SEQUENCE
        if sane and longest_prefix(filters, name, size) != 0:
            key = number_key(at, name, size)
            if key != FULL:
                _note_next(at, key, line, epoch, following[row], baseline, now_ns)
                is_done &= is_known(at, key, epoch) and key_state(at, key).expected >= following[row]
    if is_done and is_current(at, epoch):
        epoch_state_at(at.state).done_epoch = epoch
        epoch_state_at(at.state).done_ns = header.ts_out


@njit(nogil=True, cache=True)
def forget_uncovered(at: SequencesAt, filters: Trie) -> None:
    """Forget keys that `filters` no longer let through: subscribed to again, they begin anew."""
    known = int64s_at(at.keys.used, 1)[0]
    starts = int64s_at(at.keys.starts, known + 1)
    for key in range(known):
        if longest_prefix(filters, at.keys.text + starts[key], starts[key + 1] - starts[key]) == 0:
            state = key_state(at, key)
            state.expected = UNKNOWN
            state.live_next = 0
            note_behind(at, key)
            for line in range(2):
                refute(at, state, line)
