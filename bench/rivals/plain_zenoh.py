"""Eclipse Zenoh over TCP, two peers or two clients of a router; a declared publisher per topic, one subscriber.

Settings: no discovery; CongestionControl.BLOCK, so that the publisher waits; batching on, the default (`express` would
turn it off); the callback is called by Zenoh's own thread (`indirect=False`), which saves a hand-over between threads.
By default Zenoh sends payloads above 3 KB to a peer on the same host through shared memory; `shared_memory` sets this.
"""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from typing import Any

import zenoh

from bench.processes.late import LateTally
from bench.rivals.records import BLOCK_TOPIC, outgoing, tally_of
from bench.rivals.runs import Runs
from bench.workload.load import LEAD_NS, Load, due_ns, when_due
from bench.workload.messages import make_pool

_ROOT = "bench/"


def publish(address: str, form: str, shared_memory: bool = False, has_router: bool = False) -> None:
    names = [BLOCK_TOPIC] if form == "blocks" else make_pool().topics
    with zenoh.open(_side("listen", address, shared_memory, has_router)) as session:
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
            runs.sent(_put(puts, form, load))


def _put(puts: dict[bytes, Any], form: str, load: Load) -> int:
    """Send a load; return the time when the first message was sent or due, unix ns."""
    if load.rate:
        ready = list(outgoing(form, load))
        began = time.time_ns() + LEAD_NS
        for _, (topic, data) in when_due((due_ns(load) + began).tolist(), ready):
            puts[topic](data)
    else:
        began = time.time_ns()
        for topic, data in outgoing(form, load):
            puts[topic](data)
    return began


def receive(address: str, form: str, shared_memory: bool = False, has_router: bool = False) -> None:
    done = threading.Event()
    tally = LateTally(done.set) if form == "late" else tally_of(form, done.set)
    tally.begin(0)
    skip = len(_ROOT)

    def take(sample: Any) -> None:
        tally.count(str(sample.key_expr)[skip:], sample.payload.to_bytes())

    with zenoh.open(_side("connect", address, shared_memory, has_router)) as session:
        subscriber = session.declare_subscriber(_ROOT + "**", zenoh.handlers.Callback(take, indirect=False))
        runs = Runs()
        for load in runs:
            done.clear()
            tally.begin(load.messages)
            runs.receiving()
            done.wait()
            if isinstance(tally, LateTally):
                runs.found(partial(tally.found, load))
            else:
                runs.received(tally.ended, tally.state())
        subscriber.undeclare()


def _side(side: str, address: str, shared_memory: bool, has_router: bool) -> Any:
    return config("client", "connect", address) if has_router else config("peer", side, address, shared_memory)


def config(mode: str, side: str, address: str, shared_memory: bool = False) -> Any:
    """Return the configuration of a session that listens at an address or connects to it."""
    config = zenoh.Config()
    config.insert_json5("mode", json.dumps(mode))
    config.insert_json5(f"{side}/endpoints", json.dumps([address]))
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("scouting/gossip/enabled", "false")
    config.insert_json5("transport/shared_memory/enabled", json.dumps(shared_memory))
    if side == "connect":
        config.insert_json5("listen/endpoints", "[]")
    return config
