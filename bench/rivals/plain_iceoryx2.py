"""iceoryx2, shared memory on one host: a service of byte slices, written in place by the publisher, read in place.

Set: no overflow, and a publisher that waits (RetryUntilDelivered); buffers of 4,096 samples (32 of blocks). The
subscriber polls, which is iceoryx2's fastest way, and gives its core away when there is nothing.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any

import iceoryx2

from bench.rivals.records import many, messages_of_pool, outgoing, tally_of

if TYPE_CHECKING:
    from bench.rivals.orders import Orders


def publish(orders: Orders) -> None:
    joined = [b"%b %b" % each for each in messages_of_pool()] if orders.form == "messages" else []
    node, service = _service(orders)
    publisher = (
        service.publisher_builder()
        .initial_max_slice_len(512 if joined else 300_000)
        .backpressure_strategy(iceoryx2.BackpressureStrategy.RetryUntilDelivered)
        .create()
    )
    orders.ready()
    for messages in orders:
        loan, copy = publisher.loan_slice_uninit, ctypes.memmove
        started = time.perf_counter()
        for data in many(joined, messages) if joined else (block for _, block in outgoing("blocks", messages)):
            sample = loan(len(data))
            copy(sample.payload_ptr, data, len(data))
            sample.assume_init().send()
        orders.sent(started)
    del publisher, service, node


def receive(orders: Orders) -> None:
    tally = tally_of(orders.form)
    node, service = _service(orders)
    subscriber = service.subscriber_builder().buffer_size(_buffers(orders)).create()
    orders.ready()
    joined = orders.form == "messages"
    for messages in orders:
        count = tally.begin(messages).count
        tally.ended = 0.0
        orders.receiving()
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
        orders.received(tally.ended, tally.state(), messages)
    del subscriber, service, node


def _buffers(orders: Orders) -> int:
    return 4_096 if orders.form == "messages" else 32


def _service(orders: Orders) -> tuple[Any, Any]:
    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    service = (
        node.service_builder(iceoryx2.ServiceName.new(orders.address))
        .publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
        .subscriber_max_buffer_size(_buffers(orders))
        .enable_safe_overflow(False)
        .max_publishers(1)
        .max_subscribers(1)
        .open_or_create()
    )
    return node, service
