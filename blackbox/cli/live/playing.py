"""A replay in the foreground: its keys, its progress, its end at a signal, its summary."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from blackbox.cli.live.control import speed_text
from blackbox.cli.ui.progress import LINE_EVERY_S, TEXT, bar, ticking
from blackbox.cli.ui.status import warn
from blackbox.cli.ui.terminal import say, stderr, stdout
from blackbox.numbers import NOTHING, count, counted, duration, factor, rate
from blackbox.receive.supervise.stop_signals import stopping_at_signals

if TYPE_CHECKING:
    from blackbox.replay.controls import Controls
    from blackbox.replay.replay import ReplayStatistics
    from blackbox.replay.status import ReplayStatus

_SHOW_EVERY_S: Final = 0.2


@contextmanager
def playing(controls: Controls) -> Iterator[None]:
    """Control a replay by keys and show its progress, until the block is left; a signal stops it."""
    from blackbox.cli.live.keyboard import Keys, describe

    with _stopped_by_signals(controls), Keys(controls) as keys, _progress(controls):
        if keys.is_active:
            say(describe())
        yield


@contextmanager
def _stopped_by_signals(controls: Controls) -> Iterator[None]:
    """Stop the replay at the first signal, with exact totals. A second one ends the process at once."""

    def end_at_once() -> NoReturn:
        raise KeyboardInterrupt

    with stopping_at_signals(lambda _number: controls.stop(), end_at_once) as came:
        yield
    if came:
        signal.raise_signal(min(came))


@contextmanager
def _progress(controls: Controls) -> Iterator[None]:
    """Show the position of the replay until the block is left: a bar on a terminal, else lines."""
    if not stderr.is_terminal:
        with ticking(lambda: _say_line(controls.status()), LINE_EVERY_S):
            yield
        return
    with bar("replaying", None, TEXT) as move, ticking(lambda: _move_bar(move, controls.status()), _SHOW_EVERY_S):
        yield


def _move_bar(move: Callable[..., None], now: ReplayStatus) -> None:
    length, done = max(1, now.stop_ns - now.start_ns), now.position_ns - now.start_ns
    move(description=_position_text(now), total=length, completed=done, text=_pace_text(now))


def _say_line(now: ReplayStatus) -> None:
    say(f"replayed {counted(now.messages, 'message')}, at {_position_text(now)}, {_pace_text(now)}")


def _position_text(now: ReplayStatus) -> str:
    from blackbox.timestamps import time_text

    return time_text(now.position_ns, 0)[:-1].replace("T", " ") if now.position_ns else NOTHING


def _pace_text(now: ReplayStatus) -> str:
    state = str(now.state) if now.state in ("paused", "stepping") else f"speed {speed_text(now.speed)}"
    left = "" if now.seconds_left is None else f"  {duration(now.seconds_left * 1e9)} left"
    return f"{rate(now.messages_per_second)}  {state}{left}"


def print_summary(done: ReplayStatistics) -> None:
    """Print what was replayed, and warn if nothing or damaged messages were left out."""
    faster = f", {factor(done.times_faster)} times the market's pace" if done.market_seconds else ""
    stdout.print(
        f"replayed {count(done.messages)} messages in {duration(done.seconds * 1e9)}: "
        f"{rate(done.messages, done.seconds)}{faster}",
        highlight=False,
        soft_wrap=True,
    )
    if not done.messages:
        warn("no message was selected: compare --start, --stop, --prefix, --symbol and --slice with `blackbox inspect`")
    if done.damaged:
        warn(f"{count(done.damaged)} messages were left out: their blocks could not be read")
