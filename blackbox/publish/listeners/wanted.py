"""Count the filters on each key of a slice as they change, so that a sender reads one number per block."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from blackbox.block.form.encode import TopicTable
from blackbox.block.form.format import SHARED_KEY, WANT_KEY
from blackbox.errors import PublisherError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import int32s_at, int64s_at, uint16s_at
from blackbox.publish.listeners.ack_tracker import Acknowledgements
from blackbox.publish.listeners.confirmations import Asked
from blackbox.publish.listeners.demand import Demand
from blackbox.publish.listeners.peers import Place, Why
from blackbox.publish.listeners.subscriptions import Subscriptions
from blackbox.publish.send.sender_state import MULTICAST, SHARED


@njit(nogil=True, cache=True)
def cover(keys_at: int, sizes_at: int, wanted_at: int, count: int, word: int, size: int, by: int) -> None:
    """Add `by` to the count of each key that starts with the first `size` bytes of `word`."""
    mask = numpy.int64(-1) if size == MAX_KEY_BYTES else (numpy.int64(1) << (8 * size)) - 1
    keys, sizes, wanted = int64s_at(keys_at, count), int32s_at(sizes_at, count), uint16s_at(wanted_at, count)
    for key in range(numpy.uint64(count)):
        if keys[key] & mask == word and sizes[key] >= size:
            wanted[key] = numpy.uint16(wanted[key] + by)


class WantedKeys(Subscriptions):
    """The subscriptions of a publisher's slice, its keys, and which of them are wanted.

    Publishing threads add keys. Attributes: `keys`, each with its number; `table`, their texts for compiled code;
    `wanted`, see `Sender`; `acknowledgements`, positions of recorders.
    """

    def __init__(self, feed: Feed, slice_id: int, epoch: int, demand: Demand) -> None:
        """`demand`: prefixes wanted from all slices of the publisher."""
        self.acknowledgements = Acknowledgements()
        self._slice_id, self._demand = slice_id, demand
        super().__init__(feed, len(feed.slices[slice_id].lines), self.acknowledgements)
        self.keys: dict[bytes, int] = {}
        self._always = MULTICAST if feed.slices[slice_id].multicast else 0
        if self._always:
            demand.change(b"", 1)
        self.wanted: NDArray[numpy.uint16] = numpy.zeros(feed.max_keys, numpy.uint16)
        self.table = TopicTable(
            numpy.zeros(feed.max_keys * MAX_KEY_BYTES, numpy.uint8),
            numpy.arange(feed.max_keys, dtype=numpy.int64) * MAX_KEY_BYTES,
            numpy.zeros(feed.max_keys, numpy.int32),
        )
        self.begin_epoch(epoch)

    def add_key(self, key: bytes) -> int:
        """Return the number of a key; for a new one, count the filters that match it. Raises PublisherError."""
        known = self.keys.get(key)
        if known is not None:
            return known
        with self.changed:
            number = len(self.keys)
            if number >= len(self.wanted):
                raise PublisherError(
                    f"slice {self._slice_id}: key {key!r} did not fit: {number} keys, "
                    f"expected at most max_topics = {len(self.wanted)}"
                )
            place = number * MAX_KEY_BYTES
            self.table.text[place : place + len(key)] = numpy.frombuffer(key, numpy.uint8)
            self.table.sizes[number] = len(key)
            self.wanted[number] = self._always + sum(
                (prefix in has) + SHARED * (SHARED_KEY + prefix in has)
                for has in self._filters
                for prefix in (key[:size] for size in range(len(key) + 1))
            )
            self.keys[key] = number
        return number

    @property
    def demand_version(self) -> int:
        """Number of changes to the wanted prefixes."""
        return self._demand.version

    def is_told(self, version: int) -> bool:
        """Return True if all listeners were called for the changes up to a `demand_version`."""
        return self._demand.is_told(version)

    def refused_to(self, ask: Asked) -> dict[bytes, Why]:
        """Return the prefixes refused to a connection, for lack of rights or by an `on_demand` function."""
        refused = super().refused_to(ask)
        if self._demand.refused:
            peer = self.peer(ask.line, ask.fd)
            filters = self._filters[ask.line] if peer is None else peer.filters
            wants = (WANT_KEY + prefix for prefix in self._demand.refused)
            refused |= {want: Why.ON_DEMAND for want in wants if want in filters}
        return refused

    def filter_changed(self, place: Place, by: int) -> None:
        """Count a filter for the keys that it matches; update the wanted prefixes."""
        prefix = place[1]
        if prefix.startswith(WANT_KEY):
            self._demand.change(prefix.removeprefix(WANT_KEY), by)
            return
        if prefix.startswith(SHARED_KEY):
            prefix, by = prefix.removeprefix(SHARED_KEY), by * SHARED
        if len(prefix) == self._key_size:
            number = self.keys.get(prefix)
            if number is not None:
                self.wanted[number] = int(self.wanted[number]) + by
            return
        word = int.from_bytes(prefix.ljust(MAX_KEY_BYTES, b"\0"), "little", signed=True)
        text, sizes = self.table.text.ctypes.data, self.table.sizes.ctypes.data
        cover(text, sizes, self.wanted.ctypes.data, len(self.keys), word, len(prefix), by)
