"""Traces: when one message in many was at each hop, from the venue to a callback."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.block.form.format import RELAY_ID_BYTES
from blackbox.receive.trace.rings import TraceRings
from blackbox.timestamps import DAY_NS

_SETTLES_NS: Final = 1_000_000_000
"""Time after a callback began until what relays send about its block has arrived."""

_Block = tuple[int, int, int]
"""Epoch of a block, sequence after its last message, and its line."""
_Times = tuple[int, int, int, str]
"""Place of a relay, its times of receiving and sending, and its name."""


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """A point on the way of a message."""

    name: str
    """`venue`, `publish`, `send`, `relay in`, `relay out`, `receive`, `match` or `callback`."""
    relay: str = ""
    """Name of the relay."""
    place: int = 0
    """Place of the relay on the way, from 1; 0: no relay."""
    at_ns: int
    """Time when the message was there, ns since 1970, by the clock of that host."""
    took_ns: int
    """Time since the hop before, in ns; 0 for the first. It may be negative if the clocks of two hosts differ."""

    @property
    def label(self) -> str:
        """The hop as text, such as `send` or `relay london in`."""
        return f"relay {self.relay} {self.name.removeprefix('relay ')}" if self.place else self.name


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the first message of a block, on its way to the callbacks of one worker."""

    slice_id: int
    epoch: int
    sequence: int
    """Sequence of the message."""
    worker: int
    """Worker of the slice, from 0; after the last one the slice's own thread."""
    hops: tuple[Hop, ...]
    """Relays are missing unless all of them sent their times; `venue` is if its time is unknown, or more than a day
    away, as in a replay of an earlier day."""

    @property
    def age_ns(self) -> int:
        """Time from `publish`, or from `send` if that is unknown, to the callback, in ns."""
        began = next(hop.at_ns for hop in self.hops if hop.name in ("publish", "send"))
        return self.hops[-1].at_ns - began


class TraceReader:
    """Reads the traces of a subscriber, each once. Not for several threads."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], int] = {}
        """By slice and worker, the number of traces read."""

    def read(self, slices: Mapping[int, TraceRings], *, have_ended: bool) -> list[Trace]:
        """Return the new traces, by slice and worker, of callbacks that began at least a second ago.

        `have_ended`: all threads have ended, so that nothing more will come about the latest ones.
        """
        until_ns = numpy.iinfo(numpy.int64).max if have_ended else time.monotonic_ns() - _SETTLES_NS
        found: list[Trace] = []
        for slice_id, rings in slices.items():
            new = {worker: self._new(slice_id, worker, rings, until_ns) for worker in range(len(rings.workers))}
            if any(map(len, new.values())):
                relays = _Relays(rings)
                found += (
                    relays.trace(slice_id, worker, block)
                    for worker, blocks in new.items()
                    for block in blocks
                    if relays.has_all(block)
                )
        return found

    def _new(self, slice_id: int, worker: int, rings: TraceRings, until_ns: int) -> NDArray[numpy.void]:
        """Return the new records of a worker up to the first that is too young."""
        first, records = rings.workers[worker].unread(self._seen.get((slice_id, worker), 0))
        old = int(numpy.searchsorted(records["noted_ns"], until_ns, side="right"))
        self._seen[slice_id, worker] = first + old
        return records[:old]


class _Relays:
    """Times of the blocks of a slice at relays."""

    def __init__(self, rings: TraceRings) -> None:
        first, records = rings.relays.unread(0)
        self._since_ns = int(records["ts_recv"][0]) if first else 0
        """Time since when all of it is kept."""
        found = defaultdict[_Block, list[_Times]](list)
        for each in records:
            text = each["name"].tobytes()[RELAY_ID_BYTES : int(each["name_bytes"])]
            times = int(each["place"]), int(each["ts_in"]), int(each["ts_out"]), text.decode(errors="replace")
            found[_block(each)].append(times)
        self._of = {block: sorted(times) for block, times in found.items()}

    def has_all(self, block: Any) -> bool:
        """Return True if nothing about a block has been overwritten."""
        return int(block["ts_recv"]) >= self._since_ns

    def trace(self, slice_id: int, worker: int, block: Any) -> Trace:
        """Return the trace of a block."""
        points = list(_points(block, self._of.get(_block(block), [])))
        took = [0, *(later[-1] - earlier[-1] for earlier, later in pairwise(points))]
        hops = tuple(
            Hop(name=name, relay=relay, place=place, at_ns=at_ns, took_ns=took_ns)
            for (name, relay, place, at_ns), took_ns in zip(points, took, strict=True)
        )
        epoch, sequence = int(block["epoch"]), int(block["sequence"])
        return Trace(slice_id=slice_id, epoch=epoch, sequence=sequence, worker=worker, hops=hops)


def _block(record: Any) -> _Block:
    return int(record["epoch"]), int(record["end"]), int(record["line"])


def _points(block: Any, relays: list[_Times]) -> Iterator[tuple[str, str, int, int]]:
    """Yield name, relay, its place, and time of each hop."""
    for name, field in (("venue", "ts_event"), ("publish", "ts_in"), ("send", "ts_out")):
        at_ns = int(block[field])
        if at_ns and (name != "venue" or abs(int(block["ts_recv"]) - at_ns) <= DAY_NS):
            yield name, "", 0, at_ns
    if [place for place, *_ in relays] == [*range(1, len(relays) + 1)]:  # otherwise some are missing
        for place, ts_in, ts_out, relay in relays:
            yield "relay in", relay, place, ts_in
            yield "relay out", relay, place, ts_out
    for name, field in (("receive", "ts_recv"), ("match", "ts_match"), ("callback", "ts_call")):
        yield name, "", 0, int(block[field])
