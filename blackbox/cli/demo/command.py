"""`blackbox demo`: a session end to end: live, recorded, replayed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackbox.cli.ui.feeds import SourceOptions, open_with_options
from blackbox.cli.ui.status import exit_statuses, lose, warn
from blackbox.cli.ui.terminal import stdout
from blackbox.errors import BlackBoxError
from blackbox.feed.feed import Feed

if TYPE_CHECKING:
    from blackbox.cli.demo.runs import DemoResult
    from blackbox.cli.demo.storage import Storage

DEFAULT_MESSAGES = 10_000_000
_DEFAULT_SYMBOLS = 500


def demo(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[SOURCE]",
            help="Source to publish: itch50:PATH, iex:PATH or synthetic:MESSAGES. Default: a synthetic session of 500 "
            "symbols.",
            show_default=False,
        ),
    ] = None,
    messages: Annotated[
        int | None,
        typer.Option(
            "--count",
            metavar="N",
            min=1,
            help="End after N messages, held in memory. Default: all of SOURCE, or 10,000,000 synthetic ones.",
            show_default=False,
        ),
    ] = None,
    option: SourceOptions = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            file_okay=False,
            help="Keep the recording, about 50 bytes per message, in DIR/demo/DATE. "
            "Default: a temporary directory, removed at the end.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Also analyse the recording in Spark, and write an HTML page. Needs the extra `spark`.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Publish a session in two slices to another process, record it, replay it, and compare the callbacks' results.

    Compiled callbacks compute the VWAP of every symbol and the message mix.

    A batch callback keeps the last price of every symbol.

    A Python function is called for each message of a few symbols.

    They receive the session live, replayed on the wire and replayed in process: the results must be equal each time.

    For example:

    blackbox demo                                takes about 500 MB of disk while it runs

    blackbox demo --count 1000000

    blackbox demo --report day.html              and analyse it in Spark

    blackbox demo --out recordings               keep the recording

    blackbox demo iex:DEEP10.pcap.gz

    blackbox demo itch50:day.bin --option date=2020-01-30
    """
    with exit_statuses():
        options = list(option or ())
        spec = source or f"synthetic:{messages or DEFAULT_MESSAGES}"
        if source is None and not any(text.startswith("symbols=") for text in options):
            options.append(f"symbols={_DEFAULT_SYMBOLS}")
        schema = open_with_options(spec, options, Feed.local("demo")).schema.name

        from blackbox.cli.demo.runs import DemoRunner
        from blackbox.cli.demo.storage import open_storage
        from blackbox.cli.demo.tables import print_outcome, print_tables

        runner = DemoRunner(spec, options, messages, schema)
        with open_storage(out, runner.feed) as storage:
            result = runner.run(storage)
            print_tables(result)
            trouble = None if report is None else _analyse(storage, report, spec)
        print_outcome(result, is_kept=out is not None)
        if report is not None and trouble is None:
            stdout.print(f"report: {report.absolute()}, to be opened in a browser", highlight=False, soft_wrap=True)
        check(result)
        if trouble is not None:
            raise BlackBoxError(f"{report} was not written: {trouble}")


def _analyse(storage: Storage, report: Path, spec: str) -> str | None:
    """Write the report's page. Return the error instead of raising it, so that the results are still printed."""
    from blackbox.archive.recording import Recording
    from blackbox.cli.ui.drawing import draw

    day = max(storage.days(), key=lambda day: Recording.open(day).summary().messages)  # around midnight there are two
    try:
        draw(day, report, name=f"{spec}, by blackbox demo")
    except BlackBoxError as error:
        return str(error)
    return None


def check(result: DemoResult) -> None:
    """Print errors and exit with their status. Raises BlackBoxError if the results of two runs differ."""
    session = result.session
    if session.truncated:
        warn(f"the source is incomplete: {session.truncated}")
    for run in result.runs:
        if run.lost:
            lose(f"{run.name}: {run.lost:,} messages are missing")
    for name, difference in result.differences.items():
        raise BlackBoxError(f"{name}: results differ from those of the live run: {difference}")
    if result.live.results.mix != session.by_type:
        raise BlackBoxError(f"the message mix was {result.live.results.mix}, expected {session.by_type}")
