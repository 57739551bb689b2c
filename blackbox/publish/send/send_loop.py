"""The compiled loop of a slice's sender: ring records in, blocks out on the slice's XPUB sockets, no GIL."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy

from blackbox.native.compile.jit import njit
from blackbox.native.compile.kept_arguments import kept_at
from blackbox.native.memory.intrinsics import fence, inner
from blackbox.native.memory.records import load_shared, store_shared, swap_shared
from blackbox.native.system.posix import barrier_of_all_threads, monotonic_ns, now_ns, poke, sleep_microseconds
from blackbox.publish.send.batcher import Encoder
from blackbox.publish.send.control_blocks import send_heartbeat
from blackbox.publish.send.drain import drain
from blackbox.publish.send.ring import (
    SURE,
    Closing,
    RingAt,
    Sleep,
    answer,
    ask,
    ring_state_at,
)
from blackbox.publish.send.sender_state import Sender, sender_state_at
from blackbox.transport.libzmq import DONTWAIT, POLLIN, socket_events, wait_readable


class Wake(IntEnum):
    """Why `send_until` returned."""

    SUBSCRIPTIONS = 1
    """Subscriptions wait to be read."""
    RETRY = 2
    """Its deadline has passed."""
    CLOSED = 3
    """The ring is closing and empty, or must end now."""
    FAILED = 4
    """libzmq refused a message, from this thread or a stand-in; see `SenderState.errno`."""
    EPOCH = 5
    """Everything was sent, and `SenderState.next_epoch` must begin."""


_IN_FLIGHT_NS: Final = 2_000
"""Ten times as long as a store takes to become visible to other processors."""
_CREDIT_NS: Final = 200_000
"""Messages that come faster than their price (see `drain`) are sent at once for this long; then they share blocks."""
_SHARED_NS: Final = 100_000
"""Shortest time to fill a shared block."""


@inner
def _linger_ns(sender: Sender, now: int) -> int:
    """Return the least time between blocks of single messages: longer than configured if they come too fast for it."""
    is_fast = sender_state_at(sender.state).paid_until - now > _CREDIT_NS
    return max(sender.linger_ns, _SHARED_NS) if is_fast else sender.linger_ns


@inner
def _linger(sender: Sender, ring: RingAt, encoder: Encoder) -> None:
    """Let a block fill. A message after a pause is sent at once."""
    state = ring_state_at(ring.state)
    # Encoded blocks do not grow.
    while load_shared(state, "closing") == Closing.OPEN and load_shared(state, "bodies_in") == state.bodies_out:
        now = monotonic_ns()
        linger_ns = _linger_ns(sender, now)
        left_ns = sender_state_at(sender.state).sent_at + linger_ns - now
        filled = load_shared(state, "tail") - state.head
        if left_ns <= 0 or left_ns > linger_ns or filled < 0 or filled >= encoder.block_bytes:
            return
        sleep_microseconds(min(100, left_ns // 1000 + 1))


@inner
def _events(sender: Sender) -> int:
    """Return ZMQ_EVENTS of all lines; -1: the context is terminating."""
    scratch = sender.scratch.ctypes.data
    events_a = socket_events(sender.socket_a, scratch) if sender.socket_a != 0 else 0
    events_b = socket_events(sender.socket_b, scratch) if sender.socket_b != 0 else 0
    return events_a | events_b


@inner
def _spin(sender: Sender, ring: RingAt) -> None:
    """Poll until a writer or a subscriber has something, or nothing was sent for `spin_ns`."""
    state = ring_state_at(ring.state)
    until = sender_state_at(sender.state).sent_at + sender.spin_ns
    while monotonic_ns() < until and load_shared(state, "tail") == state.head:
        events = _events(sender)
        if events < 0 or events & POLLIN or load_shared(state, "closing") != Closing.OPEN:
            return


@inner
def _fall_asleep(sender: Sender, ring: RingAt) -> bool:
    """Allow publishing threads to send for this one, and ask for the next message. Return False if one has come."""
    state, sent = ring_state_at(ring.state), sender_state_at(sender.state)
    now = now_ns()  # before the ring is checked: later messages are not older
    if load_shared(state, "tail") == state.head:
        ask(ring, now, numpy.int64(SURE))  # its answer is not needed
        sent.asked_at, sent.asked_from = now, state.head
    store_shared(state, "sleeping", Sleep.ASLEEP)
    fence()
    # `publish` has no fence between its record and its look at `asked`, because that would take a lock. So this thread
    # issues a memory barrier on all threads. If the system has none, it waits for records put by writers that missed
    # the request.
    if not barrier_of_all_threads():
        until = monotonic_ns() + _IN_FLIGHT_NS
        while load_shared(state, "tail") == state.head and monotonic_ns() < until:
            pass
    is_empty: bool = load_shared(state, "tail") == state.head
    if is_empty:
        sent.asked_from = SURE
    return is_empty


@inner
def _sleep(sender: Sender, ring: RingAt, wait_ns: int) -> None:
    """Sleep until a writer or a subscriber has something, for at most `wait_ns`, if the ring is still empty."""
    if sender.spin_ns != 0:
        _spin(sender, ring)
    state = ring_state_at(ring.state)
    # libzmq signals its descriptor once: a heartbeat may have consumed the signal.
    if load_shared(state, "tail") != state.head or _events(sender) & POLLIN:
        return
    if _fall_asleep(sender, ring):
        wait_ms = wait_ns // 1_000_000 + 1
        wait_readable(sender.readable_a, sender.readable_b, sender.wake_fd, wait_ms, sender.sleep_scratch.ctypes.data)
    while not swap_shared(state, "sleeping", Sleep.ASLEEP, Sleep.AWAKE):
        sleep_microseconds(numpy.int64(10))


class StandIn(NamedTuple):
    """State with which a thread sends for a sleeping sender."""

    sender: Sender
    ring: RingAt
    encoder: Encoder


_stand_in_at = kept_at(StandIn)


@njit(nogil=True, cache=True)
def tell(kept: int, handed_over_ns: int) -> None:
    """Answer a sender that asks, see `ring.answer`. If it sleeps, have the ring sent.

    This thread sends if the line is idle and it may stand in for the sender; otherwise it wakes the sender. `kept`:
    address of a `StandIn`.
    """
    sender, ring, encoder = _stand_in_at(kept)
    if answer(ring, handed_over_ns):
        now = monotonic_ns()
        if sender.others_send and now - sender_state_at(sender.state).sent_at >= _linger_ns(sender, now):
            _stand_in(sender, ring, encoder)
        else:
            poke(ring.wake_fd, ring.state)


@inner
def _stand_in(sender: Sender, ring: RingAt, encoder: Encoder) -> None:
    """Send for a sleeping sender; wake it if more messages have come meanwhile.

    Any thread may call this after it has put a record into the ring: libzmq allows sockets to change threads behind a
    fence.
    """
    ring_state = ring_state_at(ring.state)
    if not swap_shared(ring_state, "sleeping", Sleep.ASLEEP, Sleep.STOOD_IN):
        return  # the thread that sends checks the ring once more
    state = sender_state_at(sender.state)
    done = load_shared(ring_state, "tail") == ring_state.head
    if not done and state.epoch == encoder.origin.epoch:
        done = drain(sender, ring, encoder)
        # libzmq may have consumed its descriptor's signal in this thread.
        done = done and not _events(sender) & POLLIN
    if not (_fall_asleep(sender, ring) and done):
        poke(ring.wake_fd, ring.state)


@njit(nogil=True, cache=True)
def send_until(sender: Sender, ring: RingAt, encoder: Encoder, retry_at_ns: int) -> Wake:
    """Send data and heartbeats until Python is needed; return why.

    `retry_at_ns`: monotonic time at which to return Wake.RETRY, once everything now in the ring is sent.
    """
    state = sender_state_at(sender.state)
    ring_state = ring_state_at(ring.state)
    while True:
        events = _events(sender)
        closing = load_shared(ring_state, "closing")
        if events < 0 or closing == Closing.ENDING:
            return Wake.CLOSED
        now = monotonic_ns()
        if now >= state.heartbeat_at:
            state.heartbeat_at = now + sender.heartbeat_ns
            # A full line needs no heartbeat: the blocks in its queue carry the sequences.
            send_heartbeat(sender, numpy.int64(0), numpy.int64(DONTWAIT))
        is_empty = load_shared(ring_state, "tail") == ring_state.head
        if is_empty:
            state.passes += 1
            if closing == Closing.DRAINING or load_shared(state, "next_epoch") != 0:
                return Wake.CLOSED if closing == Closing.DRAINING else Wake.EPOCH
        if events & POLLIN and (is_empty or now >= state.read_at):
            return Wake.SUBSCRIPTIONS
        if not is_empty:
            _linger(sender, ring, encoder)
            if not drain(sender, ring, encoder):
                return Wake.FAILED if state.errno != 0 else Wake.CLOSED
        if now >= retry_at_ns:
            return Wake.RETRY
        if is_empty:
            _sleep(sender, ring, min(state.heartbeat_at, retry_at_ns) - now)
