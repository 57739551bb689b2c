"""The hop from the slice thread to its workers: ROUTER to DEALERs compared with a PUSH socket per worker.

    ours    slice thread's own hand-over: ROUTER --worker id | envelope | body==> DEALER x 1, 2, 4 threads
    rival   the same messages:   PUSH x 1, 2, 4 --envelope | body==> PULL x 1, 2, 4 threads
    limit   the same envelopes made and bodies copied by reference, without sending

All compiled, without the GIL, in one process over inproc, with the queue sizes of a subscriber. Every block goes to
every worker and its body is shared, so this measures the hand-over. Each worker checks the block numbers.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import numpy
import zmq
from numba import njit
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, Figure, Spent, expect
from bench.measure.cost import cpu_seconds
from blackbox.block.batch.block_handler import NO_HANDLER
from blackbox.native.memory.intrinsics import int64s_at
from blackbox.native.system.posix import now_ns
from blackbox.native.tables.name_table import HINT_WORDS, Numbering
from blackbox.receive.deliver.conflation import Conflation
from blackbox.receive.deliver.worker_queues import hand_over
from blackbox.receive.deliver.worker_state import WorkerAt, WorkerTableAt
from blackbox.receive.order.state import Order
from blackbox.receive.slice_memory import BODY_AT, COPY_AT, ENVELOPE_AT, SCRATCH_WORDS, SliceAt
from blackbox.receive.slow_subscriber import WARN
from blackbox.receive.state import SliceState
from blackbox.receive.statistics import Counters
from blackbox.transport.libzmq import (
    MESSAGE_BYTES,
    SNDMORE,
    init_messages,
    msg_close,
    msg_copy,
    msg_data,
    msg_init,
    msg_init_size,
    msg_recv,
    msg_send,
)
from blackbox.transport.shared_memory.reader import NO_READER

HAND_OVERS = 60_000
ENVELOPE_BYTES = 2_048
BODY_BYTES = 65_536
QUEUE_BLOCKS = 16
WORD = 7
"""First word of every body."""
WAITS = "nothing lost: the sender waits"


@njit(nogil=True)
def _make_body(message: int) -> None:
    msg_init_size(message, BODY_BYTES)
    int64s_at(msg_data(message), 1)[0] = WORD


@njit(nogil=True)
def _close_body(message: int) -> None:
    msg_close(message)


@njit(nogil=True)
def _begin(scratch: int, number: int) -> None:
    """Make a new envelope with its number; keep the body."""
    msg_init_size(scratch + ENVELOPE_AT, ENVELOPE_BYTES)
    int64s_at(msg_data(scratch + ENVELOPE_AT), 1)[0] = number


@njit(nogil=True)
def _hand_over_all(at: SliceAt, blocks: int) -> int:
    for number in range(blocks):
        _begin(at.scratch, number)
        for worker in range(at.workers):
            if hand_over(at, worker, now_ns(), 0, at.scratch + ENVELOPE_AT, at.scratch + BODY_AT) != 0:
                return -1
        msg_close(at.scratch + ENVELOPE_AT)
    return 0


@njit(nogil=True)
def _push_all(sockets: NDArray[numpy.int64], scratch: int, blocks: int) -> int:
    copy = scratch + COPY_AT
    for number in range(blocks):
        _begin(scratch, number)
        for socket in sockets:
            msg_init(copy)
            msg_copy(copy, scratch + ENVELOPE_AT)
            if msg_send(copy, socket, SNDMORE) < 0:
                return -1
            msg_init(copy)
            msg_copy(copy, scratch + BODY_AT)
            if msg_send(copy, socket, 0) < 0:
                return -1
        msg_close(scratch + ENVELOPE_AT)
    return 0


@njit(nogil=True)
def _copy_all(workers: int, scratch: int, blocks: int) -> int:
    copy = scratch + COPY_AT
    for number in range(blocks):
        _begin(scratch, number)
        for _ in range(workers):
            for part in (ENVELOPE_AT, BODY_AT):
                msg_init(copy)
                msg_copy(copy, scratch + part)
                msg_close(copy)
        msg_close(scratch + ENVELOPE_AT)
    return 0


@njit(nogil=True)
def _take_all(socket: int, scratch: int, blocks: int, found: NDArray[numpy.int64]) -> None:
    """Receive `blocks` blocks; count those in order and sum the first word of each body."""
    init_messages(scratch, 2)
    for number in range(blocks):
        if msg_recv(scratch, socket, 0) < 0 or msg_recv(scratch + MESSAGE_BYTES, socket, 0) < 0:
            break
        found[0] += int64s_at(msg_data(scratch), 1)[0] == number
        found[1] += int64s_at(msg_data(scratch + MESSAGE_BYTES), 1)[0]
    msg_close(scratch)
    msg_close(scratch + MESSAGE_BYTES)


def _slice(router: int, workers: int, scratch: NDArray[numpy.int64]) -> tuple[SliceAt, Any]:
    """Return the arguments of the slice thread's hand-over, and the object that keeps their memory alive."""
    state, counters = SliceState(), Counters(workers)
    topics, sets, conflation = Numbering(1, 16), numpy.zeros(1, numpy.int32), Conflation(1)
    hints = numpy.zeros(HINT_WORDS, numpy.uint64)
    order = Order(1, 1, 0, 1, 0, counters.slice)
    fields: list[Any] = [
        *(0, router, 0, 0, state.address, scratch.ctypes.data, counters.slice.address, counters.workers_address),
        *(workers, topics.at, sets.ctypes.data, hints.ctypes.data, order.at, 0, 0, 0, 0),
        *(WARN, QUEUE_BLOCKS, conflation.at, 10**18, 10**18, 10**9, NO_HANDLER),
        *(WorkerAt(*[0] * len(WorkerAt._fields)), WorkerTableAt(*[0] * len(WorkerTableAt._fields)), 0, NO_READER),
        *(0, 0, 0),
    ]
    return SliceAt(*fields), (state, counters, topics, sets, hints, conflation, order)


def _hop(workers: int, with_router: bool) -> Figure:
    blocks = HAND_OVERS // workers
    scratch = numpy.zeros(SCRATCH_WORDS, numpy.int64)
    body = scratch.ctypes.data + BODY_AT
    _make_body(body)
    context = zmq.Context(io_threads=0)
    sends = [context.socket(zmq.ROUTER if with_router else zmq.PUSH) for _ in range(1 if with_router else workers)]
    for number, socket in enumerate(sends):
        socket.sndhwm = 1
        socket.sndtimeo = 5_000
        if with_router:
            socket.router_mandatory = True
        socket.bind(f"inproc://hop-{number}")
    takers = [context.socket(zmq.DEALER if with_router else zmq.PULL) for _ in range(workers)]
    founds = [numpy.zeros(2, numpy.int64) for _ in takers]
    places = [numpy.zeros(2 * MESSAGE_BYTES // 8, numpy.int64) for _ in takers]
    threads = []
    for number, socket in enumerate(takers):
        socket.rcvhwm = QUEUE_BLOCKS
        socket.rcvtimeo = 5_000
        if with_router:
            socket.routing_id = bytes([number + 1])
        socket.connect(f"inproc://hop-{0 if with_router else number}")
        arguments = (socket.underlying, places[number].ctypes.data, blocks, founds[number])
        threads.append(threading.Thread(target=_take_all, args=arguments))
        if with_router:
            socket.send(b"")
            sends[0].recv_multipart()
    at, _alive = _slice(sends[0].underlying, workers, scratch)
    before, started = cpu_seconds(), time.perf_counter()
    for thread in threads:
        thread.start()
    if with_router:
        status = _hand_over_all(at, blocks)
    else:
        status = _push_all(numpy.array([each.underlying for each in sends]), scratch.ctypes.data, blocks)
    for thread in threads:
        thread.join()
    seconds, cpu_s = time.perf_counter() - started, cpu_seconds() - before
    _close_body(body)
    context.destroy(linger=0)
    expect("status", status, 0)
    for found in founds:
        expect("blocks in order", int(found[0]), blocks)
        expect("sum over bodies", int(found[1]), WORD * blocks)
    return Figure(blocks * workers / seconds / 1e6, Spent(subscriber_cpu_s=cpu_s, messages=blocks * workers))


def _copied(workers: int) -> float:
    scratch = numpy.zeros(SCRATCH_WORDS, numpy.int64)
    _make_body(scratch.ctypes.data + BODY_AT)
    started = time.perf_counter()
    _copy_all(workers, scratch.ctypes.data, HAND_OVERS // workers)
    seconds = time.perf_counter() - started
    _close_body(scratch.ctypes.data + BODY_AT)
    return HAND_OVERS / seconds / 1e6


def test_hop(benchmark: BenchmarkFixture) -> None:
    """M hand-overs/s."""
    contest = Contest("From slice thread to workers", "M hand-overs/s", topology=__doc__, axis="workers")
    for workers in (1, 2, 4):
        contest.add("ROUTER to DEALERs", partial(_hop, workers, True), promise=WAITS, at=workers)
        contest.add("a PUSH and PULL each", partial(_hop, workers, False), "rival", WAITS, at=workers)
        contest.add("copied by reference only", partial(_copied, workers), "limit", at=workers)
    contest.run(benchmark)
