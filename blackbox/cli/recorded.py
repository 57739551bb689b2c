"""How `blackbox record` shows what it does: live on a terminal, else as lines, at the end as a table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live

from blackbox.cli.feeds import feed_text
from blackbox.cli.subscription import LINE_EVERY_S, LIVE_EVERY_S, Rates, Screen
from blackbox.cli.terminal import (
    bad_if,
    columns_table,
    count,
    duration,
    megabytes,
    rate,
    say,
    stderr,
    stdout,
    titled,
    values_table,
)
from blackbox.recorder import Recorder, RecorderStatistics

_LAG: Final = "lag: time from the publisher's sending to the recorder, of the last block"


class Recorded:
    """A recorder, and what is to be told of it."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    @contextmanager
    def screen(self) -> Iterator[Screen]:
        """Show the recorder, which has started, until its end."""
        terminal = next((console for console in (stdout, stderr) if console.is_terminal), None)
        if terminal is None:
            yield _LineScreen(self.recorder)
            return
        with Live(console=terminal, auto_refresh=False, transient=True) as live:
            yield _LiveScreen(self.recorder, live)

    def print_totals(self) -> None:
        """The end of it."""
        now = self.recorder.statistics()
        came = now.received
        stdout.print(
            titled(
                f"recorded from {feed_text(self.recorder.feed)} to {self.recorder.directory}",
                values_table(
                    [
                        ("received", count(came.received), "messages, those that came on both lines twice"),
                        ("recorded", count(now.messages), "messages"),
                        ("blocks", count(now.blocks)),
                        ("stored", megabytes_of(now.stored_bytes)),
                        ("segments", count(now.segments)),
                        ("lost", bad_if(now.lost > 0, count(now.lost)), "received, but could not be written"),
                        ("gaps", bad_if(came.gaps > 0, count(came.gaps)), "messages that never came"),
                        ("duplicated", count(came.duplicates), "came again, from the other line: recorded once"),
                        ("malformed", bad_if(came.malformed > 0, count(came.malformed)), "blocks that were not valid"),
                        ("cut", count(now.cut_bytes), "bytes that a recorder which was killed had not written whole"),
                        ("lag", duration(came.last_lag_ns), _LAG),
                    ]
                ),
            )
        )


def megabytes_of(octets: int) -> str:
    """`812.5 MB`."""
    return f"{octets / 1e6:,.1f} MB"


class _LineScreen:
    """A line on stderr every other second."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last = time.monotonic()
        self._before = recorder.statistics()

    def show(self) -> None:
        """Print the line, if it is time."""
        seconds = time.monotonic() - self._last
        if seconds < LINE_EVERY_S:
            return
        now = self._recorder.statistics()
        say(
            f"recorded {count(now.messages)} messages, {rate(now.messages - self._before.messages, seconds)}, "
            f"{megabytes(now.stored_bytes - self._before.stored_bytes, seconds)}, lost {count(now.lost)}, "
            f"gaps {count(now.received.gaps)}, lag {duration(now.received.last_lag_ns)}"
        )
        self._last += seconds
        self._before = now


class _LiveScreen:
    """Two tables that stay in place: what comes, by slices, and what is on disk."""

    def __init__(self, recorder: Recorder, live: Live) -> None:
        self._recorder = recorder
        self._live = live
        self._last = 0.0
        self._rates = Rates()

    def show(self) -> None:
        """Draw the tables, if it is time."""
        if time.monotonic() - self._last >= LIVE_EVERY_S:
            self._last = time.monotonic()
            now = self._recorder.statistics()
            self._live.update(Group(self._slices(now), self._disk(now)), refresh=True)

    def _slices(self, now: RecorderStatistics) -> RenderableType:
        table = columns_table(("slice", "received", "rate", "gaps", "duplicated", "malformed", "lag"))
        for part in now.received.slices:
            table.add_row(
                str(part.slice_id),
                count(part.received),
                rate(self._rates.per_second(part.slice_id, part.received), 1),
                bad_if(part.gaps > 0, count(part.gaps)),
                count(part.duplicates),
                bad_if(part.malformed > 0, count(part.malformed)),
                duration(part.last_lag_ns),
            )
        table.caption = _LAG
        return titled("slices", table)

    def _disk(self, now: RecorderStatistics) -> RenderableType:
        table = columns_table(("recorded", "rate", "stored", "to disk", "segments", "lost"), left=0)
        table.add_row(
            count(now.messages),
            rate(self._rates.per_second("messages", now.messages), 1),
            megabytes_of(now.stored_bytes),
            megabytes(self._rates.per_second("bytes", now.stored_bytes), 1),
            count(now.segments),
            bad_if(now.lost > 0, count(now.lost)),
        )
        return titled(str(self._recorder.directory), table)
