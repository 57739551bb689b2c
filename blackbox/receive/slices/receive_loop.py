"""The compiled loop of a slice thread: receive, check, order, match, pass to workers. It never takes the GIL."""

from __future__ import annotations

import numpy

from blackbox.block.batch.block_handler import AGAIN_MS, handed_block_at
from blackbox.block.batch.block_handler import CONTROL as CONTROL_BLOCK
from blackbox.block.form.format import (
    FLAG_CONTROL,
    FLAG_END,
    FLAG_IMAGE,
    FLAG_RECORDED,
    HEADER_BYTES,
    HEARTBEAT_KEY,
    TRACE_KEY,
    Header,
    block_header_at,
    read_header,
)
from blackbox.block.form.validate import Fault, check_block
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, call_with_address, copy_bytes, inner, int32s_at, int64s_at
from blackbox.native.memory.records import load_shared
from blackbox.native.system.posix import monotonic_ns, now_ns
from blackbox.native.tables.prefix_trie import Trie, longest_prefix
from blackbox.receive.clocks import clock_state_at, note_clocks, note_own_clock
from blackbox.receive.deliver.arbitration import (
    drop_all_doubted,
    drop_doubted,
    enter_epoch,
    in_force,
    look_at_end,
    order,
    order_recorded,
    take_ends,
    take_note,
)
from blackbox.receive.deliver.conflation import flush, pending
from blackbox.receive.deliver.deliver_in_order import ALL, deliver_held, let_all_go, line_of, look_at_held
from blackbox.receive.deliver.dispatch import hand_block, hand_idle
from blackbox.receive.deliver.worker_loop import idle_ms
from blackbox.receive.deliver.worker_queues import fail, tell_dropped
from blackbox.receive.deliver.worker_state import NEVER, WorkerReason, worker_state_at
from blackbox.receive.order.epochs import AHEAD_NS, EpochVerdict, epoch_state_at
from blackbox.receive.order.state import is_catching_up, is_clean, order_state_at
from blackbox.receive.slice_memory import BODY_AT, COPY_AT, HEAD_AT, HEADER_AT, KEY_AT, WAITING_AT, SliceAt, TableAt
from blackbox.receive.slow_subscriber import Action, act_on_stuck, may_call_python
from blackbox.receive.state import HELD_MS, IDLE_MS, Reason, Stopping, slice_counters_at, slice_state_at
from blackbox.receive.trace.rings import note_relay
from blackbox.transport.libzmq import (
    POLLIN,
    is_descriptor_readable,
    msg_close,
    msg_data,
    msg_init_size,
    msg_move,
    msg_size,
    socket_events,
    wait_readable,
)
from blackbox.transport.shared_memory.reader import (
    connection_of,
    may_sleep,
    reader_state_at,
    receive_both,
    receive_from_socket,
    wake_up,
    written,
)
from blackbox.transport.udp.receiver import receive_lines

_TURNS = 32
"""Blocks received between two turns of Python."""
# Pass these as int64, not as literals: numba would compile the callee for each literal.
_NO = numpy.int64(0)
_YES = numpy.int64(1)


@inner
def _receive(at: SliceAt, keys: Trie) -> int:
    """Receive one block into the scratch messages; return its frames, 0 if none is available, -1 if libzmq failed."""
    if at.shared.state != 0:
        return receive_both(at.shared, keys, at.sub, at.scratch + KEY_AT, at.scratch + WAITING_AT)
    if at.multicast.lines != 0:
        return receive_lines(at.multicast, keys, at.sub, at.scratch + KEY_AT)
    return receive_from_socket(at.sub, at.scratch + KEY_AT)


@inner
def _spin(at: SliceAt) -> bool:
    """Poll until a message arrives; return False after the spin time."""
    state = slice_state_at(at.state)
    now = now_ns()
    until = min(slice_counters_at(at.counters).last_received_ns, now) + at.spin_ns
    if at.multicast.lines != 0:
        return now < until  # the loop itself looks for datagrams
    while now <= now_ns() < until:
        if at.shared.state != 0 and written(at.shared) != reader_state_at(at.shared.state).cursor:
            return True
        if socket_events(at.sub, at.scratch) & POLLIN:
            return True
        if load_shared(state, "asked") != 0 or load_shared(state, "stopping") != 0:
            return True
    return False


@inner
def _sleep(at: SliceAt, wait_ms: int) -> int:
    """Sleep until a message may have arrived; return 0, COMMAND if the shared memory's publisher ended, or FAILED."""
    if at.spin_ns != 0 and _spin(at):
        return 0
    shared = at.shared.state != 0
    if shared and not may_sleep(at.shared):
        return 0
    other = numpy.int64(0)
    if shared:
        other = -1 - connection_of(at.shared)
    elif at.multicast.lines != 0:
        other = -1 - at.multicast.readable
    if wait_readable(at.sub, other, at.wake_fd, wait_ms, at.scratch) < 0:
        return fail(at)
    if shared:
        wake_up(at.shared)
        if is_descriptor_readable(at.scratch) and written(at.shared) == reader_state_at(at.shared.state).cursor:
            reader_state_at(at.shared.state).is_over = 1
            return Reason.COMMAND
    return 0


@inner
def _align(at: SliceAt) -> bool:
    """Copy the header to HEAD; copy the body if libzmq left it unaligned in a larger buffer."""
    header = at.scratch + HEADER_AT
    copy_bytes(at.scratch + HEAD_AT, msg_data(header), min(msg_size(header), HEADER_BYTES))
    body = at.scratch + BODY_AT
    place = msg_data(body)
    if place & 7 == 0:
        return True
    fresh = at.scratch + COPY_AT
    size = msg_size(body)
    if msg_init_size(fresh, size) != 0:
        return False
    copy_bytes(msg_data(fresh), place, size)
    msg_move(body, fresh)
    msg_close(fresh)
    return True


@inner
def _has_reserved_key(at: SliceAt) -> bool:
    key = at.scratch + KEY_AT
    size = msg_size(key)
    reserved = size > 0 and bytes_at(msg_data(key), 1)[0] == 0
    return reserved or size > MAX_KEY_BYTES


@inner
def _fault(at: SliceAt, frames: int, now: int) -> int:
    """Return the fault of the current block; 0: none."""
    if frames != 3:
        return Fault.FRAMES
    key, body = at.scratch + KEY_AT, at.scratch + BODY_AT
    fault = check_block(
        at.scratch + HEAD_AT,
        msg_size(at.scratch + HEADER_AT),
        msg_data(body),
        msg_size(body),
        msg_data(key),
        msg_size(key),
        at.key_rule,
    )
    if fault == Fault.VERSION:
        slice_state_at(at.state).other_version = numpy.int64(block_header_at(at.scratch + HEAD_AT).version) + 1
    if fault == Fault.KEY_RULE:
        slice_state_at(at.state).other_key_rule = numpy.int64(block_header_at(at.scratch + HEAD_AT).key_rule) + 1
    return fault if fault != 0 else _fault_here(at, now)


@inner
def _fault_here(at: SliceAt, now: int) -> int:
    """Return why the current block, itself valid, is wrong in this slice; 0: it is not."""
    header = read_header(at.scratch + HEAD_AT)
    if (header.flags & FLAG_CONTROL != 0) != _has_reserved_key(at):
        return Fault.RESERVED_KEY
    if header.slice_id != at.slice_id:
        slice_state_at(at.state).other_slice = header.slice_id + 1
        return Fault.SLICE
    return Fault.EPOCH if header.epoch > now + AHEAD_NS else 0


@inner
def _idle(at: SliceAt, table: TableAt, trie: Trie) -> int:
    """Without messages: release held blocks that are due, check for stuck workers, sleep."""
    counters = slice_counters_at(at.counters)
    tick = monotonic_ns()
    slice_state_at(at.state).idle_ns = tick
    result = look_at_held(at, table, trie, tick)
    if result != 0:
        return result
    if at.action == Action.CONFLATE and pending(at) > 0:
        result = flush(at, table, trie, now_ns(), _NO)
        if result != 0:
            return result
    if act_on_stuck(at, tick):
        return 0
    wait_ms = AGAIN_MS if hand_idle(at) else IDLE_MS
    if tick > slice_state_at(at.state).look_again_at_ns and may_call_python(at, tick):
        return Reason.COMMAND
    if counters.held > 0 or (at.action == Action.CONFLATE and pending(at) > 0):
        wait_ms = min(wait_ms, HELD_MS)
    wait_ms = min(wait_ms, idle_ms(worker_state_at(at.own.state)))
    return _sleep(at, numpy.int64(wait_ms))


@njit(nogil=True, cache=True)
def finish(at: SliceAt, table: TableAt, trie: Trie) -> int:
    """Deliver everything that waits in the slice thread, with gaps; after TERMINATE count it as due.

    Return 0 or FAILED. A slice that began in the past and is not live yet ends where it is: archives have all that
    follows.
    """
    result = numpy.int64(0)
    if is_catching_up(at.order) and order_state_at(at.order.state).lives == 0:
        let_all_go(at)
    else:
        result = deliver_held(at, table, trie, ALL)
    drop_all_doubted(at)
    if result == 0 and at.action == Action.CONFLATE and pending(at) > 0:
        result = flush(at, table, trie, now_ns(), _YES)
    for worker in range(at.workers + 1):
        if result == 0 and tell_dropped(at, table, worker, order_state_at(at.order.state).epoch, now_ns()) > 0:
            result = numpy.int64(Reason.FAILED)
    return result


@inner
def _drain(at: SliceAt, table: TableAt, trie: Trie, nothing_left: bool) -> int:
    """Return DRAINED if everything received before the stop was passed on, FAILED, or 0 if there may be more."""
    state = slice_state_at(at.state)
    state.drain_left -= 1
    if not nothing_left and state.drain_left > 0:
        return 0
    return Reason.DRAINED if finish(at, table, trie) == 0 else Reason.FAILED


@inner
def _is_heartbeat(at: SliceAt, header: Header) -> bool:
    """Return True if the current control block is a heartbeat that only reports ends of lines."""
    key = at.scratch + KEY_AT
    text = bytes_at(msg_data(key), 2)
    named = msg_size(key) == len(HEARTBEAT_KEY) and text[0] == HEARTBEAT_KEY[0] and text[1] == HEARTBEAT_KEY[1]
    state = slice_state_at(at.state)
    ends = header.flags & FLAG_END != 0 or state.finished_lines != 0
    line = line_of(at, header)
    confirmed = state.confirmed_lines >> line & 1 != 0
    return named and confirmed and not ends and header.epoch == epoch_state_at(at.order.epochs).epoch


@inner
def _is_trace(at: SliceAt) -> bool:
    """Return True if the current control block has the times of a relay."""
    key = at.scratch + KEY_AT
    text = bytes_at(msg_data(key), len(TRACE_KEY))
    return msg_size(key) == len(TRACE_KEY) and text[1] == TRACE_KEY[1] and text[2] == TRACE_KEY[2]


@inner
def _heartbeat(at: SliceAt, table: TableAt, trie: Trie, keys: Trie, header: Header, now: int, tick: int) -> int:
    line = line_of(at, header)
    epoch = header.epoch
    if enter_epoch(at, epoch, line, _NO, tick) == EpochVerdict.REFUTED:
        drop_doubted(at, line)
    note_clocks(clock_state_at(at.clock), slice_counters_at(at.counters), epoch, line, header.ts_out, now)
    doubted = count_doubted(at)
    if not take_ends(at, keys, line, in_force(at, line), tick):
        return 0
    hand_control(at, now, _YES, doubted)
    result = look_at_end(at, table, trie, tick)
    if result == 0 and slice_state_at(at.state).wants_clean != 0 and is_clean(order_state_at(at.order.state)):
        return Reason.COMMAND
    return result


@njit(nogil=True, cache=True)
def count_doubted(at: SliceAt) -> int:
    """Return how many control blocks had implausible sequences so far."""
    doubted: int = slice_counters_at(at.counters).implausible_control
    return doubted


@njit(nogil=True, cache=True)
def hand_control(at: SliceAt, now: int, in_force: int, doubted: int) -> None:
    """Pass the current control block to the block handler, if any, unless its sequences are implausible.

    `doubted`: `count_doubted` before its sequences were noted.
    """
    if at.handler.function != 0 and count_doubted(at) == doubted:
        handed_block_at(at.handler.record).in_force = in_force
        hand_block(at, numpy.int64(CONTROL_BLOCK), at.scratch + HEAD_AT, at.scratch + BODY_AT, _NO, now)


@inner
def _repairs_wait(at: SliceAt) -> bool:
    """Return True if blocks from archives are waiting."""
    state = order_state_at(at.order.state)
    is_more: bool = at.repair_socket != 0 and load_shared(state, "sent") != state.taken
    return is_more


@inner
def _receive_repair(at: SliceAt) -> int:
    """Do the same as `_receive` for blocks from archives."""
    if not _repairs_wait(at):
        return 0
    frames = receive_from_socket(at.repair_socket, at.scratch + KEY_AT)
    order_state_at(at.order.state).taken += frames > 0
    return frames


@inner
def _accept_repair(at: SliceAt, table: TableAt, trie: Trie, keys: Trie, frames: int) -> int:
    """Order a block or note from archives. Return 0 or FAILED.

    The thread that sent it has checked it.
    """
    if frames == 3 and msg_size(at.scratch + HEADER_AT) == 0:
        return take_note(at, table, trie, keys)
    now = now_ns()
    if not _align(at):
        return fail(at)
    fault = _fault_here(at, now)
    header = read_header(at.scratch + HEAD_AT)
    if fault != 0 or header.flags & FLAG_CONTROL != 0:
        counters = slice_counters_at(at.counters)
        counters.malformed += 1
        counters.faults[fault] += 1
        order_state_at(at.order.state).images -= numpy.int64(header.flags & FLAG_IMAGE != 0)
        return 0
    block_header_at(at.scratch + HEAD_AT).flags |= FLAG_RECORDED
    return order_recorded(at, table, trie, keys, now)


@inner
def _accept(at: SliceAt, table: TableAt, trie: Trie, keys: Trie, frames: int) -> int:
    """Check, count and order the current block. Return 0, CONTROL or FAILED."""
    counters = slice_counters_at(at.counters)
    now, tick = now_ns(), monotonic_ns()
    note_own_clock(clock_state_at(at.clock), counters, now, tick)
    if not _align(at):
        return fail(at)
    fault = _fault(at, frames, now)
    if fault != 0:
        counters.malformed += 1
        counters.faults[fault] += 1
        return 0
    header = read_header(at.scratch + HEAD_AT)
    counters.last_received_ns = now
    if header.flags & FLAG_CONTROL != 0:
        counters.control += 1
        if _is_heartbeat(at, header):
            return _heartbeat(at, table, trie, keys, header, now, tick)
        if _is_trace(at):
            note_relay(at.relay_times, header, msg_data(at.scratch + BODY_AT))
            return 0
        return Reason.CONTROL
    counters.received += header.count
    counters.blocks += 1
    counters.body_bytes += header.body_bytes
    state = slice_state_at(at.state)
    if header.body_bytes > state.largest_body:
        state.largest_body = header.body_bytes
    return order(at, table, trie, now, tick)


@njit(nogil=True, cache=True)
def run_slice(at: SliceAt, table: TableAt, trie: Trie, keys: Trie) -> int:
    """Receive and pass on until Python is needed; return COMMAND, CONTROL, DRAINED, TERMINATED or FAILED."""
    state = slice_state_at(at.state)
    own = worker_state_at(at.own.state)
    result, frames = numpy.int64(0), numpy.int64(1)
    turns = state.reads + _TURNS
    while result == 0:
        stopping = load_shared(state, "stopping")
        if stopping == Stopping.TERMINATE:
            return Reason.TERMINATED
        # Continuous commands must not starve blocks.
        if load_shared(state, "asked") != 0 and (frames == 0 or state.reads >= turns):
            return Reason.COMMAND
        state.reads += 1
        # Live blocks take turns with archives, or their queue would overflow.
        frames = _receive_repair(at) if state.reads & 1 else numpy.int64(0)
        if frames > 0:
            result = _accept_repair(at, table, trie, keys, frames)
        elif frames == 0:
            frames = _receive(at, keys)
            if frames > 0:
                result = _accept(at, table, trie, keys, frames)
        if frames < 0:
            return fail(at)
        if stopping != 0 and result != Reason.FAILED:
            ended = _drain(at, table, trie, frames == 0)
            if ended != 0:
                return ended
        if own.tick_ns != NEVER and stopping == 0 and idle_ms(own) == 0:
            call_with_address(at.ask, WorkerReason.TICK)
        if frames == 0 and not _repairs_wait(at):
            result = _idle(at, table, trie)
    return result


@njit(nogil=True, cache=True)
def renumber(at: SliceAt, trie: Trie) -> None:
    """Find the match set of every known topic again, after callbacks have changed."""
    known = int64s_at(at.topics.used, 1)[0]
    starts = int64s_at(at.topics.starts, known + 1)
    set_of_topic = int32s_at(at.set_of_topic, at.topics.capacity)
    for topic in range(known):
        size = starts[topic + 1] - starts[topic]
        set_of_topic[topic] = longest_prefix(trie, at.topics.text + starts[topic], size)
