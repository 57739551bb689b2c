"""pynng over TCP, PUSH/PULL: nng's PUB/SUB drops what a subscriber is behind with, PUSH waits, and is its fastest way.

Set: the largest queues that nng has (8,192 messages), which together hold a run; 8 for blocks, so that PUSH waits. nng
does not batch: a message is a write.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pynng

from bench.rivals.records import outgoing, tally_of

if TYPE_CHECKING:
    from bench.rivals.orders import Orders

_QUEUE = 8_192


def publish(orders: Orders) -> None:
    form = orders.form
    joined = form == "messages"
    with pynng.Push0(listen=orders.address, send_buffer_size=_QUEUE if joined else 8) as socket:
        orders.ready()
        for messages in orders:
            send = socket.send
            frames = [b"%b %b" % each for each in outgoing(form, messages)] if joined else []
            started = time.perf_counter()
            if joined:
                for frame in frames:
                    send(frame)
            else:
                for _, block in outgoing(form, messages):
                    send(block)
            orders.sent(started)


def receive(orders: Orders) -> None:
    tally = tally_of(orders.form)
    joined = orders.form == "messages"
    with pynng.Pull0(dial=orders.address, recv_buffer_size=_QUEUE if joined else 8) as socket:
        orders.ready()
        for messages in orders:
            count = tally.begin(messages).count
            tally.ended = 0.0
            orders.receiving()
            receive = socket.recv
            while not tally.ended:
                if joined:
                    topic, _, data = receive().partition(b" ")
                    count(topic, data)
                else:
                    count(None, receive())
            orders.received(tally.ended, tally.state(), messages)
