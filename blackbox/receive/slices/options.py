"""Settings of a subscriber, and the system resources that its slices need."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import msgspec

from blackbox.arguments import check_integers, duration_ns
from blackbox.feed.slice import Slice
from blackbox.native.compile.jit import WARM_UP_NEEDS
from blackbox.native.system.limits import Needs
from blackbox.receive.callbacks.match_table import MAX_WORKERS
from blackbox.receive.slices.catching_up import CATCH_UP_NEEDS
from blackbox.receive.slices.flood_guard import GUARD_NEEDS
from blackbox.receive.slow_subscriber import SlowPolicy
from blackbox.transport.context import CONTEXT_NEEDS
from blackbox.transport.wakeup import PIPE_NEEDS

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


def needs_of(feed_slice: Slice, options: Options) -> tuple[Needs, ...]:
    """Return what a `SliceThread` opens and starts: ROUTER, a DEALER per worker, SUB, a connection per line, its guard.

    With shared memory also a connection, a pidfd of the publisher, its bell, and briefly the memory.
    """
    lines = len(feed_slice.lines) + 5 * bool(feed_slice.shared_memory)
    threads = 1 + options.workers
    return (
        PIPE_NEEDS,
        CONTEXT_NEEDS,
        *[WARM_UP_NEEDS] * threads,
        Needs(2 + options.workers + lines, threads),
        GUARD_NEEDS,
        *(CATCH_UP_NEEDS if options.on_gap == "repair" else ()),
    )
