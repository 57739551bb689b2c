"""Process of libzmq's own forwarder: XSUB, zmq_proxy and XPUB for every slice."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import zmq

from bench.processes.child import answer, orders
from blackbox import Feed


def pass_on(above: Any, below: Any, hwm_blocks: int) -> None:
    """Forward until the end, waiting for slow subscribers and passing unsubscriptions upstream."""
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
