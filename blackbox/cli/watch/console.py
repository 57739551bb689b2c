"""`blackbox console`: what is wrong in an installation: who, where, why, and since when."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from blackbox.cli.ui.options import JsonLinesOption
from blackbox.cli.ui.status import Status, exit_statuses
from blackbox.cli.ui.terminal import check_output, print_json, say, stdout
from blackbox.cli.watch.watched import FeedsArgument, WatchOption, watcher_of
from blackbox.numbers import counted, long_time
from blackbox.timestamps import clock_text

if TYPE_CHECKING:
    from blackbox.services.monitor.console.console import Console
    from blackbox.services.monitor.console.history import Event
    from blackbox.services.monitor.watch.conditions import Condition

WEBHOOK_VARIABLE: Final = "BLACKBOX_WEBHOOK"
_ONCE_S: Final = 6.0
_HEARTBEATS: Final = 5
"""Heartbeats after which a line that was not heard is known to be silent, with a reserve."""


def console(
    feeds: FeedsArgument = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="ADDRESS",
            help="Endpoint for alerts of processes, tcp://HOST:PORT. Default: `console` in the feed files.",
            show_default=False,
        ),
    ] = None,
    watch: WatchOption = None,
    history: Annotated[
        Path | None,
        typer.Option("--history", metavar="DIR", file_okay=False, help="Keep up to 32 MiB of events in DIR."),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option("--webhook", metavar="URL", envvar=WEBHOOK_VARIABLE, help="Post each event as JSON to URL."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", metavar="TEXT", help="Run this for each event, with the event as JSON on stdin."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Look for --timeout seconds, print what is wrong, and end.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help=f"With --once: time to look. Default: {_ONCE_S:g} s, or more if heartbeats are rare.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Show what is wrong in an installation, as it begins and as it ends.

    It receives alerts of processes, listens to the heartbeats of feeds, and reads status pages. With --once it exits
    with status 0 if nothing is wrong, and 1 if something is.

    JSON is one object per event: `at_ns`, `change` (raised or cleared) and `condition` with `kind`, `severity`, `who`,
    `feed`, `where`, `why` and `since_ns`. With --once it is one object with `conditions`.

    For example:

    blackbox console feed.toml --listen tcp://0.0.0.0:9400 --watch http://10.0.0.5:9300

    blackbox console feed.toml --history alerts --command "logger -t blackbox"

    blackbox console feed.toml --once --json          for a script
    """
    with exit_statuses(), ExitStack() as stack:
        from blackbox.services.monitor.console import forward
        from blackbox.services.monitor.console.console import Console
        from blackbox.services.monitor.console.history import History

        watcher = watcher_of(feeds, watch)
        named = [each.monitor.console for each in watcher.feeds if each.monitor is not None and each.monitor.console]
        forwarders = [] if webhook is None else [forward.webhook(webhook)]
        forwarders += [] if command is None else [forward.command(command)]
        for each in forwarders:
            stack.callback(each.close)
        kept = None
        if history is not None:
            kept = History(history)
            stack.callback(kept.close)
        endpoint = listen or ("" if once else next(iter(named), ""))
        show = (lambda _: None) if once else partial(_print, as_json)
        with Console(watcher, endpoint, kept, forwarders, show) as running:
            if not once:
                say(_opening(running, endpoint))
                running.run()
            rarest_s = max((each.heartbeat_ns / 1e9 for each in watcher.feeds), default=0.0)
            running.run(max(_ONCE_S, 2.0 + _HEARTBEATS * rarest_s) if timeout is None else timeout)
            found = running.report()
        if as_json:
            print_json(found)
        else:
            for condition in found.conditions:
                stdout.print(_line(condition), highlight=False, soft_wrap=True)
            say("nothing is wrong" if not found.conditions else counted(len(found.conditions), "condition"))
        if found.conditions:
            raise typer.Exit(Status.ERROR)


def _opening(running: Console, endpoint: str) -> str:
    names = ", ".join(f"{feed.name!r}" for feed in running.watch.watcher.feeds) or "none"
    at = f"alerts at {endpoint}" if endpoint else "no alerts: neither --listen nor [monitor] names an endpoint"
    return f"watching: feeds {names}; {counted(len(running.watch.watcher.pages), 'status page')}; {at}"


def _print(as_json: bool, event: Event) -> None:
    if as_json:
        print_json(event)
    else:
        clock = clock_text(event.at_ns, "UTC", 0)
        stdout.print(f"{clock} {event.change:7} {_line(event.condition)}", highlight=False, soft_wrap=True)
    check_output()


def _line(condition: Condition) -> str:
    age_s = (time.time_ns() - condition.since_ns) / 1e9
    since = f"since {clock_text(condition.since_ns, 'UTC', 0)} UTC, {long_time(max(0.0, age_s))}"
    each = condition
    return f"{each.severity:7} {each.kind.replace('_', ' ')}: {each.who}: {each.why} ({each.where}; {since})"
