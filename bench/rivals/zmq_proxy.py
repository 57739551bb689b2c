"""libzmq's own forwarder in a process of its own: XSUB, zmq_proxy, XPUB, of every slice."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import zmq

from bench.processes.child import answer, orders
from blackbox import Feed


def pass_on(above: Any, below: Any, hwm_blocks: int) -> None:
    """Pass on until the end. It waits for slow subscribers, and unsubscriptions get through."""
    for upper, lower in zip(msgspec.convert(above, Feed).slices, msgspec.convert(below, Feed).slices, strict=True):
        context = zmq.Context()
        xsub, xpub = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
        xsub.rcvhwm = xpub.sndhwm = hwm_blocks
        xpub.setsockopt(zmq.XPUB_VERBOSER, 1)
        xpub.setsockopt(zmq.XPUB_NODROP, 1)
        xsub.connect(upper.lines[0])
        xpub.bind(lower.lines[0])
        threading.Thread(target=zmq.proxy, args=(xsub, xpub), daemon=True).start()
    for _ in orders():
        answer()
