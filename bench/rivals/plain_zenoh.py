"""Eclipse Zenoh, two peers over TCP, no discovery; a declared publisher for each topic, one subscriber of them all.

Set: CongestionControl.BLOCK, so that the publisher waits; batching on, as it comes (`express` would turn it off); the
callback called directly by Zenoh's own thread (`indirect=False`), which saves a hand-over between threads. As it comes,
Zenoh hands what is larger than 3 KB to a peer on the same host through shared memory: `shared_memory` says whether.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import zenoh

from bench.rivals.records import BLOCK_TOPIC, outgoing, tally_of
from bench.workload import make_pool

if TYPE_CHECKING:
    from bench.rivals.orders import Orders

_ROOT = "bench/"


def publish(orders: Orders) -> None:
    names = [BLOCK_TOPIC] if orders.form == "blocks" else make_pool().topics
    with zenoh.open(_config("listen", orders)) as session:
        publishers = {
            name: session.declare_publisher(
                _ROOT + name.decode(), congestion_control=zenoh.CongestionControl.BLOCK, express=False
            )
            for name in names
        }
        puts = {name: publisher.put for name, publisher in publishers.items()}
        orders.ready()
        for messages in orders:
            while not publishers[names[-1]].matching_status.matching:
                time.sleep(0.001)
            started = time.perf_counter()
            for topic, data in outgoing(orders.form, messages):
                puts[topic](data)
            orders.sent(started)


def receive(orders: Orders) -> None:
    done = threading.Event()
    tally = tally_of(orders.form, done.set)
    tally.begin(0)
    skip = len(_ROOT)

    def take(sample: Any) -> None:
        tally.count(str(sample.key_expr)[skip:], sample.payload.to_bytes())

    with zenoh.open(_config("connect", orders)) as session:
        subscriber = session.declare_subscriber(_ROOT + "**", zenoh.handlers.Callback(take, indirect=False))
        orders.ready()
        for messages in orders:
            done.clear()
            tally.begin(messages)
            orders.receiving()
            done.wait()
            orders.received(tally.ended, tally.state(), messages)
        subscriber.undeclare()


def _config(side: str, orders: Orders) -> Any:
    config = zenoh.Config()
    config.insert_json5("mode", '"peer"')
    config.insert_json5(f"{side}/endpoints", json.dumps([orders.address]))
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("scouting/gossip/enabled", "false")
    config.insert_json5("transport/shared_memory/enabled", json.dumps(bool(orders.arguments.get("shared_memory"))))
    if side == "connect":
        config.insert_json5("listen/endpoints", "[]")
    return config
