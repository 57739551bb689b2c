"""`blackbox stat`: show the state of a feed's publishers, from their heartbeats alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from blackbox.cli.ui.feeds import FeedOption, feed_text, load_feed
from blackbox.cli.ui.options import JsonLinesOption
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import Shown, check_output, columns_table, print_json, say, stdout, titled
from blackbox.errors import NotConfirmedError
from blackbox.numbers import NOTHING, count, duration, rate

if TYPE_CHECKING:
    from blackbox.services.monitor.heartbeats import Heartbeats, LineHealth


def stat(
    feed: FeedOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print once, after two heartbeats of every slice or after --timeout.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="End with status 1 after this time without a heartbeat; with --once, total time limit. "
            "Default: three heartbeat intervals of the feed, 3 seconds unless set.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Show the publisher of each slice of a feed: its state, its rate, and the time of its last heartbeat.

    Receives heartbeats only: it costs a busy publisher almost nothing, and `publish --wait-for` does not count it.

    Runs until the publisher has closed (status 0), or was silent for --timeout seconds (status 1).

    JSON is an array with one object per slice and line; without --once, one array per line, once per heartbeat.

    For example:

    blackbox stat                           the feed `local`, until its publisher ends, or Ctrl-C

    blackbox stat --once --json             for a script: status 1 if no publisher was heard

    blackbox stat --feed configs/nasdaq.toml
    """
    with exit_statuses():
        from blackbox.services.monitor.heartbeats import Heartbeats

        shape = load_feed(feed)
        beat_s = shape.heartbeat_ns / 1e9
        patience_s = 3 * beat_s if timeout is None else timeout
        with Heartbeats(shape) as heartbeats:
            if once:
                _listen_once(heartbeats, patience_s)
                _print(heartbeats, as_json)
                return
            if as_json or not stdout.is_terminal:
                _listen_on(heartbeats, patience_s, beat_s, lambda: _print(heartbeats, as_json))
            else:
                with Live(_table(heartbeats), console=stdout, auto_refresh=False) as live:
                    _listen_on(
                        heartbeats,
                        patience_s,
                        min(beat_s, 0.5),
                        lambda: live.update(_table(heartbeats), refresh=True),
                    )
            say(f"{feed_text(shape)}: the publisher has closed")


def _listen_once(heartbeats: Heartbeats, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not heartbeats.heard_all and (left := deadline - time.monotonic()) > 0:
        heartbeats.listen(min(left, 0.1))
    if not any(line.heard for line in heartbeats.lines):
        raise _not_heard(heartbeats, timeout)


def _listen_on(heartbeats: Heartbeats, timeout: float, every_s: float, show: Callable[[], object]) -> None:
    """Listen and show until the publisher has closed.

    Raises NotConfirmedError after `timeout` seconds without a heartbeat.
    """
    deadline = time.monotonic() + timeout
    last_ns = 0
    while not all(line.state == "closed" for line in heartbeats.lines):
        heartbeats.listen(min(every_s, max(0.0, deadline - time.monotonic())))
        show()
        newest_ns = max(line.last_heard_ns for line in heartbeats.lines)
        if newest_ns != last_ns:
            last_ns, deadline = newest_ns, time.monotonic() + timeout
        elif time.monotonic() >= deadline:
            heard = [line for line in heartbeats.lines if line.heard]
            if heard and all(line.state == "closed" for line in heard):
                return  # the other slices have no publisher, or it closed before they were connected
            raise _not_heard(heartbeats, timeout)


def _not_heard(heartbeats: Heartbeats, seconds: float) -> NotConfirmedError:
    name, endpoints = heartbeats.feed.name, ", ".join(line.endpoint for line in heartbeats.lines)
    if any(line.heard for line in heartbeats.lines):
        return NotConfirmedError(f"feed {name!r}: no heartbeat of the publisher for {seconds:g} s at {endpoints}")
    return NotConfirmedError(f"feed {name!r}: no publisher was heard in {seconds:g} s at {endpoints}")


def _print(heartbeats: Heartbeats, as_json: bool) -> None:
    if as_json:
        print_json(heartbeats.lines)
    else:
        stdout.print(_table(heartbeats))
    check_output()


def _table(heartbeats: Heartbeats) -> RenderableType:
    table = columns_table(
        ("slice", "line", "endpoint", "publisher", "epoch", "keys", "messages", "rate", "lag", "last heard"),
        left=5,
    )
    for line in heartbeats.lines:
        table.add_row(str(line.slice_id), line.line, line.endpoint, _state(line), *_figures(line))
    return titled(feed_text(heartbeats.feed), table)


def _state(line: LineHealth) -> Shown:
    style = {"alive": "green", "silent": "bold red", "not heard": "red"}.get(line.state)
    return Text(line.state, style=style) if style else str(line.state)


def _figures(line: LineHealth) -> tuple[str, ...]:
    if line.epoch is None:
        return (NOTHING,) * 6
    return (
        str(line.epoch),
        count(line.keys),
        count(line.messages),
        NOTHING if line.messages_per_second is None else rate(line.messages_per_second),
        NOTHING if line.heartbeat_lag_ns is None else duration(line.heartbeat_lag_ns),
        f"{duration(time.time_ns() - line.last_heard_ns)} ago",
    )
