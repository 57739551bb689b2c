"""iceoryx2, shared memory on one host: a service of byte slices, written to a loaned sample and read in place.

    "messages"  f(topic, data)    "late"  arrival times of a paced run    any other  blocks

Settings: no overflow and a publisher that waits (RetryUntilDelivered); buffers of 4,096 samples (32 of blocks). The
subscriber polls, the fastest way of iceoryx2, and yields its core when there is nothing ("late": it spins).
"""

from __future__ import annotations

import ctypes
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import iceoryx2

from bench.processes.late import late_frames
from bench.rivals.records import BLOCK_MESSAGES, block_rows, tally_of
from bench.rivals.runs import Runs
from bench.workload.load import LEAD_NS, POOL, TIME_BYTES, due_ns, frames, many, when_due
from bench.workload.messages import make_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SINGLY: Final = ("messages", "late")


def publish(address: str, form: str) -> None:
    joined = frames(POOL) if form in _SINGLY else []
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
        outgoing: Iterable[bytes] = many(joined, load.messages) if joined else ()
        began = time.time_ns()
        if load.rate:
            began += LEAD_NS
            outgoing = (data for _, data in when_due((due_ns(load) + began).tolist(), list(outgoing)))
        for data in outgoing:
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
    node, service = _service(address, form)
    subscriber = service.subscriber_builder().buffer_size(_buffers(form)).create()
    runs = Runs()
    (_receive_late if form == "late" else _receive_all)(subscriber, runs, form)
    del subscriber, service, node


def _receive_all(subscriber: Any, runs: Runs, form: str) -> None:
    tally, joined = tally_of(form), form == "messages"
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


def _receive_late(subscriber: Any, runs: Runs, _: str) -> None:
    for load in runs:
        seen, found = list[int](), list[bytes]()
        runs.receiving()
        take, clock = subscriber.receive, time.time_ns
        while len(found) < load.messages:
            sample = take()
            if sample is not None:
                seen.append(clock())
                payload = sample.payload()
                found.append(ctypes.string_at(payload.data_ptr, payload.number_of_elements))
        runs.found(partial(late_frames, load, seen, found))


def _block_bytes(messages: int) -> int:
    return TIME_BYTES + messages * sum(int(column.strides[0]) for column in _columns())


def _columns() -> tuple[Any, ...]:
    pool = make_pool()
    return pool.ts_event, pool.topic_index, pool.payloads


def _packer() -> Callable[[int, slice], None]:
    """Return a function that packs rows of the pool as a block at an address, their only copy."""
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
    return 4_096 if form in _SINGLY else 32


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
