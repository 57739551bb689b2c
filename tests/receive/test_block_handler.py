"""A block handler gets every block in order and once, with the control blocks between them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy
import pytest
from numba import cfunc, types

from blackbox import Feed, SlowPolicy
from blackbox.block.batch.block_handler import BLOCK, CONTROL, BlockHandlerAt, HandedBlock
from blackbox.block.form.format import read_header
from blackbox.native.memory.records import Field, Fields, record_at
from blackbox.receive.slices.options import Options
from blackbox.receive.supervise.run import run
from blackbox.receive.supervise.shared_slices import Share
from blackbox.receive.supervise.slice_plan import whole_feed
from blackbox.receive.supervise.supervisor import Supervisor
from blackbox.testing import RawPublisher, wait_until
from tests.receive.subscribers import SECOND_NS, one_slice, two_line_feed

ENTRY = 4
ENTRIES = 1000


class Log(HandedBlock):
    used = Field()
    entries = Fields(ENTRY * ENTRIES)
    """For each block: kind, sequence, new rows, held blocks."""


log_at = record_at(Log)


def keep(address: int) -> None:
    log = log_at(address)
    if log.kind != BLOCK and log.kind != CONTROL:
        log.again = 0
        return
    header = read_header(log.head)
    at = ENTRY * log.used
    log.entries[at] = log.kind
    log.entries[at + 1] = header.sequence
    log.entries[at + 2] = header.count - log.first_row
    log.entries[at + 3] = log.held
    log.used += 1


@cache
def compiled() -> int:
    """Return the address of `keep`, compiled on first use."""
    return int(cfunc(types.void(types.int64), nogil=True)(keep).address)


def handled(log: Log, *kinds: int) -> list[tuple[int, ...]]:
    entries = numpy.asarray(log.entries).reshape(-1, ENTRY)[: log.used].tolist()
    return [tuple(entry) for entry in entries if entry[0] in kinds]


@pytest.fixture
def log() -> Log:
    return Log()


def handling(feed: Feed, log: Log, **settings: Any) -> Share:
    options = Options(workers=0, slow=SlowPolicy(), **settings)
    handler = BlockHandlerAt(compiled(), log.address)
    return Share(Supervisor(feed, options, whole_feed(feed), block_handler=lambda _: handler))


def test_control_blocks_arrive_in_order(log: Log) -> None:
    feed = one_slice(heartbeat_ns=60 * SECOND_NS)
    with RawPublisher(feed) as publisher:
        subscriber = handling(feed, log)
        subscriber.start(None)
        before = log.used
        for number in range(5):
            publisher.send(publisher.encode([(b"T", b"%d" % number)] * 2))
            publisher.heartbeat()
        publisher.heartbeat(end=True)
        run(subscriber, subscriber.start, until_end=True, timeout=None, silence_timeout=None)
    assert {kind for kind, *_ in handled(log, BLOCK, CONTROL)[:before]} == {CONTROL}  # the confirmation
    kinds = [kind for kind, *_ in handled(log, BLOCK, CONTROL)[before:]]
    assert kinds == [BLOCK, CONTROL] * 5 + [CONTROL]
    assert [(sequence, rows) for _, sequence, rows, _ in handled(log, BLOCK)] == [(2 * n, 2) for n in range(5)]
    assert subscriber.supervisor.slices.statistics().received.messages == 10


def test_a_control_block_reports_blocks_held_for_the_other_line(log: Log) -> None:
    feed = two_line_feed()
    subscriber = handling(feed, log, line_wait=1_000)
    with RawPublisher(feed) as publisher:
        subscriber.start(None)
        blocks = [publisher.encode([(b"T", b"%d" % number)]) for number in range(3)]
        publisher.send(blocks[0], [0, 1])
        publisher.send(blocks[2], [0])
        wait_until(lambda: subscriber.supervisor.slices.statistics().received.held == 1)
        publisher.heartbeat(lines=[0])
        wait_until(lambda: handled(log, CONTROL)[-1][3] == 1, what="a control block reports the held block")
        publisher.send(blocks[1], [1])
        wait_until(lambda: len(handled(log, BLOCK)) == 3)
        subscriber.stop()
    assert [sequence for _, sequence, *_ in handled(log, BLOCK)] == [0, 1, 2]
