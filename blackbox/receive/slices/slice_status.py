"""Memory that a slice and its owner share, also across processes, and what the owner reads from it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from blackbox.block.position import Position
from blackbox.errors import GapError
from blackbox.feed.endpoint import SHARED_MEMORY, transport_of
from blackbox.native.memory.arrays import shared_array
from blackbox.native.tables.name_table import Numbering
from blackbox.receive.order.state import Order, Phase
from blackbox.receive.slow_subscriber import NO_LIMIT_NS
from blackbox.receive.state import LIVES, SliceLife, SliceState
from blackbox.receive.statistics import Counters

if TYPE_CHECKING:
    from blackbox.receive.slices.catching_up import Since
    from blackbox.receive.slices.options import SliceSettings

_MEAN_TOPIC_BYTES: Final = 32
_DEAD_AFTER_HEARTBEATS: Final = 3
_END_SETTLES_NS: Final = 50_000_000
"""Time after a reported end within which a further block disproves it."""


class Kept(NamedTuple):
    """Data kept of a slice that has ended: it continues its counters and topic numbers when it starts again."""

    counters: Counters
    topics: Numbering
    transport: str


class FinalLoss(NamedTuple):
    """Lost messages that end a subscriber."""

    position: Position
    """The first of them."""
    stop: int
    """Sequence after the last of them."""
    count: int  # type: ignore[assignment]  # hides an unused method of tuples
    is_upper_bound: bool


class SliceStatus:
    """State, counters, order and topic numbers of a slice. The slice thread writes them, any thread may read them."""

    def __init__(self, settings: SliceSettings, slice_id: int, since: Since | None, kept: Kept | None) -> None:
        feed, options = settings.feed, settings.options
        self.feed, self.slice_id, self.lines = feed, slice_id, feed.slices[slice_id].lines
        self.state = SliceState()
        self.state.acts_from_ns = NO_LIMIT_NS
        self.state.accepted_epoch, self.state.accepted_sequence = settings.accepted.get(slice_id, (0, 0))
        if kept is None:
            topics = Numbering(feed.max_topics, _MEAN_TOPIC_BYTES, shared_array)
            kept = Kept(Counters(options.workers + 1, len(feed.slices[slice_id].multicast)), topics, "")
        self.counters, self.topics = kept.counters, kept.topics
        self.order = Order(
            feed.max_keys,
            len(self.lines),
            options.line_wait_ns,
            _DEAD_AFTER_HEARTBEATS * feed.heartbeat_ns,
            options.hwm_blocks * feed.block_bytes,
            self.counters.slice,
            repairs=options.on_gap == "repair",
        )
        if feed.slices[slice_id].multicast and feed.slices[slice_id].sockets:
            self.order.carry_no_data(0)
        self._started_ns = time.monotonic_ns()
        self._starts_at_a_time = since is not None and since.start_ns != 0
        self.first_position: Position | None = None
        """Position at which a publisher first confirmed the filters, if the slice began live."""

    def is_full(self, upstream: frozenset[bytes]) -> bool:
        """Return True if these filters accept all keys."""
        return not self.feed.key_rule or b"" in upstream

    @property
    def life(self) -> SliceLife:
        """Current stage of its life."""
        return LIVES[self.state.life]

    def enter(self, life: SliceLife) -> None:
        """Enter `life`. Raises RuntimeError if it cannot follow the current stage."""
        self.state.life = LIVES.index(self.life.enter(life, f"slice {self.slice_id}"))

    @property
    def is_ready(self) -> bool:
        """True if everything is compiled and connected."""
        return self.life not in (SliceLife.NEW, SliceLife.OPENING)

    @property
    def is_confirmed(self) -> bool:
        """True if every line's publisher has confirmed the newest filters; with two hubs, one of them."""
        return self.confirmed_lines >= (1 if self.feed.hub_backup else len(self.lines))

    @property
    def confirmed_lines(self) -> int:
        """Number of lines whose publisher has confirmed the newest filters."""
        state = self.state
        return state.confirmed_lines.bit_count() if state.confirmed_version == state.newest_version else 0

    @property
    def is_finished(self) -> bool:
        """True if every line's publisher has ended, or has died after the other line's ended.

        Delayed a little, since a later block disproves an end.
        """
        finished, now_ns = self.state.finished_lines, time.monotonic_ns()
        settled = bool(finished) and now_ns - self.state.finished_ns >= _END_SETTLES_NS
        settled &= not self.is_catching_up and self.order.state.sent == self.order.state.taken
        settled &= not self.order.is_unsettled
        return settled and all(finished >> n & 1 or self.order.is_dead(n, now_ns) for n in range(len(self.lines)))

    @property
    def is_catching_up(self) -> bool:
        """True while archives deliver the messages before the live ones."""
        return self.order.state.phase != Phase.LIVE

    def silence_s(self) -> float:
        """Return for how many seconds no line had brought a message when the loop last looked; 0: all have ended."""
        if self.is_finished:
            return 0.0
        heard_ns = max(self._started_ns, *(self.order.epochs.heard_ns[line] for line in range(len(self.lines))))
        return max(0.0, (self.state.idle_ns - heard_ns) / 1e9)

    @property
    def transport(self) -> str:
        """Current transport of its blocks."""
        return SHARED_MEMORY if self.state.is_shared else transport_of(self.lines[-1])

    @property
    def awaits_start(self) -> bool:
        """True if it starts at a time and archives have not reported the position of that time."""
        return self._starts_at_a_time and bool(self.order.state.opens)

    @property
    def position(self) -> Position | None:
        """Position after all messages handed over; None: unknown, or within an image."""
        state = self.order.state
        if state.images or not state.is_strict or self.awaits_start:
            return None
        return self.order.position if state.epoch or self.is_catching_up else None

    def note_first_position(self) -> None:
        """Note that a publisher has confirmed the filters for the first time."""
        if not self.is_catching_up:
            self.first_position = self.position

    @property
    def lost(self) -> FinalLoss | None:
        """Loss that ended the subscriber; None: none."""
        state = self.state
        if not state.gap_count:
            return None
        first = Position(state.gap_epoch, state.gap_sequence)
        return FinalLoss(first, state.gap_stop, state.gap_count, bool(state.gap_is_upper_bound))

    def gap_error(self) -> GapError:
        """Return the error for the loss that ends the subscriber."""
        state = self.state
        of_key = f" of key {self.order.keys.name(state.gap_key)!r}" if state.gap_key >= 0 else ""
        many = f"{'at most ' * state.gap_is_upper_bound}{state.gap_count}"
        return GapError(
            f"feed {self.feed.name!r} slice {self.slice_id}: {many} messages{of_key} were lost, from "
            f"sequence {state.gap_sequence} of epoch {state.gap_epoch} on, expected none with on_gap='stop'"
        )
