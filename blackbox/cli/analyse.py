"""`blackbox analyse`: a recorded day as a page to look at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.days import RecordingArgument, told_elsewhere
from blackbox.cli.status import exit_statuses
from blackbox.cli.terminal import say, stderr
from blackbox.errors import ConfigError


def analyse(
    recording: RecordingArgument,
    report: Annotated[Path, typer.Option(metavar="FILE", help="The page to write, HTML.")],
    symbol: Annotated[
        list[str] | None,
        typer.Option(metavar="SYMBOL", help="Show bars and spread of this one, or these.", show_default=False),
    ] = None,
    top: Annotated[
        int, typer.Option(metavar="N", min=0, max=20, help="Else: of the N that were traded most often.")
    ] = 3,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's master.", show_default="all cores of this machine")
    ] = None,
) -> None:
    """Analyse a recorded day in Spark and draw it: bars, spreads, rate, message types, lags and gaps.

    The page is one HTML file that needs nothing else: open it in any browser. Needs the extra `spark`.

    For example:

    blackbox analyse recordings/nasdaq/2026-11-20 --report day.html

    blackbox analyse recordings/nasdaq/2026-11-20 --report day.html --symbol AAPL --symbol MSFT
    """
    with exit_statuses(), told_elsewhere():
        from blackbox.recording import Recording
        from blackbox.report.page import page

        Recording.open(recording)  # what is wrong with the path is told before Spark is begun
        with stderr.status("starting Spark") as shown:
            try:
                from blackbox.spark.report import report_of
                from blackbox.spark.session import session

                conf = {"spark.ui.enabled": False, "spark.ui.showConsoleProgress": False}
                spark = session(master, "blackbox analyse", conf)
            except ImportError as error:
                raise ConfigError(str(error)) from error
            spark.sparkContext.setLogLevel("ERROR")
            text = page(report_of(spark, recording, symbol or (), top, shown.update))
        _write(report, text)
        say(f"wrote {report}")


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        from blackbox.journal.day import as_journal_error

        raise as_journal_error(error, f"{path} cannot be written") from error
