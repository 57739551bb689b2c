"""A publisher process that sends any workload into any feed: each order names its own.

    full    columns ==> publish_many() ==blocks==> XPUB, as fast as the slowest subscriber takes them
    paced   messages, each at its due time ==> publish() ==> XPUB;   the rival: pyzmq send(), one message a frame

`ts_event` runs on through a run (full), or is when the message was due (paced): receivers find order and delay in it.
Publishers stay from order to order, so that a run meets known topics, as it would in the middle of a day.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import Final

import msgspec
import numpy
import zmq
from numpy.typing import NDArray

from bench.child import Child, orders
from bench.workload import PAYLOAD_BYTES, TOPICS, make_pool
from blackbox import Feed, Publisher

BURST_PERIOD_NS: Final = 20_000_000
BURST_NS: Final = 1_000_000
BURST_TIMES: Final = 10
NUMBER_BYTES: Final = 8
"""Of a message's number in a frame of the rival, behind the topic and a blank."""
_LEAD_NS: Final = 30_000_000
"""Between the order and the first message."""
_SLEEP_ABOVE_NS: Final = 300_000
_WAKE_BEFORE_NS: Final = 200_000
"""A pacer sleeps where there is time, and spins for the rest: it shares two cores with who receives."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A run of `messages`; with a `rate`, each is due at its time, and in bursts if it is said so."""

    feed: Feed
    messages: int
    topics: int = TOPICS
    payload_bytes: int = PAYLOAD_BYTES
    rate: int = 0
    """Messages a second; 0: as many as go."""
    at_once: int = 1
    """Messages of one call: 1 is `publish()`, more is `publish_many()`. Only with a rate."""
    is_bursting: bool = False
    subscribers: int = 1
    """To wait for."""


def due_ns(load: Load) -> NDArray[numpy.int64]:
    """int64[messages]: when each is due, from the start of the run on.

    In bursts, a period of 20 ms begins with 1 ms at ten times the mean rate; the rest is spread over what is left.
    """
    number = numpy.arange(load.messages, dtype=numpy.int64)
    if not load.is_bursting:
        return number // load.at_once * load.at_once * 10**9 // load.rate
    period = load.rate * BURST_PERIOD_NS // 10**9
    burst = BURST_TIMES * load.rate * BURST_NS // 10**9
    within = number % period
    quick = within * BURST_NS // burst
    slow = BURST_NS + (within - burst) * (BURST_PERIOD_NS - BURST_NS) // max(1, period - burst)
    return number // period * BURST_PERIOD_NS + numpy.where(within < burst, quick, slow)


def sender(kind: str, feeds: Sequence[Feed], hwm: int = 1_000) -> Child:
    """Start such a process, with these feeds. `kind`: full, paced, rival.

    `hwm`: of a paced publisher, the blocks (ours) or messages (the rival) that wait for a subscriber before they are
    lost.
    """
    return Child("-m", "bench.loads", kind, json.dumps({"feeds": msgspec.to_builtins(feeds), "hwm": hwm}))


def order(remote: Child, load: Load) -> None:
    """Tell such a process to begin a run."""
    remote.send(msgspec.to_builtins(load))


def _full(feeds: list[Feed], _hwm: int) -> None:
    publishers = {feed.name: Publisher(feed, when_full="wait").start() for feed in feeds}
    for said in orders():
        load = msgspec.convert(said, Load)
        publisher = publishers[load.feed.name]
        pool = make_pool(load.topics, load.payload_bytes)
        publisher.wait_for_subscribers(b"S", timeout=60)
        began = time.time_ns()
        for start in range(0, load.messages, len(pool.topic_index)):
            count = min(len(pool.topic_index), load.messages - start)
            publisher.publish_many(
                pool.topics, pool.topic_index[:count], pool.payloads[:count], pool.ts_event[:count] + (start + 1)
            )
        publisher.flush()
        _answer(began)
    for publisher in publishers.values():
        publisher.close()


@cache
def _messages(load: Load) -> tuple[list[bytes], list[bytes]]:
    """Topic and payload of each message of a run."""
    pool = make_pool(load.topics, load.payload_bytes)
    topics, payloads = [pool.topics[place] for place in pool.topic_index], [each.tobytes() for each in pool.payloads]
    times = -(-load.messages // len(topics))
    return (topics * times)[: load.messages], (payloads * times)[: load.messages]


@cache
def _frames(load: Load) -> list[bytes]:
    """The same as frames of the rival, each with its number between topic and payload."""
    return [
        topic + b" " + number.to_bytes(NUMBER_BYTES, "little") + payload
        for number, (topic, payload) in enumerate(zip(*_messages(load), strict=True))
    ]


def _paced(feeds: list[Feed], hwm: int) -> None:
    publishers = {feed.name: Publisher(feed, hwm_blocks=hwm).start() for feed in feeds}
    for said in orders():
        load = msgspec.convert(said, Load)
        publisher = publishers[load.feed.name]
        publisher.wait_for_subscribers(timeout=60, count=load.subscribers)
        began = (_send_singly if load.at_once == 1 else _send_together)(publisher, load)
        publisher.flush()
        _answer(began)
    for publisher in publishers.values():
        publisher.close()


def _send_singly(publisher: Publisher, load: Load) -> int:
    topics, payloads = _messages(load)
    publish, clock = publisher.publish, time.time_ns
    began = clock() + _LEAD_NS
    for topic, payload, due in zip(topics, payloads, (due_ns(load) + began).tolist(), strict=True):
        while (left := due - clock()) > 0:
            if left > _SLEEP_ABOVE_NS:
                time.sleep((left - _WAKE_BEFORE_NS) / 1e9)
        publish(topic, payload, due)
    return began


def _send_together(publisher: Publisher, load: Load) -> int:
    pool, clock = make_pool(load.topics, load.payload_bytes), time.time_ns
    began = clock() + _LEAD_NS
    dues = due_ns(load) + began
    for start in range(0, load.messages, load.at_once):
        place = start % len(pool.topic_index)
        rows = slice(place, place + load.at_once)
        due = int(dues[start])
        while (left := due - clock()) > 0:
            if left > _SLEEP_ABOVE_NS:
                time.sleep((left - _WAKE_BEFORE_NS) / 1e9)
        publisher.publish_many(
            pool.topics, pool.topic_index[rows], pool.payloads[rows], dues[start : start + load.at_once]
        )
    return began


def _rival(feeds: list[Feed], hwm: int) -> None:
    context = zmq.Context()
    sockets = {feed.name: context.socket(zmq.XPUB) for feed in feeds}
    for feed in feeds:
        sockets[feed.name].setsockopt(zmq.XPUB_VERBOSE, 1)
        sockets[feed.name].sndhwm = hwm
        sockets[feed.name].bind(feed.slices[0].endpoints[0])
    for said in orders():
        load = msgspec.convert(said, Load)
        for _ in range(load.subscribers):
            while sockets[load.feed.name].recv()[:1] != b"\1":
                pass
        _answer(_send_frames(sockets[load.feed.name], load))
    context.destroy(linger=0)


def _send_frames(socket: zmq.Socket[bytes], load: Load) -> int:
    frames = _frames(load)
    send, clock = socket.send, time.time_ns
    began = clock() + _LEAD_NS
    for frame, due in zip(frames, (due_ns(load) + began).tolist(), strict=True):
        while (left := due - clock()) > 0:
            if left > _SLEEP_ABOVE_NS:
                time.sleep((left - _WAKE_BEFORE_NS) / 1e9)
        send(frame)
    return began


def _answer(began: int) -> None:
    print(json.dumps({"began": began}), flush=True)


_KINDS: Final = {"full": _full, "paced": _paced, "rival": _rival}

if __name__ == "__main__":
    _told = json.loads(sys.argv[2])
    _KINDS[sys.argv[1]](msgspec.convert(_told["feeds"], list[Feed]), _told["hwm"])
