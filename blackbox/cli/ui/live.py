"""Follow a running subscriber or recorder to its end: with tables updated in place on a terminal, else with lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from rich.console import RenderableType
from rich.live import Live

from blackbox.cli.ui import progress
from blackbox.cli.ui.terminal import say, stderr, stdout
from blackbox.errors import SilentPublisherError

if TYPE_CHECKING:
    from blackbox.receive.supervise.supervisor import SubscriberLife

_LOOK_EVERY_S: Final = 0.1
_TABLES_EVERY_S: Final = 0.25
_RATE_OVER_S: Final = 1.0


class Running(Protocol):
    """A subscriber or a recorder to follow."""

    @property
    def state(self) -> SubscriberLife:
        """Its current state."""

    @property
    def is_finished(self) -> bool:
        """True once every publisher has closed."""

    def _check_silence(self, silence_timeout: float | None) -> None:
        """Raise SilentPublisherError after `silence_timeout` seconds of silence."""

    def stop(self) -> None:
        """End it without loss."""


class View(Protocol):
    """Display of something that runs."""

    def tables(self, rates: Rates) -> RenderableType:
        """Return tables of the current figures, for a terminal."""

    def line(self, rates: Rates) -> str:
        """Return the current figures in one line."""


class Rates:
    """Rates of named counters, each over about the last second."""

    def __init__(self) -> None:
        self._before: dict[Any, tuple[float, float]] = {}
        self._newest: dict[Any, float] = {}

    def per_second(self, name: object, total: float) -> float:
        """Return the rate of the counter `name`, which is at `total` now; 0 in its first second."""
        now = time.monotonic()
        then, before = self._before.setdefault(name, (now, total))
        if now - then >= _RATE_OVER_S:
            self._newest[name] = (total - before) / (now - then)
            self._before[name] = now, total
        return self._newest.get(name, 0.0)


@contextmanager
def live_screen(view: View) -> Iterator[Callable[[], None]]:
    """Show a view until the block is left. Yield a function to call often, which updates it when due."""
    rates = Rates()
    terminal = next((console for console in (stdout, stderr) if console.is_terminal), None)
    if terminal is None:
        view.line(rates)  # start of the rates of the first line
        yield progress.at_most_every(progress.LINE_EVERY_S, lambda: say(view.line(rates)))
        return
    with Live(console=terminal, auto_refresh=False, transient=True) as live:

        def draw() -> None:
            live.update(view.tables(rates), refresh=True)

        yield progress.at_most_every(_TABLES_EVERY_S, draw, at_once=True)


def follow(
    running: Running,
    show: Callable[[], None],
    *,
    until_end: bool = False,
    silence_timeout: float | None = None,
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    """Call `show` ten times a second until `running` has ended; then stop it.

    It ends on an error, raised as by `Subscriber.run`; when `is_enough` returns True; with `until_end` when every
    publisher has closed. KeyboardInterrupt, and SilentPublisherError after `silence_timeout`, are raised once
    everything received has been delivered.
    """
    from blackbox.receive.supervise.supervisor import SubscriberLife

    pause = threading.Event()
    try:
        show()
        while running.state is SubscriberLife.RUNNING and not is_enough() and not (until_end and running.is_finished):
            pause.wait(_LOOK_EVERY_S)
            show()
            running._check_silence(silence_timeout)
    except (KeyboardInterrupt, SilentPublisherError):
        running.stop()
        raise
    running.stop()
