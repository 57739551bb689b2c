"""`blackbox replay`: publish recorded days again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from blackbox.cli.live.control import speed_of
from blackbox.cli.live.playing import playing, print_summary
from blackbox.cli.live.publish import WhenFull, warn_of_unwanted
from blackbox.cli.live.serve_venue import Wait, serve_replay
from blackbox.cli.ui.days import StartOption, StopOption, days_of, time_ns
from blackbox.cli.ui.monitored import MetricsOption, monitored
from blackbox.cli.ui.options import (
    JsonOption,
    PrefixOption,
    SliceOption,
    SymbolOption,
    WaitTimeout,
    prefixes_of,
    symbols_of,
)
from blackbox.cli.ui.status import exit_statuses, lose
from blackbox.cli.ui.terminal import print_json, say
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import RAW
from blackbox.numbers import count

if TYPE_CHECKING:
    from blackbox.archive.recording import Recording
    from blackbox.cli.ui.source_publisher import SourcePublisher
    from blackbox.replay.replay import Replay


def replay(
    recording: Annotated[
        list[Path],
        typer.Argument(metavar="RECORDING...", help="Directories of days, or of a feed for all its days."),
    ],
    feed: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Feed file (TOML) to publish on, the same for subscribers. Default: the recorded feed with its "
            "endpoints. A feed with other slices distributes the messages again.",
            show_default=False,
        ),
    ] = None,
    speed: Annotated[
        str,
        typer.Option(
            metavar="X",
            help="Seconds of market time per second: 1 is real time, 10 is ten times as fast, "
            "`max` is as fast as the subscribers take it.",
        ),
    ] = "max",
    start: StartOption = None,
    stop: StopOption = None,
    prefix: PrefixOption = None,
    symbol: SymbolOption = None,
    slices: SliceOption = None,
    loop: Annotated[int, typer.Option(metavar="N", min=0, help="Play it N times; 0: until it is stopped.")] = 1,
    keep_gaps: Annotated[
        bool,
        typer.Option(
            "--keep-gaps",
            help="Skip the sequence numbers that are missing in the recording, so that subscribers count the same "
            "gaps as its recorder. Default: consecutive numbers.",
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
            help="Endpoint (tcp or ipc) for `blackbox control`. Every process that reaches it can use it: stay on "
            "127.0.0.1.",
            show_default=False,
        ),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Serve one day in the venue's own protocol instead of publishing it, such as "
            "moldudp64://127.0.0.1:26400; see `venue-servers` in the docs.",
            show_default=False,
        ),
    ] = None,
    wait_for: Annotated[
        int, typer.Option(metavar="N", min=0, help="Wait until every slice has N subscribers; 0: publish at once.")
    ] = 1,
    timeout: WaitTimeout = None,
    when_full: Annotated[
        WhenFull,
        typer.Option(
            help="When a subscriber's queue is full: `wait` for the slowest subscriber; "
            "or `drop` the block for that subscriber, which counts a gap, as a live feed does."
        ),
    ] = WhenFull.WAIT,
    metrics: MetricsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish recorded days again as if they were live.

    Each slice is played in the order of the market. Blocks get the present time; the venue's times do not change.
    Several days are played as one, in order.

    Control the replay by keys in its terminal: space pauses, + and - double and halve the speed, m plays as fast as
    possible, s steps one message, ← and → go a minute back and forth, q stops. From another process, use --control and
    `blackbox control`.

    JSON is printed at the end: `replay` and `publisher`, the statistics of both.

    For example, each with `blackbox subscribe` in another terminal:

    blackbox replay recordings/local/2026-11-20                       as fast as the subscribers take it

    blackbox replay recordings/local --speed 10                       all days, ten times as fast as real time

    blackbox replay recordings/local/2026-11-20 --start 09:30 --stop 09:45 --prefix AAPL. --prefix MSFT. --speed 1

    blackbox replay recordings/local/2026-11-20 --symbol AAPL --symbol BRK.B    exactly these symbols, not AAPLW

    blackbox replay recordings/local/2026-11-20 --speed 1 --max-silence 5 --control tcp://127.0.0.1:17300

    blackbox replay recordings/itch/2019-12-30 --speed 1 --serve 'moldudp64://239.1.1.1:26400?rerequest=127.0.0.1:26401'
    """
    with exit_statuses():
        pace = speed_of(speed, "--speed")
        if serve is not None:
            for name, is_given in (("--feed", feed is not None), ("--keep-gaps", keep_gaps)):
                if is_given:
                    raise typer.BadParameter(f"{name} was given with --serve, which does not publish on a feed")

        from blackbox.cli.ui.source_publisher import SourcePublisher
        from blackbox.replay.controls import Controls
        from blackbox.replay.play.to_venue import order_for_venue
        from blackbox.replay.play.to_wire import check_target
        from blackbox.replay.replay import Replay

        recordings = _opened(recording)
        target = recordings[0].feed if serve is not None else _target_of(feed, recordings)
        controls = Controls(pace, max_silence)
        try:
            played = Replay(
                recordings,
                start=_checked(recordings[0], start, "--start"),
                stop=_checked(recordings[-1], stop, "--stop"),
                prefix=prefixes_of(prefix),
                symbols=symbols_of(symbol),
                slices=slices,
                order=None if serve is None else order_for_venue(recordings),
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
            publisher = SourcePublisher(target, when_full=when_full.value)
            stack.enter_context(monitored(metrics, *([played] if serve is not None else [played, publisher])))
            if control is not None:
                from blackbox.replay.control_socket import ControlSocket

                zone = recordings[0].feed.time_zone
                stack.enter_context(ControlSocket(controls, control, time_zone=zone, feed=target))
            if serve is not None:
                serve_replay(played, serve, Wait(wait_for, timeout), as_json=as_json)
            else:
                _publish(played, publisher, Wait(wait_for, timeout), as_json=as_json)


def _publish(played: Replay, publisher: SourcePublisher, wait: Wait, *, as_json: bool) -> None:
    with publisher:
        publisher.wait_for_each_slice(wait.clients, wait.timeout, say)
        done = False
        try:
            with playing(played.controls):
                played.publish(publisher)
            publisher.flush()
            done = True
        finally:
            publisher.close(timeout=30.0 if done else 1.0)
            if as_json:
                print_json({"replay": played.statistics(), "publisher": publisher.statistics()})
            else:
                print_summary(played.statistics())
    sent = publisher.statistics()
    warn_of_unwanted(sent)
    if sent.discarded:
        lose(f"{count(sent.discarded)} messages were not sent: a subscriber did not take them in time")


def _checked(recording: Recording, text: str | None, option: str) -> str | None:
    """Return the text of a time. Raises BadParameter (status 2) if it is invalid."""
    time_ns(recording, text, option)
    return text


def _opened(paths: Sequence[Path]) -> list[Recording]:
    """Return the recordings in directories of days, and of all days in directories of feeds."""
    from blackbox.archive.recording import Recording

    days = []
    for path in paths:
        days += days_of(path) or [path]
    return [Recording.open(day) for day in dict.fromkeys(day.resolve() for day in days)]


def _target_of(path: str | None, recordings: Sequence[Recording]) -> Feed:
    """Return the feed to publish on. A feed with the default schema `raw` accepts any payload."""
    recorded = recordings[0].feed
    if path is None:
        for each in recordings:
            if each.encrypted:
                raise ConfigError(
                    f"{each.path} is of a feed with [security], and recordings do not keep keys: give its feed file "
                    "(--feed), or one without [security] to publish in the clear"
                )
        return recorded
    feed = Feed.load(path)
    return msgspec.structs.replace(feed, schema=recorded.schema) if feed.schema_name == RAW.name else feed
