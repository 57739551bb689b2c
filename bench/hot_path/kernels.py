"""The steps of the hot path, each on its own: one core, one block of 2,000 messages repeated, no threads.

encode ─(wire)─> check ─> order ─> match ─> group ─> hand over ─> callback
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy
import zmq
from numba import njit
from numpy.typing import NDArray

from bench.workload.messages import TOPICS, make_pool
from bench.workload.tally import tally
from blackbox.block.batch.block_handler import NO_HANDLER
from blackbox.block.batch.worker_envelope import TOPICS_AT, envelope_bytes
from blackbox.block.form.block import Block, distinct_scratch, topic_table
from blackbox.block.form.encode import (
    Distinct,
    Origin,
    Rows,
    TopicTable,
    finish_header,
    number_header,
    plan_block,
    plan_bytes,
    write_body,
    write_template,
)
from blackbox.block.form.format import FLAG_NUMBERS, HEADER_BYTES, MAX_BODY_BYTES, read_header
from blackbox.block.form.rows import PayloadColumns, as_rows
from blackbox.block.form.sampling import trace_mask
from blackbox.block.form.validate import check_block
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes
from blackbox.native.tables.name_table import HINT_WORDS, Numbering
from blackbox.native.tables.prefix_trie import Trie
from blackbox.receive.callbacks.callbacks import Callback
from blackbox.receive.callbacks.match_table import Filters, Table
from blackbox.receive.deliver.conflation import Conflation
from blackbox.receive.deliver.dispatch import group_by_set, match_topics
from blackbox.receive.deliver.worker_state import WorkerAt, WorkerTableAt
from blackbox.receive.order.epoch_changes import begin_live_epoch
from blackbox.receive.order.epochs import EpochVerdict, epoch_state_at, judge_epoch
from blackbox.receive.order.losses import number_key
from blackbox.receive.order.order import judge
from blackbox.receive.order.state import Order
from blackbox.receive.slice_memory import SliceAt, TableAt
from blackbox.receive.state import SliceCounters, slice_counters_at
from blackbox.transport.libzmq import (
    MESSAGE_BYTES,
    SNDMORE,
    close_messages,
    init_messages,
    msg_copy,
    msg_data,
    msg_init,
    msg_init_size,
    msg_recv,
    msg_send,
)
from blackbox.transport.shared_memory.reader import NO_READER
from blackbox.transport.udp.receiver import NO_LINES

BLOCK_MESSAGES: Final = 2_000
_PREFIXES: Final = 5
_MESSAGES: Final = 3
_MORE = numpy.int64(SNDMORE)
_LAST = numpy.int64(0)


class Kernel(NamedTuple):
    """A step; `run(times)` applies it to a block `times` times."""

    name: str
    what: str
    run: Callable[[int], object]

    def seconds(self, times: int) -> float:
        """Return the seconds that `times` runs took."""
        started = time.perf_counter()
        self.run(times)
        return time.perf_counter() - started

    def ns_a_message(self, times: int) -> float:
        """Return the ns per message of `times` runs."""
        return self.seconds(times) * 1e9 / (times * BLOCK_MESSAGES)


@njit(nogil=True)
def _encode(
    rows: Rows,
    order: NDArray[numpy.int32],
    topic_index: NDArray[numpy.int32],
    table: TopicTable,
    distinct: Distinct,
    target: int,
    header: int,
    times: int,
) -> None:
    origin = Origin(0, 0, 0, 1)
    for _ in range(times):
        plan = plan_block(rows, order, topic_index, 0, len(order), MAX_BODY_BYTES, table, distinct, FLAG_NUMBERS)
        write_body(target, plan, rows, order, topic_index, table, distinct)
        write_template(header, plan, target, True, origin, 1)
        number_header(header, 0, 0, 0)
        finish_header(header, 1, 0)


@njit(nogil=True)
def _check(head: int, body: int, body_bytes: int, times: int) -> int:
    fault = 0
    for _ in range(times):
        fault |= check_block(head, HEADER_BYTES, body, body_bytes, body, 0, 0)
    return fault


@njit(nogil=True)
def _order(at: Any, head: int, key: int, sequence: int, times: int) -> int:
    verdict = 0
    no, tick = numpy.int64(0), numpy.int64(1)
    for _ in range(times):
        number_header(head, sequence, sequence, sequence)
        header = read_header(head)
        number = number_key(at, key, no)
        if (
            judge_epoch(epoch_state_at(at.epochs), slice_counters_at(at.counters), header.epoch, no, no, tick)
            != EpochVerdict.SAME
        ):
            begin_live_epoch(at, no)
        verdict |= judge(at, number, no, header, header.count, no, no)
        sequence += header.count
    return verdict


@njit(nogil=True)
def _match(at: SliceAt, table: TableAt, trie: Trie, head: int, body: int, envelope: int, times: int) -> int:
    header = read_header(head)
    wanted = 0
    for _ in range(times):
        wanted |= match_topics(at, table, trie, header, body, envelope)
    return wanted


@njit(nogil=True)
def _group(table: TableAt, head: int, body: int, envelope: int, times: int) -> int:
    header = read_header(head)
    matched = 0
    for _ in range(times):
        matched += group_by_set(table, header, body, envelope, numpy.int64(0), header.count)
    return matched


@njit(nogil=True)
def _hand_over(router: int, dealer: int, scratch: int, envelope: int, envelope_size: int, body: int, times: int) -> int:
    """Send name, envelope and a reference to the body to a worker's queue, and receive them."""
    failed = 0
    for _ in range(times):
        msg_init_size(scratch, 1)
        bytes_at(msg_data(scratch), 1)[0] = 1
        failed |= msg_send(scratch, router, _MORE) < 0
        msg_init_size(scratch, envelope_size)
        copy_bytes(msg_data(scratch), envelope, envelope_size)
        msg_send(scratch, router, _MORE)
        msg_init(scratch)
        msg_copy(scratch, body)
        msg_send(scratch, router, _LAST)
        init_messages(scratch, 2)
        for part in range(2):
            failed |= msg_recv(scratch + MESSAGE_BYTES * part, dealer, 0) < 0
        close_messages(scratch, 2)
    return failed


@njit(nogil=True)
def _body_message(message: int, body: int, size: int) -> None:
    msg_init_size(message, size)
    copy_bytes(msg_data(message), body, size)


@njit(nogil=True)
def _callback(
    numbers: NDArray[numpy.int32],
    topic_index: NDArray[numpy.int32],
    rows: NDArray[numpy.int32],
    payloads: NDArray[numpy.uint8],
    stride: int,
    state: NDArray[numpy.int64],
    times: int,
) -> None:
    for _ in range(times):
        tally(numbers, topic_index, rows, payloads, stride, state)


@njit(nogil=True)
def _copy(target: int, source: int, size: int, times: int) -> None:
    for _ in range(times):
        copy_bytes(target, source, size)


@njit(nogil=True)
def _spin(seed: int, times: int) -> Any:
    """Run 2,000 steps of a random generator in registers, `times` times."""
    word = numpy.uint64(seed)
    for _ in range(times * 2_000):
        word ^= word << numpy.uint64(13)
        word ^= word >> numpy.uint64(7)
        word ^= word << numpy.uint64(17)
    return word


SPIN: Final = Kernel("fixed loop", "steps of a random generator in registers", lambda times: _spin(7, times))


class Subject:
    """A block and everything needed to pass it through a subscriber. Exiting the context closes its sockets."""

    def __init__(self) -> None:
        pool = make_pool()
        index, payloads = pool.topic_index[:BLOCK_MESSAGES], pool.payloads[:BLOCK_MESSAGES]
        times = pool.ts_event[:BLOCK_MESSAGES]
        rows, self._alive = as_rows(PayloadColumns(payloads, ts_event=times), BLOCK_MESSAGES)
        order = numpy.arange(BLOCK_MESSAGES, dtype=numpy.int32)
        self._columns = rows, order, index, topic_table(pool.topics), distinct_scratch(len(pool.topics))
        self.block = self._encoded()
        plain = Block.encode(pool.topics, index, PayloadColumns(payloads, ts_event=times))
        assert self.block.topics == plain.topics
        assert numpy.array_equal(self.block.payloads, plain.payloads)
        callbacks = [Callback("batch", b"S%d" % i, print) for i in range(_PREFIXES)]
        for number, callback in enumerate(callbacks):
            callback.worker = number % 2
        self.table = Table(1, 0, callbacks, 2, Filters())
        self._topics = Numbering(2 * TOPICS, 16)
        self._sets = numpy.zeros(2 * TOPICS, numpy.int32)
        self._hints = numpy.zeros(2 * TOPICS * HINT_WORDS, numpy.uint64)
        self._counters = SliceCounters()
        self.order = Order(1, 1, 0, 1, 0, self._counters)
        self._conflation = Conflation(1)
        self.at = SliceAt(
            *(0, 0, 0, 0, 0, 0, self._counters.address, 0, 2),
            self._topics.at,
            self._sets.ctypes.data,
            self._hints.ctypes.data,
            self.order.at,
            *(0, 0, 0, 0, 0, 0),
            self._conflation.at,
            *(0, 0, 0),
            NO_HANDLER,
            WorkerAt(*[0] * len(WorkerAt._fields)),
            WorkerTableAt(*[0] * len(WorkerTableAt._fields)),
            0,
            NO_READER,
            NO_LINES,
            *(0, 0, 0, 0),
            trace_mask(0),
        )
        self._head = numpy.frombuffer(bytearray(self.block.header), numpy.uint8)
        self._numbered = self._head.copy()
        self._copy = numpy.empty_like(self.block.body)
        self._copied_head = numpy.zeros(HEADER_BYTES // 8, numpy.int64)
        self.envelope = numpy.zeros(envelope_bytes(self.block.topic_count, self.block.count), numpy.uint8)
        self._scratch = numpy.zeros(MESSAGE_BYTES * _MESSAGES // 8, numpy.int64)
        self._context = zmq.Context()
        self._router, self._dealer = self._context.socket(zmq.ROUTER), self._context.socket(zmq.DEALER)
        self._router.router_mandatory = 1
        self._dealer.routing_id = b"\1"
        self._router.bind("inproc://hand-over")
        self._dealer.connect("inproc://hand-over")
        self._sequence = 0

    def _encoded(self) -> Block:
        """Return the block as a publisher sends it, with topic ids."""
        rows, order, index, table, distinct = self._columns
        plan = plan_block(rows, order, index, 0, BLOCK_MESSAGES, MAX_BODY_BYTES, table, distinct, FLAG_NUMBERS)
        body, head = numpy.zeros(plan_bytes(plan), numpy.uint8), numpy.zeros(HEADER_BYTES, numpy.uint8)
        _encode(*self._columns, body.ctypes.data, head.ctypes.data, 1)
        return Block(b"", head.tobytes(), body)

    def __enter__(self) -> list[Kernel]:
        head, body, envelope = self._head.ctypes.data, self.block.body.ctypes.data, self.envelope.ctypes.data
        size = self.block.body.nbytes
        table, trie = self.table.at, self.table.topics
        scratch = self._scratch.ctypes.data
        message = scratch + MESSAGE_BYTES * (_MESSAGES - 1)
        _body_message(message, body, size)
        sockets = self._router.underlying, self._dealer.underlying
        state = numpy.zeros((2 * TOPICS, 3), numpy.int64)
        rows = numpy.arange(BLOCK_MESSAGES, dtype=numpy.int32)
        numbers = self.envelope[TOPICS_AT : TOPICS_AT + 4 * self.block.topic_count].view(numpy.int32)
        block = self.block
        target = self._copy.ctypes.data, self._copied_head.ctypes.data

        def order(times: int) -> None:
            # Each block follows the previous one, without gaps or duplicates.
            verdict = _order(self.order.at, self._numbered.ctypes.data, body, self._sequence, times)
            self._sequence += BLOCK_MESSAGES * times
            assert verdict == 0

        kernels = [
            Kernel("encode", "columns into a block, with its checksum", lambda n: _encode(*self._columns, *target, n)),
            Kernel("check", "header, checksum, columns, topics", lambda n: _check(head, body, size, n)),
            Kernel("order", "key, epoch, sequence: gaps and duplicates", order),
            Kernel(
                "match",
                "topics to numbers and callbacks",
                lambda n: _match(self.at, table, trie, head, body, envelope, n),
            ),
            Kernel("group", "rows by callback", lambda n: _group(table, head, body, envelope, n)),
            Kernel(
                "hand over",
                "into a worker's queue and out, in one thread",
                lambda n: _hand_over(*sockets, scratch, envelope, self.envelope.nbytes, message, n),
            ),
            Kernel(
                "callback",
                "count, digest and sum of each topic",
                lambda n: _callback(numbers, block.topic_index, rows, block.payloads, block.stride, state, n),
            ),
            Kernel("memcpy", "the body, within the caches", lambda n: _copy(self._copy.ctypes.data, body, size, n)),
        ]
        for kernel in kernels:
            kernel.run(1)
        kernels[0].run(1)
        assert numpy.array_equal(self._copy, block.body)
        assert _check(head, body, size, 1) == 0
        assert _match(self.at, table, trie, head, body, envelope, 1) == 3
        assert _group(table, head, body, envelope, 1) == BLOCK_MESSAGES
        assert _hand_over(*sockets, scratch, envelope, self.envelope.nbytes, message, 1) == 0
        assert state[:, 0].sum() == BLOCK_MESSAGES
        return kernels

    def __exit__(self, *_: object) -> None:
        close_messages(self._scratch.ctypes.data + MESSAGE_BYTES * (_MESSAGES - 1), 1)
        self._context.destroy(linger=0)
