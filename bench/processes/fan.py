"""Process of many plain SUB sockets that must each receive every message of a run."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import zmq

from bench.measure.contest import expect
from bench.processes.crowd import PATIENCE_MS, ask, wait_for
from bench.rivals.runs import Runs
from blackbox.block.form.layout import HEADER

_COUNT: Final = struct.Struct(f"<{HEADER.offsets['count']}xI")
KEY: Final = b"S"
"""First byte of all topics of the pool: their key in a feed with `key_bytes = 1`."""


def receive(addresses: Sequence[str], sockets: int) -> None:
    """Connect `sockets` sockets to each address and count each one's messages by block headers."""
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        subs: list[zmq.Socket[bytes]] = []
        for address in list(addresses) * sockets:
            sub = stack.enter_context(context.socket(zmq.SUB))
            sub.linger, sub.rcvhwm, sub.rcvtimeo = 0, 8, PATIENCE_MS
            sub.connect(address)
            sub.subscribe(KEY)
            wait_for(sub, ask(sub))
            subs.append(sub)
        poller = zmq.Poller()
        for sub in subs:
            poller.register(sub, zmq.POLLIN)
        runs = Runs()
        for load in runs:
            runs.receiving()
            left = dict.fromkeys(subs, load.messages)
            waiting = len(subs)
            while waiting and (ready := poller.poll(PATIENCE_MS)):
                for each, _ in ready:
                    left[each] -= _take(each)
                    waiting -= left[each] <= 0
            ended, found = time.time_ns(), sorted(load.messages - each for each in left.values())
            runs.found(partial(_checked, ended, found, load.messages))


def _take(sub: zmq.Socket[bytes]) -> int:
    """Receive a block; return its number of messages."""
    key, header, _ = sub.recv_multipart(copy=False)
    return _COUNT.unpack_from(header.buffer)[0] if key.bytes == KEY else 0


def _checked(ended: int, found: list[int], messages: int, _began: int) -> dict[str, Any]:
    expect("fewest and most messages of a socket", (found[0], found[-1]), (messages,) * 2)
    return {"ended": ended, "messages": sum(found)}
