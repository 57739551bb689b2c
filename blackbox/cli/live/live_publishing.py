"""A live source in `blackbox publish`: its end by a signal, its line of progress, its figures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from rich.text import Text

from blackbox.cli.ui.terminal import bad_if
from blackbox.numbers import count, duration
from blackbox.receive.supervise.stop_signals import stopping_at_signals

if TYPE_CHECKING:
    from blackbox.feed.live_source import LiveSource
    from blackbox.feed.source import Source


def live_of(sources: Sequence[Source]) -> LiveSource | None:
    """Return the live source, if there is one."""
    from blackbox.feed.live_source import LiveSource

    return next((source for source in sources if isinstance(source, LiveSource)), None)


@contextmanager
def ended_by_signals(source: LiveSource | None) -> Iterator[Collection[int]]:
    """Stop a live source at the first signal, so that everything received is published; a second one ends at once.

    Yields the signals that came.
    """
    if source is None:
        yield ()
        return

    def end_at_once() -> NoReturn:
        raise KeyboardInterrupt

    with stopping_at_signals(lambda _number: source.stop(), end_at_once) as came:
        yield came


def live_text(source: LiveSource) -> str:
    """Describe the state of a live source in a few words."""
    now = source.statistics()
    state = "connected" if now.connected else "not connected"
    delay = f"delay {duration(now.delay_p99_ns)} (p99), " if now.delay_p99_ns else ""
    return f"gaps {count(now.gaps)}, {delay}{state}"


def live_rows(source: LiveSource | None) -> list[tuple[str, str | Text] | tuple[str, str | Text, str]]:
    """Return the rows of a live source for the table of totals."""
    if source is None:
        return []
    now = source.statistics()
    rows: list[tuple[str, str | Text] | tuple[str, str | Text, str]] = [
        ("received", count(now.packets), "datagrams, packets or frames of the venue"),
        ("gaps", bad_if(now.gaps > 0, count(now.gaps)), f"{count(now.missing)} messages are missing in them"),
        ("recovered", count(now.recovered), "messages that filled gaps"),
        ("duplicates", count(now.duplicates), "messages received again, and skipped"),
        ("malformed", bad_if(now.malformed > 0, count(now.malformed)), "invalid, and skipped"),
        ("kernel drops", bad_if(now.kernel_drops > 0, count(now.kernel_drops)), "datagrams, as a buffer was full"),
        ("reconnects", count(now.reconnects)),
    ]
    if now.delay_p99_ns:
        about = f"median since the venue's time; p99 {duration(now.delay_p99_ns)}"
        rows.append(("delay", duration(now.delay_p50_ns), about))
    return rows
