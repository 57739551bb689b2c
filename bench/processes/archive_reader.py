"""Process of an archive reader that repeatedly reads everything from the beginning."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from bench.measure.contest import Lost, expect
from bench.processes.child import answer, has_order, orders
from blackbox import Feed
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.connection import Fetched
from blackbox.errors import ArchiveError

_PATIENCE_S: Final = 1.0


def read(feed: Any) -> None:
    """Read from each order to the next one; answer with the number of messages read and any error."""
    client = ArchiveClient(msgspec.convert(feed, Feed), timeout=_PATIENCE_S)
    told = orders()
    for _ in told:
        answer()
        messages, lost, begins = 0, "", dict[int, int]()
        while not has_order() and not lost:
            try:
                for count in _read_once(client, begins):
                    messages += count
            except ArchiveError:  # its recorder has ended, or the next one has not started
                continue
            except Lost as why:
                lost = str(why)
        next(told)
        answer(messages=messages, lost=lost)


def _read_once(client: ArchiveClient, begins: dict[int, int]) -> Iterator[int]:
    """Read up to now or until the next order; yield the number of messages of each block.

    `begins` maps each epoch to its first sequence number.
    """
    following = dict[int, int]()
    for found in client.blocks(0, stop_ns=time.time_ns(), timeout=_PATIENCE_S):
        if not isinstance(found, Fetched):
            raise Lost(f"a reader received {found}, expected only blocks")
        epoch, numbers = found.block.epoch, found.block.sequences
        first = int(numbers[found.first_row])
        expect("next sequence number of a reader", first, following.get(epoch, begins.setdefault(epoch, first)))
        following[epoch] = int(numbers[-1]) + 1
        yield found.stop_row - found.first_row
        if has_order():
            return
