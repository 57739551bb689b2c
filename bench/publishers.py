"""Publishers in processes of their own, told by a pipe how many messages to send next."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Self

import msgspec
import zmq

from bench.child import Child, orders
from bench.workload import POOL_MESSAGES, make_pool
from blackbox import Feed, Publisher, Recording, Replay

_AT_ONCE = 100


class Remote:
    """A publisher process: `send(n)` starts a run and does not wait, `answer()` waits for its report."""

    def __init__(self, kind: str, **arguments: Any) -> None:
        self._child = Child("-m", "bench.publishers", kind, json.dumps(arguments))

    @property
    def pid(self) -> int:
        """The process, for a `Meter`."""
        return self._child.pid

    def send(self, messages: int, **more: Any) -> None:
        """Begin a run."""
        self._child.send({"messages": messages, **more})

    def answer(self) -> dict[str, Any]:
        """What the process said when it was done."""
        answer: dict[str, Any] = self._child.answer()
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.__exit__()


def _blackbox(feed: Feed) -> None:
    """Ours: columns in, blocks out, as fast as the slowest subscriber."""
    pool = make_pool()
    with Publisher(feed, when_full="wait") as publisher:
        for order in orders():
            publisher.wait_for_subscribers(timeout=60)
            began = time.time_ns()
            for start in range(0, order["messages"], POOL_MESSAGES):
                count = min(POOL_MESSAGES, order["messages"] - start)
                publisher.publish_many(
                    pool.topics, pool.topic_index[:count], pool.payloads[:count], pool.ts_event[:count]
                )
            publisher.flush()
            _answer(began)


def _replay(feed: Feed, day: str) -> None:
    """Ours: a recorded day, as fast as the slowest subscriber."""
    recording = Recording.open(day)
    with Publisher(feed, when_full="wait") as publisher:
        for _ in orders():
            publisher.wait_for_subscribers(timeout=60)
            statistics = Replay(recording).publish(publisher)
            publisher.flush()
            print(json.dumps({"seconds": statistics.seconds}), flush=True)


def _pyzmq(endpoint: str) -> None:
    """The rival: plain pyzmq, one message a frame, waiting for slow subscribers as ours does."""
    pool = make_pool()
    frames = [
        pool.topics[topic] + b" " + payload.tobytes()
        for topic, payload in zip(pool.topic_index, pool.payloads, strict=True)
    ]
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.XPUB_NODROP, 1)
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    socket.bind(endpoint)
    for order in orders():
        _wait_for_subscription(socket)
        began = time.time_ns()
        send = socket.send
        for start in range(0, order["messages"], POOL_MESSAGES):
            for frame in frames[: min(POOL_MESSAGES, order["messages"] - start)]:
                send(frame)
        _answer(began)
    context.destroy(linger=0)


def _answer(began: int) -> None:
    """Tell when the first call was, unix ns."""
    print(json.dumps({"began": began}), flush=True)


def _wait_for_subscription(socket: zmq.Socket[bytes]) -> None:
    while socket.recv()[:1] != b"\1":
        pass


def _bursts(feed: Feed) -> None:
    """Ours, live: a hundred messages at a time, at a steady pace."""
    pool = make_pool()
    index, payloads = pool.topic_index[:_AT_ONCE], pool.payloads[:_AT_ONCE]
    with Publisher(feed) as publisher:
        for order in orders():
            publisher.wait_for_subscribers(timeout=60)
            due = started = time.perf_counter()
            for _ in range(0, order["messages"], _AT_ONCE):
                while time.perf_counter() < due:
                    pass
                publisher.publish_many(pool.topics, index, payloads)
                due += _AT_ONCE / order["rate"]
            print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


def _paced(feed: Feed) -> None:
    """One message at a time at a steady pace."""
    payload = bytes(100)
    topics = [b"S%04d.trade" % number for number in range(1_000 if feed.key_bytes else 1)]
    # Blocks of one message are small, and the usual 1,000 of them would be 10 ms at 100,000 a second.
    with Publisher(feed, hwm_blocks=100_000) as publisher:
        for order in orders():
            publisher.wait_for_subscribers(timeout=60)
            interval_ns = 10**9 // order["rate"]
            due = time.time_ns() + 10**6
            for number in range(order["messages"]):
                while time.time_ns() < due:
                    pass
                publisher.publish(topics[number % len(topics)], payload)
                due += interval_ns
            print(json.dumps({}), flush=True)


def _main() -> None:
    kind, arguments = sys.argv[1], json.loads(sys.argv[2])
    feed = msgspec.convert(arguments["feed"], Feed) if arguments.get("feed") else None
    if kind == "blackbox" and feed is not None:
        _blackbox(feed)
    elif kind == "bursts" and feed is not None:
        _bursts(feed)
    elif kind == "replay" and feed is not None:
        _replay(feed, arguments["day"])
    elif kind == "paced" and feed is not None:
        _paced(feed)
    else:
        _pyzmq(arguments["endpoint"])


if __name__ == "__main__":
    _main()
