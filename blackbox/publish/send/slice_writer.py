"""The publishing threads' side of a slice: what they put into its ring, and what they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.form.encode import Rows
from blackbox.block.form.rows import PayloadColumns, as_rows
from blackbox.errors import JournalError, NotRecordedError, PublisherError
from blackbox.native.compile.jit import warm_up
from blackbox.native.system.waits import acquire, step_of
from blackbox.publish.listeners.ack_tracker import What, in_words
from blackbox.publish.send.batcher import (
    LOST_PAGES,
    MOST_ABSENT,
    OUT_OF_MEMORY,
    Stored,
    first_misfit,
    group_by_key,
    put_blocks,
    put_show,
    put_stored,
    select_rows,
)
from blackbox.publish.send.slice_sender import SliceSender

WINDOW_ROWS = 131_072
"""Rows that `publish_many` groups by key at a time."""
_ASK_AGAIN_S: Final = 0.25
"""Time until a heartbeat that recorders did not answer is repeated."""


class Resolved(NamedTuple):
    """Slice and topic id of each topic of a call."""

    slices: NDArray[numpy.int32]
    ids: NDArray[numpy.int32]
    distinct: list[int]
    """The slices that have a topic."""

    @classmethod
    def of(cls, slices: NDArray[numpy.int32], ids: NDArray[numpy.int32]) -> Resolved:
        """Return the columns with their distinct slices."""
        return cls(slices, ids, numpy.unique(slices).tolist())


class SliceWriter:
    """Puts blocks and requests into the ring of a slice, for any thread that publishes; waits for recorders.

    `ring.lock` is held while one thread writes. A plain `publish` does not come here: see `Ring`.
    """

    def __init__(self, sender: SliceSender, has_outbox: bool) -> None:
        self.sender, self.ring = sender, sender.ring
        self._encoder = sender.make_encoder(WINDOW_ROWS)
        wanted = sender.subscriptions.wanted
        self._encoded = numpy.ones(len(wanted), numpy.uint16) if has_outbox else wanted
        """Above 0: the blocks of a key are encoded, even if it is not wanted: an outbox must get every message."""

    def start(self) -> None:
        """Start the sender. Raises as `SliceSender.start`."""
        self.sender.start()
        self._encoder = self._encoder._replace(shared=self.sender.sockets.shared_at)

    def warm_up(self) -> None:
        """Compile what `publish_many` runs."""
        ring, encoder, column = self.ring.at, self._encoder, numpy.empty(0, numpy.int32)
        rows, _ = as_rows(PayloadColumns(numpy.empty((0, 1), numpy.uint8)), 0)
        warm_up(select_rows, encoder.selection, 0, 0, 0, column, column, 0)
        warm_up(group_by_key, encoder.selection, 0, encoder.key_of_topic, 0)
        warm_up(first_misfit, rows, 0, 0, numpy.empty(0, numpy.int64))
        warm_up(put_blocks, ring, encoder, 0, rows, 0, self._encoded, 0)

    def warm_up_stored(self) -> None:
        """Compile what `put_stored` runs."""
        origin, shared = self.sender.numbers.origin, self.sender.sockets.shared_at
        warm_up(put_stored, self.ring.at, origin, Stored(0, 0, 0, 0), 0, self._encoded, 0, shared)

    def put_rows(
        self, resolved: Resolved, index: NDArray[numpy.int32], rows: Rows, window: tuple[int, int], ts_in: int
    ) -> None:
        """Put those rows of a window that belong to this slice, grouped by key. `index`: topic of each row."""
        sender, ring, wanted = self.sender, self.ring.at, self._encoded
        with self.ring.lock:
            sender.check()
            encoder = self._encoder._replace(origin=sender.numbers.origin)
            selection = encoder.selection
            count = select_rows(selection, index.ctypes.data, *window, resolved.slices, resolved.ids, sender.slice_id)
            if count < 0:
                raise ValueError("topic_index was changed during publishing and is now out of range")
            groups = group_by_key(selection, count, encoder.key_of_topic, len(sender.subscriptions.keys))
            self._put(count, lambda done: put_blocks(ring, encoder, done, rows, groups, wanted, ts_in))

    def put_stored(self, keys: Sequence[bytes], stored: Stored) -> None:
        """Put encoded blocks unchanged except for their headers, which are stamped again. `keys`: of each block.

        Raises JournalError if one of their files was truncated.
        """
        sender, ring, ts_in = self.sender, self.ring.at, time.time_ns()
        wanted = sender.subscriptions.wanted if stored.is_again else self._encoded
        with self.ring.lock:
            sender.check()
            numbers = numpy.fromiter(map(sender.numbers.add_key, keys), numpy.int64, stored.count)
            stored = stored._replace(keys=numbers.ctypes.data)
            origin, shared = sender.numbers.origin, sender.sockets.shared_at
            self._put(stored.count, lambda done: put_stored(ring, origin, stored, done, wanted, ts_in, shared))

    def skip(self, count: int, ts_event: int) -> None:
        """Skip sequences after the messages published before, with a heartbeat before and after."""
        self._show(0, 0)  # separates this gap from earlier losses at a recorder
        for first in range(0, count, MOST_ABSENT):
            self._show(ts_event, min(count - first, MOST_ABSENT))

    def _show(self, ts_event: int, absent: int) -> None:
        ring = self.ring.at
        with self.ring.lock:
            self.sender.check()
            self._put(1, lambda _: int(put_show(ring, ts_event, absent, time.time_ns())))

    def _put(self, count: int, put: Callable[[int], int]) -> None:
        """Call `put` with the number of things put before until it returns `count`; in between wait for room."""
        ring, done = self.ring, 0
        ring.take_turn()
        try:
            while done < count:
                try:
                    done = put(done)
                finally:  # runs even if Ctrl-C comes right after the call: the blocks are in the ring
                    ring.forget_limit()
                if done == OUT_OF_MEMORY:
                    raise MemoryError(f"slice {self.sender.slice_id}: no memory for a block")
                if done == LOST_PAGES:
                    what = "a recording's file was truncated while it was being published"
                    raise JournalError(f"slice {self.sender.slice_id}: {what}")
                if done < count:
                    ring.wait()
        finally:
            ring.turn = None

    # Waiting

    def flush(self, deadline: float, next_epoch: int = 0) -> None:
        """Wait until the ring is empty: everything published before was handed to ZeroMQ.

        `next_epoch`: epoch of everything published from now on; see `SliceSender.change_epoch`. Raises PublisherError
        at the deadline.
        """
        ring = self.ring
        if not acquire(ring.lock, deadline - time.monotonic()):
            raise self._late  # another thread holds it while waiting for room
        try:
            ring.take_turn()
            try:
                while not ring.is_empty():
                    if time.monotonic() >= deadline:
                        raise self._late
                    ring.announce_wait()
                    if not ring.is_empty():
                        ring.wait()
                self.sender.check()  # a sender that has failed empties the ring, too
                if next_epoch:
                    self.sender.change_epoch(next_epoch, deadline)
            finally:
                ring.turn = None
        finally:
            ring.lock.release()

    def wait_kept(self, sequence: int, deadline: float) -> None:
        """Wait until the outbox has all messages before `sequence`, and its notes. Raises PublisherError."""
        if not self.ring.is_empty():  # it is empty if this thread has sent for the sender
            self.flush(deadline)
        self.sender.check()
        position = self.sender.numbers.position
        if position < sequence:
            raise PublisherError(f"slice {self.sender.slice_id}: reached {position}, expected {sequence}")

    def wait_for_any(self, until: float) -> None:
        """Wait until there is a subscriber, at most until a monotonic time."""
        subscriptions = self.sender.subscriptions
        with subscriptions.changed:
            while not subscriptions.subscribers(b"") and (left := until - time.monotonic()) > 0:
                self.sender.check()
                subscriptions.changed.wait(step_of(left))

    def ask_recorders(self) -> tuple[int, int]:
        """Send a heartbeat at once, which recorders answer with their positions. Return the epoch and position sent."""
        sender = self.sender
        with sender.subscriptions.changed:
            asked = sender.numbers.origin.epoch, sender.numbers.position
            sender.subscriptions.times_asked += 1
        sender.sent.heartbeat_at = 0
        self.ring.wake()
        return asked

    def wait_acknowledged(self, what: What, by: int, asked: tuple[int, int], timeout: float, deadline: float) -> None:
        """Wait until `by` recorders have acknowledged what `ask_recorders` found sent as recorded, or synced.

        Raises NotRecordedError at the deadline, `timeout` seconds after the call, or if another epoch began.
        """
        (epoch, goal), changed = asked, self.sender.subscriptions.changed
        acknowledgements = self.sender.subscriptions.acknowledgements
        with changed:
            while True:
                reached = acknowledgements.reached(what, by, goal) if acknowledgements.epoch == epoch else 0
                if reached >= goal:
                    return
                self.sender.check()
                left = deadline - time.monotonic()
                if acknowledgements.epoch != epoch:
                    raise NotRecordedError(
                        f"{self._here}: epoch {epoch} was ended by `new_epoch` "
                        f"while {goal - reached} of its messages were not yet {what}"
                    )
                if left <= 0:
                    given_up = "; they are given up" if acknowledgements.give_up(what, by, goal) else ""
                    recorders = (
                        "; ".join(map(in_words, self.sender.recorders())) or "no recorder has acknowledged anything"
                    )
                    raise NotRecordedError(
                        f"{self._here}: messages {reached} to {goal - 1} were not {what} by {by} "
                        f"{'recorder' if by == 1 else 'recorders'} in {timeout} s{given_up}: {recorders}"
                    )
                if not changed.wait(min(left, _ASK_AGAIN_S)):
                    self.ask_recorders()

    @property
    def _late(self) -> PublisherError:
        return PublisherError(f"slice {self.sender.slice_id}: flush timed out: a subscriber did not keep up")

    @property
    def _here(self) -> str:
        return f"feed {self.sender.feed.name!r} slice {self.sender.slice_id}"
