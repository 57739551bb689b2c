"""`blackbox analyse`: a recorded day as a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.days import RecordingArgument, missing_text, parts_text, told_elsewhere
from blackbox.cli.drawing import draw
from blackbox.cli.status import exit_statuses, lose
from blackbox.cli.terminal import say


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

    The page is one HTML file that needs nothing else: open it in any browser. It leaves out what is damaged and shows
    where; ends with status 4 if anything is damaged or missing. The end of a day that is being recorded may be half
    written. Needs the extra `spark`.

    For example:

    blackbox analyse recordings/nasdaq/2026-11-20 --report day.html

    blackbox analyse recordings/nasdaq/2026-11-20 --report day.html --symbol AAPL --symbol MSFT
    """
    with exit_statuses(), told_elsewhere():
        from blackbox.recording import Recording

        Recording.open(recording)  # what is wrong with the path is told before Spark is begun
        drawn = draw(recording, report, symbol or (), top, master)
        say(f"wrote {report}")
        wrong = [parts_text(len(drawn.damage))] * bool(drawn.damage)
        if drawn.gaps:
            wrong.append(missing_text([gap.count for gap in drawn.gaps]))
        if wrong:
            lose(f"{recording}: {'; '.join(wrong)}")
