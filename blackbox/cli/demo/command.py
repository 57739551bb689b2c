"""`blackbox demo`: a session through the whole machine, from one process to callbacks in another."""

from __future__ import annotations

from typing import Annotated

import typer

from blackbox.cli.feeds import SourceOptions, open_with_options
from blackbox.cli.status import exit_statuses, lose, warn
from blackbox.feed import Feed

DEFAULT_MESSAGES = 10_000_000
_DEFAULT_SYMBOLS = 500


def demo(
    source: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="itch50:PATH, iex:PATH or synthetic:MESSAGES. Default: a synthetic session of 500 symbols.",
            show_default=False,
        ),
    ] = None,
    messages: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="At most N messages, all of which lie in memory first. Default: all of SOURCE; 10,000,000 made up.",
            show_default=False,
        ),
    ] = None,
    option: SourceOptions = None,
) -> None:
    """Publish a session in two slices to a subscriber in another process, and show what its callbacks found.

    Compiled callbacks find the VWAP of every symbol and the message mix.

    A batch callback keeps the last price of every symbol.

    A Python function is called for each message of a few symbols.

    For example:

    blackbox demo

    blackbox demo --messages 1000000

    blackbox demo --source iex:DEEP10.pcap.gz

    blackbox demo --source itch50:day.bin --option date=2020-01-30
    """
    with exit_statuses():
        options = list(option or ())
        spec = source or f"synthetic:{messages or DEFAULT_MESSAGES}"
        if source is None and not any(text.startswith("symbols=") for text in options):
            options.append(f"symbols={_DEFAULT_SYMBOLS}")
        schema = open_with_options(spec, options, Feed.local("demo")).schema.name

        from blackbox.cli.demo.report import print_report
        from blackbox.cli.demo.run import DemoRun

        run = DemoRun(spec, options, messages, schema)
        with run:
            result = run.result()
        print_report(result)
        if result.prepared.truncated:
            warn(f"the source ended early: {result.prepared.truncated}")
        if result.lost:
            lose(f"{result.lost:,} messages did not reach the callbacks")
        if result.callbacks.mix() != result.prepared.by_type:
            lose(f"the message mix was {result.callbacks.mix()}, expected {result.prepared.by_type}")
