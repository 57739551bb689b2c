"""`blackbox doctor`: check that this machine meets a feed's needs."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from blackbox.cli.ui.feeds import FeedOption, load_feed
from blackbox.cli.ui.options import JsonOption
from blackbox.cli.ui.status import Status, exit_statuses
from blackbox.cli.ui.terminal import print_json, stdout


def doctor(feed: FeedOption = None, as_json: JsonOption = False) -> None:
    """Check this machine: kernel cache, CPUs, memory, file descriptors, libzmq, clock, Java and Spark, ports of a feed.

    Each check is ok, a warning or a problem, with advice. Exits with status 1 if there is a problem. In a container
    the limits are those of its cgroup.

    JSON has `checks`, each with `name`, `state`, `found` and `advice`.

    For example:

    blackbox doctor

    blackbox doctor --feed feed.toml

    blackbox doctor --json | jq '.checks[] | select(.state != "ok")'
    """
    with exit_statuses():
        from blackbox.cli.feed.machine import State, check_machine

        checks = check_machine(load_feed(feed))
        if as_json:
            print_json({"checks": checks})
        else:
            table = Table(header_style="cyan")
            for name in ("check", "state", "found", "what to do"):
                table.add_column(name, overflow="fold")
            styles = {State.OK: "green", State.WARNING: "yellow", State.PROBLEM: "bold red"}
            for each in checks:
                table.add_row(each.name, Text(each.state, style=styles[each.state]), each.found, each.advice)
            stdout.print(table)
        if any(each.state is State.PROBLEM for each in checks):
            raise typer.Exit(Status.ERROR)
