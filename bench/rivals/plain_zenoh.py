"""Eclipse Zenoh, two peers over TCP, no discovery; a declared publisher for each topic, one subscriber of them all.

Set: CongestionControl.BLOCK, so that the publisher waits; batching on, as it comes (`express` would turn it off); the
callback called directly by Zenoh's own thread (`indirect=False`), which saves a hand-over between threads. As it comes,
Zenoh hands what is larger than 3 KB to a peer on the same host through shared memory: `shared_memory` says whether.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import zenoh

from bench.rivals.records import BLOCK_TOPIC, outgoing, tally_of
from bench.rivals.runs import Runs
from bench.workload.messages import make_pool

_ROOT = "bench/"


def publish(address: str, form: str, shared_memory: bool = False) -> None:
    names = [BLOCK_TOPIC] if form == "blocks" else make_pool().topics
    with zenoh.open(_config("listen", address, shared_memory)) as session:
        publishers = {
            name: session.declare_publisher(
                _ROOT + name.decode(), congestion_control=zenoh.CongestionControl.BLOCK, express=False
            )
            for name in names
        }
        puts = {name: publisher.put for name, publisher in publishers.items()}
        runs = Runs()
        for load in runs:
            while not publishers[names[-1]].matching_status.matching:
                time.sleep(0.001)
            began = time.time_ns()
            for topic, data in outgoing(form, load):
                puts[topic](data)
            runs.sent(began)


def receive(address: str, form: str, shared_memory: bool = False) -> None:
    done = threading.Event()
    tally = tally_of(form, done.set)
    tally.begin(0)
    skip = len(_ROOT)

    def take(sample: Any) -> None:
        tally.count(str(sample.key_expr)[skip:], sample.payload.to_bytes())

    with zenoh.open(_config("connect", address, shared_memory)) as session:
        subscriber = session.declare_subscriber(_ROOT + "**", zenoh.handlers.Callback(take, indirect=False))
        runs = Runs()
        for load in runs:
            done.clear()
            tally.begin(load.messages)
            runs.receiving()
            done.wait()
            runs.received(tally.ended, tally.state())
        subscriber.undeclare()


def _config(side: str, address: str, shared_memory: bool) -> Any:
    config = zenoh.Config()
    config.insert_json5("mode", '"peer"')
    config.insert_json5(f"{side}/endpoints", json.dumps([address]))
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("scouting/gossip/enabled", "false")
    config.insert_json5("transport/shared_memory/enabled", json.dumps(shared_memory))
    if side == "connect":
        config.insert_json5("listen/endpoints", "[]")
    return config
