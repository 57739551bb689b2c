"""Process of many multicast receivers that must each receive every message of a run."""

from __future__ import annotations

import select
import time
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import msgspec
import numpy

from bench.measure.contest import expect
from bench.processes.crowd import PATIENCE_MS
from bench.rivals.runs import Runs
from blackbox import Feed
from blackbox.block.form.format import FLAG_CONTROL, block_header_at
from blackbox.native.compile.jit import njit
from blackbox.native.tables.prefix_trie import Trie, build_trie
from blackbox.transport.libzmq import MESSAGE_BYTES, init_messages, msg_data
from blackbox.transport.udp.assembler import DatagramCounts
from blackbox.transport.udp.open_lines import Multicast
from blackbox.transport.udp.receiver import LinesAt, receive_one

_KEYS: Final = [b"S"]


@njit(nogil=True)
def _take_all(at: LinesAt, keys: Trie, messages: int) -> int:
    """Receive what is there; return its number of messages, without those of control blocks."""
    found: Any = numpy.int64(0)
    while receive_one(at, keys, messages) == 3:
        header = block_header_at(msg_data(messages + MESSAGE_BYTES))
        if header.flags & FLAG_CONTROL == 0:
            found += header.count
    total: int = found
    return total


def receive(feed: Any, receivers: int) -> None:
    """Join the group of a feed's first slice `receivers` times; count each one's messages by block headers."""
    scratch = numpy.zeros(3 * MESSAGE_BYTES // 8, numpy.int64)
    init_messages(scratch.ctypes.data, 3)
    keys = build_trie(_KEYS)
    with ExitStack() as stack:
        poller = select.poll()
        lines: dict[int, LinesAt] = {}
        for _ in range(receivers):
            line = Multicast(msgspec.convert(feed, Feed), 0)
            stack.callback(line.close)
            line.open([DatagramCounts()])
            lines[line.at.readable] = line.at
            poller.register(line.at.readable, select.POLLIN)
        for line_at in lines.values():
            _take_all(line_at, keys, scratch.ctypes.data)
        runs = Runs()
        for load in runs:
            runs.receiving()
            left = dict.fromkeys(lines, load.messages)
            while any(each > 0 for each in left.values()) and (ready := poller.poll(PATIENCE_MS)):
                for fd, _ in ready:
                    left[fd] -= _take_all(lines[fd], keys, scratch.ctypes.data)
            ended, found = time.time_ns(), sorted(load.messages - each for each in left.values())
            runs.found(partial(_checked, ended, found, load.messages))


def _checked(ended: int, found: list[int], messages: int, _began: int) -> dict[str, Any]:
    expect("fewest and most messages of a receiver", (found[0], found[-1]), (messages,) * 2)
    return {"ended": ended, "messages": sum(found)}
