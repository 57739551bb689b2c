"""`blackbox control`: control a replay in another process."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import print_json, stdout, titled, values_table
from blackbox.feed.feed import Feed
from blackbox.numbers import NOTHING, count, duration, rate

if TYPE_CHECKING:
    from blackbox.replay.control_socket import Request
    from blackbox.replay.status import ReplayStatus

MAX_SPEED = "max"
_MOST_STEPS = (1 << 63) - 1


class Command(Enum):
    """The commands that a replay takes."""

    SPEED = "speed"
    PAUSE = "pause"
    RESUME = "resume"
    STEP = "step"
    SEEK = "seek"
    STATUS = "status"
    STOP = "stop"


def control(
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="Endpoint of the replay, as its `--control` gives it: tcp or ipc.")
    ],
    command: Annotated[
        Command, typer.Argument(metavar="COMMAND", help="speed, pause, resume, step, seek, status or stop.")
    ] = Command.STATUS,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="VALUE",
            help="For speed: a number, or max. For step: messages, default 1. For seek: a market time.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Time limit for the replay's answer.")] = 2.0,
    feed: Annotated[
        str | None,
        typer.Option(
            "--feed",
            metavar="FILE",
            help="Feed file (TOML) of the replay, if it has `security`: it names the keys.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Control a replay of another process, and show its status.

    speed 10 plays ten seconds of market time in one second, speed max as fast as the subscribers take it. The speed can
    change at any time: market time does not jump.

    pause holds the replay after the messages that were sent. step plays the next messages and holds it again.

    seek continues with the first message at a time or later, back or forth. The time is a date-time, in the time zone
    of the replay unless it has an offset (2019-12-30T14:30:00Z), a time of day (09:30), or ns since 1970. A time
    outside of the replay means its nearest end.

    JSON is the status: `state`, `speed`, `position_ns`, `start_ns`, `stop_ns`, `messages` and more.

    For example:

    blackbox control tcp://127.0.0.1:17300                its status: position, speed and time left

    blackbox control tcp://127.0.0.1:17300 speed 10       ten times as fast as real time

    blackbox control tcp://127.0.0.1:17300 speed max

    blackbox control tcp://127.0.0.1:17300 step 100       the next hundred messages, then pause

    blackbox control tcp://127.0.0.1:17300 seek 15:59:30

    blackbox control tcp://127.0.0.1:17300 status --json  for a script
    """
    with exit_statuses():
        request = _request_of(command, value)

        from blackbox.replay.control_socket import ask

        status = ask(endpoint, request, timeout, None if feed is None else Feed.load(feed))
        if as_json:
            print_json(status)
        else:
            _print(endpoint, status)


def _request_of(command: Command, value: str | None) -> Request:
    """Parse the value of a command. Raises BadParameter (status 2) if it does not fit the command."""
    from blackbox.replay import control_socket

    match command:
        case Command.SPEED:
            return control_socket.SetSpeed(speed_of(value))
        case Command.STEP:
            return control_socket.Step(_messages_of(value))
        case Command.SEEK:
            if value is None:
                raise _wrong("seek needs a time, such as 14:30")
            return control_socket.Seek(value)
    if value is not None:
        raise _wrong(f"{command.value} takes no value, but was given {value!r}")
    return {
        Command.PAUSE: control_socket.Pause,
        Command.RESUME: control_socket.Resume,
        Command.STATUS: control_socket.GetStatus,
        Command.STOP: control_socket.Stop,
    }[command]()


def speed_of(value: str | None, name: str = "VALUE") -> float | None:
    """Return a speed from its text; None: max. Raises BadParameter if it is not a speed."""
    if value == MAX_SPEED:
        return None
    try:
        speed = float(value or "")
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise typer.BadParameter(f"speed was {value!r}, expected a number above 0, or {MAX_SPEED}", param_hint=name)
    return speed


def _messages_of(value: str | None) -> int:
    if value is None:
        return 1
    messages = int(value) if value.isdecimal() else 0
    if not 1 <= messages <= _MOST_STEPS:
        raise _wrong(f"messages to step were {value!r}, expected 1 to {_MOST_STEPS}")
    return messages


def _wrong(text: str) -> typer.BadParameter:
    return typer.BadParameter(text, param_hint="VALUE")


def speed_text(speed: float | None) -> str:
    """Return a replay's speed as text."""
    return MAX_SPEED if speed is None else f"{speed:g}x"


def _print(endpoint: str, status: ReplayStatus) -> None:
    from blackbox.timestamps import time_text

    def shown(ns: int) -> str:
        return time_text(ns) if ns else NOTHING

    left = status.seconds_left
    stdout.print(
        titled(
            f"replay at {endpoint}",
            values_table(
                [
                    ("state", str(status.state)),
                    ("speed", speed_text(status.speed), "seconds of market time in a second"),
                    ("position", shown(status.position_ns), "market time"),
                    ("from", shown(status.start_ns)),
                    ("until", shown(status.stop_ns)),
                    ("messages", count(status.messages), "delivered so far"),
                    ("rate", rate(status.messages_per_second), "over the last second"),
                    ("left", NOTHING if left is None else duration(left * 1e9), "at this speed, silences included"),
                ]
            ),
        )
    )
