"""Processes of a hub and of a client that waits for its acknowledgements."""

from __future__ import annotations

import os
import time
from typing import Any, Final

import msgspec
import numpy

from bench.processes.child import answer, orders
from bench.processes.pair import Order
from bench.workload.captures import calls_of
from bench.workload.load import LEAD_NS, Load, column_rows, due_ns, many, singles, when_due
from bench.workload.messages import PAYLOAD_BYTES
from blackbox import Feed, Hub, HubClient
from blackbox.block.form.format import HEADER_BYTES
from blackbox.services.hub.pair.paired_hub import PairedHub
from blackbox.services.hub.pair.protocol import Pair as PairOfHubs

_COLUMNS: Final = 10_000
"""Messages per call of `put_many`."""


def serve(feed: Any, directory: str, peers: Any = ()) -> None:
    """Run a hub; answer each order with its stored puts and the messages it has passed on from other sites."""
    with Hub(msgspec.convert(feed, Feed), directory, peers=msgspec.convert(peers, list[tuple[Feed, Feed]])) as hub:
        for _ in orders():
            passed = [peer.statistics() for peer in hub.peers]
            answer(
                stored=hub.statistics().stored,
                messages=sum(each.messages for each in passed),
                blocks=sum(each.blocks for each in passed),
                bytes=sum(each.body_bytes + each.blocks * HEADER_BYTES for each in passed),
                filters=sum(line.filters_above for each in passed for line in each.lines),
            )


def serve_pair(feed: Any, directory: str, pair: Any) -> None:
    """Run a hub of a pair; answer each order with its stored puts."""
    with PairedHub(msgspec.convert(feed, Feed), directory, pair=msgspec.convert(pair, PairOfHubs)) as hub:
        for _ in orders():
            answer(stored=hub.statistics().stored)


def send(feed: Any) -> None:
    """Put the ordered load in columns or, at a rate, one by one; answer once the hub has acknowledged all."""
    with HubClient(msgspec.convert(feed, Feed)) as client:
        for said in orders():
            load = msgspec.convert(said, Order).load
            before = time.process_time()
            began = _send_singly(client, load) if load.rate else _send_columns(client, load)
            client.flush()
            client.published_count(60.0)  # answered once all earlier puts are published
            cpu_s = None if load.rate else time.process_time() - before
            answer(began=began, cpu_s=cpu_s)


def _send_columns(client: HubClient, load: Load) -> int:
    pool, began = load.pool, time.time_ns()
    for start, rows in column_rows(load, _COLUMNS):
        times = pool.ts_event[: rows.stop - rows.start] + (start + 1)
        client.put_many(pool.topics, pool.topic_index[rows], pool.payloads[rows], times)
    return began


def _send_singly(client: HubClient, load: Load) -> int:
    messages = list(many(singles(load), load.messages))
    began = time.time_ns() + LEAD_NS
    for due, (topic, payload, _) in when_due((due_ns(load) + began).tolist(), messages):
        client.put_soon(topic, payload, ts_event=due)
    return began


def put_captured(feed: Any) -> None:
    """Put messages of a capture, `at_once` a call."""
    with HubClient(msgspec.convert(feed, Feed)) as client:
        for order in orders():
            calls, began = calls_of(order["capture"], order["messages"], order["at_once"]), time.time_ns()
            for call in calls:
                client.put_many(*call)
            answer(began=began)


def put(feed: Any, acknowledged: Any) -> None:
    """Put `at_once` messages `calls` times and wait for each acknowledgement; answer with the time of each call."""
    with HubClient(msgspec.convert(feed, Feed), acknowledged=acknowledged) as client:
        data, topic = os.urandom(PAYLOAD_BYTES), b"AAPL.trade"
        for order in orders():
            at_once = order["at_once"]
            index, rows = numpy.zeros(at_once, numpy.int32), numpy.zeros((at_once, PAYLOAD_BYTES), numpy.uint8)
            times = [time.perf_counter_ns()]
            for _ in range(order["calls"]):
                if order["how"] == "put":
                    client.put(topic, data, timeout=60.0)
                elif order["how"] == "put_many":
                    client.put_many((topic,), index, rows)
                else:
                    for _ in range(at_once):
                        client.put_soon(topic, data, timeout=60.0)
                    client.flush()
                times.append(time.perf_counter_ns())
            answer(times=times)
