"""iceoryx2, shared memory on one host: a service of byte slices, written into a loaned sample, read in place.

Set: no overflow, and a publisher that waits (RetryUntilDelivered); buffers of 4,096 samples (32 of blocks). The
subscriber polls, which is iceoryx2's fastest way, and gives its core away when there is nothing.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any

import iceoryx2

from bench.rivals.records import BLOCK_MESSAGES, block_rows, tally_of
from bench.rivals.runs import Runs
from bench.workload.load import POOL, TIME_BYTES, frames, many
from bench.workload.messages import make_pool

if TYPE_CHECKING:
    from collections.abc import Callable


def publish(address: str, form: str) -> None:
    joined = frames(POOL) if form == "messages" else []
    node, service = _service(address, form)
    publisher = (
        service.publisher_builder()
        .initial_max_slice_len(512 if joined else _block_bytes(BLOCK_MESSAGES))
        .backpressure_strategy(iceoryx2.BackpressureStrategy.RetryUntilDelivered)
        .create()
    )
    pack = _packer()
    runs = Runs()
    for load in runs:
        loan, copy = publisher.loan_slice_uninit, ctypes.memmove
        began = time.time_ns()
        for data in many(joined, load.messages) if joined else ():
            sample = loan(len(data))
            copy(sample.payload_ptr, data, len(data))
            sample.assume_init().send()
        for rows in () if joined else block_rows(load):
            sample = loan(_block_bytes(rows.stop - rows.start))
            pack(sample.payload_ptr, rows)
            sample.assume_init().send()
        runs.sent(began)
    del publisher, service, node


def receive(address: str, form: str) -> None:
    tally = tally_of(form)
    node, service = _service(address, form)
    subscriber = service.subscriber_builder().buffer_size(_buffers(form)).create()
    runs = Runs()
    joined = form == "messages"
    for load in runs:
        count = tally.begin(load.messages).count
        runs.receiving()
        take = subscriber.receive
        while not tally.ended:
            sample = take()
            if sample is None:
                time.sleep(0)
                continue
            payload = sample.payload()
            if joined:
                topic, _, data = ctypes.string_at(payload.data_ptr, payload.number_of_elements).partition(b" ")
                count(topic, data)
            else:
                count(None, payload.as_memory_view())
        runs.received(tally.ended, tally.state())
    del subscriber, service, node


def _block_bytes(messages: int) -> int:
    return TIME_BYTES + messages * sum(int(column.strides[0]) for column in _columns())


def _columns() -> tuple[Any, ...]:
    pool = make_pool()
    return pool.ts_event, pool.topic_index, pool.payloads


def _packer() -> Callable[[int, slice], None]:
    """What packs rows of the pool as a block at an address: the only copy of them that is made."""
    columns = [(column.ctypes.data, column.strides[0]) for column in _columns()]
    move, number_at = ctypes.memmove, ctypes.c_int64.from_address

    def pack(place: int, rows: slice) -> None:
        count = rows.stop - rows.start
        number_at(place).value = count
        place += TIME_BYTES
        for source, width in columns:
            move(place, source + width * rows.start, width * count)
            place += width * count

    return pack


def _buffers(form: str) -> int:
    return 4_096 if form == "messages" else 32


def _service(address: str, form: str) -> tuple[Any, Any]:
    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    service = (
        node.service_builder(iceoryx2.ServiceName.new(address))
        .publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
        .subscriber_max_buffer_size(_buffers(form))
        .enable_safe_overflow(False)
        .max_publishers(1)
        .max_subscribers(1)
        .open_or_create()
    )
    return node, service
