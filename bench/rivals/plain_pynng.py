"""pynng over TCP, PUSH/PULL, its fastest way: nng's PUB drops messages for slow subscribers, PUSH waits.

Settings: nng's largest queues (8,192 messages), which together hold a run; 8 for blocks, so that PUSH waits. nng does
not batch: each message is a write.
"""

from __future__ import annotations

import time

import pynng

from bench.rivals.records import outgoing, tally_of
from bench.rivals.runs import Runs

_QUEUE = 8_192


def publish(address: str, form: str) -> None:
    joined = form == "messages"
    with pynng.Push0(listen=address, send_buffer_size=_QUEUE if joined else 8) as socket:
        runs = Runs()
        for load in runs:
            send = socket.send
            frames = [b"%b %b" % each for each in outgoing(form, load)] if joined else []
            began = time.time_ns()
            if joined:
                for frame in frames:
                    send(frame)
            else:
                for _, block in outgoing(form, load):
                    send(block)
            runs.sent(began)


def receive(address: str, form: str) -> None:
    tally = tally_of(form)
    joined = form == "messages"
    with pynng.Pull0(dial=address, recv_buffer_size=_QUEUE if joined else 8) as socket:
        runs = Runs()
        for load in runs:
            count = tally.begin(load.messages).count
            runs.receiving()
            receive = socket.recv
            while not tally.ended:
                if joined:
                    topic, _, data = receive().partition(b" ")
                    count(topic, data)
                else:
                    count(None, receive())
            runs.received(tally.ended, tally.state())
