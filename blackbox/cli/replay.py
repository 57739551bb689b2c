"""`blackbox replay`: publish recorded days again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from blackbox.cli.control import speed_of, speed_text
from blackbox.cli.ui.days import days_of, time_ns
from blackbox.cli.ui.progress import LINE_EVERY_S, TEXT, bar, ticking
from blackbox.cli.ui.status import exit_statuses, lose, warn
from blackbox.cli.ui.terminal import say, stderr, stdout
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.schema import RAW
from blackbox.report.numbers import NOTHING, count, counted, duration, factor, rate
from blackbox.subscribe.stop_signals import stop_signals

if TYPE_CHECKING:
    from blackbox.archive.recording import Recording
    from blackbox.cli.ui.source_publisher import SourcePublisher
    from blackbox.replay.controls import Controls
    from blackbox.replay.replay import Replay, ReplayStatistics
    from blackbox.replay.status import ReplayStatus

_SHOW_EVERY_S: Final = 0.2


def replay(
    recording: Annotated[
        list[Path],
        typer.Argument(metavar="RECORDING", help="Days' directories, or a feed's directory: all of its days."),
    ],
    feed: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Feed file (TOML) to publish on; subscribers load the same one. Default: the feed that was recorded, "
            "at its own endpoints. With other slices, messages are distributed anew.",
            show_default=False,
        ),
    ] = None,
    speed: Annotated[
        str,
        typer.Option(
            metavar="X",
            help="Seconds of market time in a second: 1 as it happened, 10 ten times as fast, "
            "`max` as fast as the subscribers take it.",
        ),
    ] = "max",
    start: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="First market time to play: `09:30` of each day, in the feed's time zone; ISO 8601; or ns since 1970.",
            show_default=False,
        ),
    ] = None,
    stop: Annotated[
        str | None, typer.Option(metavar="TIME", help="Market time to stop before.", show_default=False)
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only topics that start with this.")] = "",
    slices: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Only these slices of the recording, e.g. `0,2`.", show_default=False),
    ] = None,
    loop: Annotated[
        int, typer.Option(metavar="N", min=0, help="Play it N times, one after the other; 0: until it is stopped.")
    ] = 1,
    keep_gaps: Annotated[
        bool,
        typer.Option(
            "--keep-gaps/--no-gaps",
            help="Leave out the sequence numbers that are missing in the recording, so that subscribers count the "
            "same gaps as its recorder did; or let numbers run on.",
        ),
    ] = False,
    max_silence: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=1e-9, help="Cut longer silences of market time to this.", show_default=False
        ),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(
            metavar="ENDPOINT",
            help="Listen here (tcp or ipc) for `blackbox control`. Whoever reaches it may use it: keep to 127.0.0.1.",
            show_default=False,
        ),
    ] = None,
    wait_for: Annotated[
        int, typer.Option(metavar="N", min=0, help="Begin once every slice has N subscribers; 0: at once.")
    ] = 1,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for those subscribers.")
    ] = 60.0,
    drop: Annotated[
        bool,
        typer.Option(
            "--drop",
            help="Behave as live: a subscriber that does not keep up loses blocks, and counts the gap. "
            "Otherwise the replay waits for the slowest.",
        ),
    ] = False,
) -> None:
    """Play recorded days onto the wire, as if they were live: subscribers cannot tell.

    Each slice goes in the order of the market, stamped with the present time; the venue's own times stay as they are.
    Several days are played as one, in order.

    Control it by keys in its terminal: space pauses, + and - double and halve the speed, m plays as fast as possible, s
    steps one message, ← and → go a minute back and forth, q stops; or from elsewhere, with --control and
    `blackbox control`.

    For example, each with `blackbox subscribe` in another terminal:

    blackbox replay recordings/local/2026-11-20                       as fast as the subscribers take it

    blackbox replay recordings/local --speed 10                       all days, ten times as fast as they happened

    blackbox replay recordings/local/2026-11-20 --start 09:30 --stop 09:45 --prefix AAPL. --speed 1

    blackbox replay recordings/local/2026-11-20 --speed 1 --max-silence 5 --control tcp://127.0.0.1:17300
    """
    with exit_statuses():
        pace = speed_of(speed, "--speed")
        chosen = _slices_of(slices)

        from blackbox.cli.ui.source_publisher import SourcePublisher
        from blackbox.replay.controls import Controls
        from blackbox.replay.replay import Replay
        from blackbox.replay.to_wire import check_target

        recordings = _opened(recording)
        target = _target_of(feed, recordings)
        controls = Controls(pace, max_silence)
        try:
            played = Replay(
                recordings,
                start=_checked(recordings[0], start, "--start"),
                stop=_checked(recordings[-1], stop, "--stop"),
                prefix=prefix.encode(),
                slices=chosen,
                keep_gaps=keep_gaps,
                loops=loop,
                controls=controls,
            )
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise typer.BadParameter(str(error)) from error
        check_target(target, [each.feed for each in recordings], keep_gaps=keep_gaps)
        with ExitStack() as stack:
            publisher = stack.enter_context(SourcePublisher(target, when_full="drop" if drop else "wait"))
            if control is not None:
                from blackbox.replay.control_socket import ControlSocket

                zone = recordings[0].feed.time_zone
                stack.enter_context(ControlSocket(controls, control, time_zone=zone, feed=target))
            publisher.wait_for_each_slice(wait_for, timeout, say)
            done = False
            try:
                with _stopping_at_signals(controls):
                    _publish(played, publisher, controls)
                publisher.flush()
                done = True
            finally:
                publisher.close(timeout=30.0 if done else 1.0)
                _print_summary(played.statistics())
        sent = publisher.statistics()
        if sent.unwanted and not sent.messages:
            warn(f"nobody had subscribed: all {count(sent.unwanted)} messages were unwanted, and none was sent")
        elif sent.unwanted:
            warn(f"{count(sent.messages)} messages were sent; {count(sent.unwanted)} were not: nobody wanted them")
        discarded = sent.discarded
        if discarded:
            lose(f"{count(discarded)} messages were not sent: a subscriber did not take them in time")


def _checked(recording: Recording, text: str | None, option: str) -> str | None:
    """Return the text of a time. Raises BadParameter when it is none: status 2."""
    time_ns(recording, text, option)
    return text


def _opened(paths: Sequence[Path]) -> list[Recording]:
    """The recordings of days' directories, and of all days of feeds' directories."""
    from blackbox.archive.recording import Recording

    days = []
    for path in paths:
        days += days_of(path) or [path]
    return [Recording.open(day) for day in dict.fromkeys(day.resolve() for day in days)]


def _target_of(path: str | None, recordings: Sequence[Recording]) -> Feed:
    """The feed to publish on. One of the schema `raw`, which is the default, carries any payload."""
    recorded = recordings[0].feed
    if path is None:
        for each in recordings:
            if each.encrypted:
                raise ConfigError(
                    f"{each.path} is of a feed with [security], whose keys no recording keeps: give its feed file "
                    "(--feed), or one without [security] to publish in the clear"
                )
        return recorded
    feed = Feed.load(path)
    return msgspec.structs.replace(feed, schema=recorded.schema) if feed.schema_name == RAW.name else feed


def _slices_of(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise typer.BadParameter(f"slices were {text!r}, expected numbers such as 0,2", param_hint="--slices")
    return tuple(int(part) for part in parts)


def _publish(played: Replay, publisher: SourcePublisher, controls: Controls) -> None:
    from blackbox.cli.ui.keys import Keys, describe

    with Keys(controls) as keys, _progress(controls):
        if keys.is_active:
            say(describe())
        played.publish(publisher)


@contextmanager
def _stopping_at_signals(controls: Controls) -> Iterator[None]:
    """Stop the replay at a first signal, with exact totals. A second one ends the process at once."""
    caught: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if caught and callable(before[number]):
            before[number](number, frame)
        caught.append(number)
        controls.stop()

    before: dict[int, Any] = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if caught:
        signal.raise_signal(caught[0])


@contextmanager
def _progress(controls: Controls) -> Iterator[None]:
    """Show where the replay is until the block is left: a bar on a terminal, elsewhere lines."""
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
    return f"{rate(now.messages_per_second, 1)}  {state}{left}"


def _print_summary(done: ReplayStatistics) -> None:
    faster = f", {factor(done.times_faster)} times the market's pace" if done.market_seconds else ""
    stdout.print(
        f"replayed {count(done.messages)} messages in {duration(done.seconds * 1e9)}: "
        f"{rate(done.messages, done.seconds)}{faster}",
        highlight=False,
        soft_wrap=True,
    )
    if not done.messages:
        warn("no message was chosen: see --start, --stop, --prefix and --slices beside `blackbox inspect`")
    if done.damaged:
        warn(f"{count(done.damaged)} messages were left out: their blocks could not be read")
