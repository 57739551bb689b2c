"""Measured costs of a relay: CPU time of its process for blocks and for subscriptions."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import msgspec
import numpy
import zmq

from bench.measure.cost import cpu_seconds
from bench.processes.child import Child
from bench.processes.crowd import PATIENCE_MS, ask, wait_for
from blackbox import Feed, Publisher
from blackbox.block.form.format import WANT_KEY

_BLOCKS = 4_000
_MANY_BLOCKS = 400
_WANTS = 20_000
_PATIENCE_S = PATIENCE_MS / 1_000


class Costs(msgspec.Struct, frozen=True):
    """CPU time of a relay in seconds."""

    block_in: float
    block_out: float
    byte_out: float
    change: float
    """Time to receive a subscription, merge it and pass it upstream."""


def measure() -> Costs:
    """Measure the costs over loopback with real relays, publishers and sockets."""
    runs = [(1_000, 1, _BLOCKS), (1_000, 8, _BLOCKS), (200_000, 1, _MANY_BLOCKS), (200_000, 8, _MANY_BLOCKS)]
    spent = [_passing(*run) / run[2] for run in runs]
    shares = [(1.0, float(subscribers), float(size * subscribers)) for size, subscribers, _ in runs]
    scale = numpy.array([1.0, 1.0, 1e-5])
    # Sizes differ widely: without scaling, the fit would ignore the small ones.
    weights = 1 / numpy.array(spent)
    found = numpy.linalg.lstsq(numpy.array(shares) * scale * weights[:, None], numpy.ones(len(runs)), rcond=None)[0]
    block_in, block_out, byte_out = (float(value) for value in numpy.maximum(found * scale, 0))
    return Costs(block_in, block_out, byte_out, _changing())


def _passing(body_bytes: int, subscribers: int, blocks: int) -> float:
    """Return the CPU seconds of a relay that passes `blocks` blocks to each of `subscribers` subscribers."""
    above, below = Feed.local("scaling", slices=1), Feed.local("scaling", slices=1)
    rows = body_bytes // 100
    columns = (b"TOPIC",), numpy.zeros(rows, numpy.int32), numpy.zeros((rows, 100), numpy.uint8)
    with ExitStack() as stack:
        publisher = stack.enter_context(Publisher(above, when_full="wait"))
        relay = stack.enter_context(Child("bench.processes.relay:pass_on", above=above, below=below, when_full="wait"))
        joined = threading.Barrier(subscribers + 1)
        threads = []
        for _ in range(subscribers):
            threads.append(threading.Thread(target=_drain, args=(below.slices[0].lines[0], blocks, joined)))
            threads[-1].start()
        joined.wait(_PATIENCE_S)
        before = cpu_seconds(relay.pid)
        for _ in range(blocks):
            publisher.publish_many(*columns)
        for thread in threads:
            thread.join()
        return cpu_seconds(relay.pid) - before


def _drain(address: str, blocks: int, joined: threading.Barrier) -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.linger = 0
        sub.rcvtimeo = PATIENCE_MS
        sub.connect(address)
        sub.subscribe(b"")
        wait_for(sub, ask(sub))
        joined.wait(_PATIENCE_S)
        taken = 0
        while taken < blocks:
            if not sub.recv_multipart()[0].startswith(b"\0"):
                taken += 1


def _changing() -> float:
    """Return the CPU seconds of a relay per prefix subscribed, until its source has it."""
    above, below = Feed.local("scaling", slices=1), Feed.local("scaling", slices=1)
    with (
        Publisher(above, when_full="wait") as publisher,
        Child("bench.processes.relay:pass_on", above=above, below=below) as relay,
        zmq.Context() as context,
        context.socket(zmq.SUB) as sub,
    ):
        sub.linger, sub.sndhwm = 0, 0
        sub.connect(below.slices[0].lines[0])
        sub.subscribe(WANT_KEY + b"first")
        _until_wanted(publisher, b"first")
        before = cpu_seconds(relay.pid)
        for number in range(_WANTS):
            sub.subscribe(WANT_KEY + b"%07d" % number)
        _until_wanted(publisher, b"%07d" % (_WANTS - 1))
        return (cpu_seconds(relay.pid) - before) / _WANTS


def _until_wanted(publisher: Publisher, topic: bytes) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not publisher.wants(topic):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic!r} was not subscribed within {_PATIENCE_S:g} s")
        time.sleep(0.005)
