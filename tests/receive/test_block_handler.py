"""A block handler gets every block in order and once, with the control blocks between them."""

from __future__ import annotations

from functools import cache

import numpy
from numba import cfunc, types

from blackbox import SlowPolicy
from blackbox.block.batch.block_handler import BLOCK, CONTROL, BlockHandlerAt, HandedBlock
from blackbox.block.form.format import read_header
from blackbox.native.memory.records import Field, Fields, record_at
from blackbox.receive.slices.options import Options
from blackbox.receive.supervise.shared_slices import Share
from blackbox.receive.supervise.slice_plan import whole_feed
from blackbox.receive.supervise.supervisor import Supervisor
from blackbox.testing import RawPublisher, wait_until
from tests.receive.subscribers import two_line_feed

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


def test_control_blocks_arrive_in_order_and_report_blocks_held_for_the_other_line() -> None:
    feed, log = two_line_feed(), Log()
    options = Options(workers=0, slow=SlowPolicy(), line_wait=1_000)
    handler = BlockHandlerAt(compiled(), log.address)
    subscriber = Share(Supervisor(feed, options, whole_feed(feed), block_handler=lambda _: handler))
    with RawPublisher(feed) as publisher:
        subscriber.start(None)
        assert {kind for kind, *_ in handled(log, BLOCK, CONTROL)} == {CONTROL}  # the confirmation
        blocks = [publisher.encode([(b"T", b"%d" % number)] * 2) for number in range(3)]
        publisher.send(blocks[0], [0, 1])
        publisher.send(blocks[2], [0])
        wait_until(lambda: subscriber.supervisor.slices.statistics().received.held == 1)
        publisher.heartbeat(lines=[0])
        wait_until(lambda: handled(log, CONTROL)[-1][3] == 1, what="a control block reports the held block")
        publisher.send(blocks[1], [1])
        wait_until(lambda: len(handled(log, BLOCK)) == 3)
        subscriber.stop()
    assert [rows for _, _, rows, _ in handled(log, BLOCK)] == [2, 2, 2]
    order = [(kind, sequence) for kind, sequence, *_ in handled(log, BLOCK, CONTROL) if kind == BLOCK or sequence == 6]
    assert order == [(BLOCK, 0), (CONTROL, 6), (BLOCK, 2), (BLOCK, 4)]
    assert subscriber.supervisor.slices.statistics().received.messages == 8
