"""A hub, and a client that waits until it has what was put, in processes of their own."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
import numpy

from bench.processes.acknowledged import PAYLOAD_BYTES
from bench.processes.child import answer, orders
from blackbox import Client, Feed, Hub


def serve(feed: Any, directory: str) -> None:
    """Be a hub; answer each order with the puts stored so far."""
    with Hub(msgspec.convert(feed, Feed), directory) as hub:
        for _ in orders():
            answer(stored=hub.statistics().stored)


def put(feed: Any, acknowledged: Any) -> None:
    """Put `calls` times `at_once` messages, waiting each time until all are acknowledged; answer with the seconds."""
    with Client(msgspec.convert(feed, Feed), acknowledged=acknowledged) as client:
        data, topic = os.urandom(PAYLOAD_BYTES), b"AAPL.trade"
        for order in orders():
            at_once = order["at_once"]
            index, rows = numpy.zeros(at_once, numpy.int32), numpy.zeros((at_once, PAYLOAD_BYTES), numpy.uint8)
            began = time.perf_counter()
            for _ in range(order["calls"]):
                if order["how"] == "put":
                    client.put(topic, data, timeout=60.0)
                elif order["how"] == "put_many":
                    client.put_many((topic,), index, rows)
                else:
                    for _ in range(at_once):
                        client.put_soon(topic, data, timeout=60.0)
                    client.flush()
            answer(seconds=time.perf_counter() - began)
