"""Plain pyzmq, PUB/SUB over TCP, one message or one block packed by hand a frame: topic, a blank, bytes.

Settings: XPUB_NODROP, so that the publisher waits (or drops, where ours does); one part per message, the cheapest form.
High-water marks default to 100,000 frames, because libzmq batches queued messages: both sides' queues together hold a
run, so the publisher never waits. Blocks use 8, like ours, because more would not fit into the cache; there it waits.

    "messages"  f(topic, data)    "nothing"  recv() alone       "late"  recv() and its time; may be slow
    "blocks"    f(block)          "digest"   f(frame): digest of a byte of each
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import zmq

from bench.measure.contest import expect
from bench.processes.child import has_order
from bench.processes.forms import digest_of
from bench.processes.late import late_frames
from bench.rivals.records import blocks, tally_of
from bench.rivals.runs import Runs
from bench.workload.load import LEAD_NS, POOL, TIME_BYTES, Load, due_ns, frames, many, when_due
from bench.workload.tally import DIGEST_FACTOR, DIGEST_MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MARK: Final = 100_000
_MARK_OF_BLOCKS: Final = 8
_TIMEOUT_MS: Final = 30_000
_QUIET_MS: Final = 200
"""Time without a message after the sender's end, after which the rest of a paced run counts as lost."""
_SLEEP_S: Final = 0.05


def publish(address: str, form: str = "messages", mark: int = 0, drops: bool = False) -> None:
    context = zmq.Context()
    socket = publisher_socket(context, address, mark or _mark(form), drops)
    frames(POOL)  # built before timing starts
    runs = Runs()
    for load in runs:
        for _ in range(load.subscribers):
            wait_for_subscription(socket)
        began = _send(socket, blocks(load) if form == "blocks" else many(frames(load), load.messages), load)
        runs.sent(began)
    context.destroy(linger=0)


def _send(socket: zmq.Socket[bytes], outgoing: Iterable[bytes], load: Load) -> int:
    """Send a load; return the time when the first message was sent or due, unix ns."""
    send = socket.send
    if load.rate:
        ready = list(outgoing)
        began = time.time_ns() + LEAD_NS
        for _, frame in when_due((due_ns(load) + began).tolist(), ready):
            send(frame)
    else:
        began = time.time_ns()
        for frame in outgoing:
            send(frame)
    return began


def receive(address: str, form: str = "messages", mark: int = 0, drops: bool = False) -> None:
    context = zmq.Context()
    receiving: dict[str, Callable[[zmq.Socket[bytes], Runs, Load], None]] = {
        "messages": _receive_messages,
        "blocks": _receive_blocks,
        "nothing": partial(_receive_frames, form=form),
        "digest": partial(_receive_frames, form=form),
        "late": _receive_late,
    }
    runs = Runs()
    for load in runs:
        socket = subscriber_socket(context, address, mark or _mark(form))
        runs.receiving()
        receiving[form](socket, runs, load)
        socket.close(linger=0)
    context.destroy(linger=0)


def _receive_messages(socket: zmq.Socket[bytes], runs: Runs, load: Load) -> None:
    tally = tally_of("messages").begin(load.messages)
    count, receive = tally.count, socket.recv
    for _ in range(load.messages):
        topic, _, data = receive().partition(b" ")
        count(topic, data)
    runs.received(tally.ended, tally.state())


def _receive_blocks(socket: zmq.Socket[bytes], runs: Runs, load: Load) -> None:
    tally = tally_of("blocks").begin(load.messages)
    while not tally.ended:
        tally.count(None, socket.recv(copy=False).buffer)
    runs.received(tally.ended, tally.state())


def _receive_frames(socket: zmq.Socket[bytes], runs: Runs, load: Load, form: str) -> None:
    """Receive all frames, digest each if the form says so, and check the last one."""
    socket.rcvtimeo = _TIMEOUT_MS
    receive, last, so_far = socket.recv, b"", 0
    digest_at = len(b"S0000.trade ") + TIME_BYTES + 8

    with suppress(zmq.Again):
        if form == "digest":
            for _ in range(load.messages):
                last = receive()
                so_far = (so_far * DIGEST_FACTOR + last[digest_at]) & DIGEST_MASK
        else:
            for _ in range(load.messages):
                last = receive()
    ended = time.time_ns()

    def findings(_began: int) -> dict[str, Any]:
        pool = frames(load)
        expect("last message", last, pool[(load.messages - 1) % len(pool)])
        if form != "nothing":
            expect("digest of the payloads", so_far, digest_of(load))
        return {"ended": ended, "messages": load.messages}

    runs.found(findings)


def _receive_late(socket: zmq.Socket[bytes], runs: Runs, load: Load) -> None:
    """Receive until all messages have arrived, or the sender has ended and no more arrive."""
    socket.rcvtimeo = _QUIET_MS
    is_slow = runs.order.work.on_slow is not None
    seen: list[int] = []
    found: list[bytes] = []
    receive, clock = socket.recv, time.time_ns
    while len(found) < load.messages:
        try:
            found.append(receive())
            seen.append(clock())
        except zmq.Again:
            if has_order():
                break
        if is_slow:
            time.sleep(_SLEEP_S)
            if has_order():
                break

    runs.found(partial(late_frames, load, seen, found))


def publisher_socket(context: Any, address: str, mark: int = _MARK, drops: bool = False) -> Any:
    """Return a bound XPUB that waits for slow subscribers, unless it `drops`, and delivers each subscription."""
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.XPUB_NODROP, int(not drops))
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    socket.sndhwm = mark
    socket.bind(address)
    return socket


def subscriber_socket(context: Any, address: str, mark: int = _MARK) -> Any:
    """Return a connected SUB of everything."""
    socket = context.socket(zmq.SUB)
    socket.rcvhwm = mark
    socket.connect(address)
    socket.subscribe(b"")
    return socket


def wait_for_subscription(socket: zmq.Socket[bytes]) -> None:
    """Wait for the next subscription, ignoring unsubscriptions."""
    while socket.recv()[:1] != b"\1":
        pass


def _mark(form: str) -> int:
    return _MARK_OF_BLOCKS if form == "blocks" else _MARK
