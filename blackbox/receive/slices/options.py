"""Settings of a subscriber and its slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from blackbox.arguments import check_integers, duration_ns
from blackbox.block.batch.block_handler import NO_HANDLER, BlockHandlerAt
from blackbox.block.position import Position
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import RAW, Schema
from blackbox.receive.callbacks.match_table import MAX_WORKERS
from blackbox.receive.callbacks.slice_hooks import NO_HOOKS, SliceHooks
from blackbox.receive.slow_subscriber import SlowPolicy
from blackbox.transport.wakeup import Pipe

if TYPE_CHECKING:
    from blackbox.receive.slices.catching_up import Archives, Since

_LONGEST_WAIT_S = 1_000.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a subscriber, the same for all slices: see `Subscriber`. Raises ValueError if one is out of range."""

    workers: int
    """0: callbacks run in the slice thread, or a block handler takes the blocks instead."""
    slow: SlowPolicy
    queue_blocks: int = 16
    hwm_blocks: int = 128
    on_error: Literal["stop", "log"] = "stop"
    line_wait: float | timedelta = 0.05
    on_gap: Literal["tell", "stop", "repair"] = "tell"
    repair_wait: float | timedelta = 2.0

    def __post_init__(self) -> None:
        check_integers(
            ("workers", self.workers, 0, MAX_WORKERS),
            ("queue_blocks", self.queue_blocks, 1, 1 << 20),
            ("hwm_blocks", self.hwm_blocks, 1, 1 << 20),
        )
        duration_ns("line_wait", self.line_wait, 0, _LONGEST_WAIT_S)
        duration_ns("repair_wait", self.repair_wait, 0.001, _LONGEST_WAIT_S)
        if not isinstance(self.slow, SlowPolicy):
            raise TypeError(f"slow was {self.slow!r}, expected a SlowPolicy, such as SlowPolicy('raise')")
        if self.on_error not in ("stop", "log"):
            raise ValueError(f"on_error was {self.on_error!r}, expected 'stop' or 'log'")
        if self.on_gap not in ("tell", "stop", "repair"):
            raise ValueError(f"on_gap was {self.on_gap!r}, expected 'tell', 'stop' or 'repair'")

    @property
    def line_wait_ns(self) -> int:
        """`line_wait` in ns."""
        return duration_ns("line_wait", self.line_wait, 0, _LONGEST_WAIT_S)

    @property
    def repair_wait_ns(self) -> int:
        """`repair_wait` in ns."""
        return duration_ns("repair_wait", self.repair_wait, 0.001, _LONGEST_WAIT_S)


class SliceSettings(NamedTuple):
    """Settings of all slices of a subscriber, made once when it starts."""

    feed: Feed
    options: Options
    news: Pipe
    """Poked when a slice has news for the supervisor."""
    schema: Schema = RAW
    archives: Archives | None = None
    """Source of missed messages."""
    hooks: Callable[[], SliceHooks] = lambda: NO_HOOKS
    handler: Callable[[int], BlockHandlerAt] = lambda _: NO_HANDLER
    """Returns what gets every block of a slice; there are then no workers."""
    since: Callable[[int], Since | None] = lambda _: None
    """Returns the start of a slice in the past."""
    accepted: Mapping[int, Position] = {}
    """By slice, the position up to which losses do not end the subscriber."""
    refuses_alone: bool = False
    """True if filters that a publisher refuses, once some were confirmed, end only the callbacks that need them."""
    has_started: bool = False
    """True if the other slices have started: none needs a confirmation before its filters may be refused."""
