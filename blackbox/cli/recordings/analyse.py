"""`blackbox analyse`: a recorded day as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blackbox.cli.ui.days import RecordingArgument, damaged_parts_text, lose_what_is_wrong, without_warnings
from blackbox.cli.ui.drawing import draw
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import say
from blackbox.numbers import counted


def analyse(
    recording: RecordingArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="HTML page to write.")],
    symbol: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYMBOL", help="Show bars and spread of this symbol. Can be repeated.", show_default=False
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(metavar="N", min=0, max=20, help="Without --symbol: show the N symbols with the most trades.")
    ] = 3,
    broken: Annotated[bool, typer.Option("--broken", help="Also show trades that the venue cancelled.")] = False,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark master.", show_default="all cores of this machine")
    ] = None,
) -> None:
    """Analyse a recorded day in Spark and draw it: bars, spreads, rate, message types, lags and gaps.

    The page is a single HTML file for any browser. It leaves out damaged parts and lists them. Exits with status 4 if
    messages are damaged or missing. A day that is still being recorded may end in a half-written block. Needs the
    extra `spark`.

    For example:

    blackbox analyse recordings/nasdaq/2026-11-20 --out day.html

    blackbox analyse recordings/nasdaq/2026-11-20 --out day.html --symbol AAPL --symbol MSFT
    """
    with exit_statuses(), without_warnings():
        from blackbox.archive.recording import Recording

        Recording.open(recording)  # report a wrong path before Spark starts
        drawn = draw(recording, out, symbol or (), top, master, broken=broken)
        say(f"wrote {out}")
        for number, reason in drawn.left_out:
            say(f"left out of trades: {counted(number, 'message')} {reason}")
        damage = damaged_parts_text(len(drawn.damage)) if drawn.damage else ""
        lose_what_is_wrong(recording, damage, [gap.count for gap in drawn.gaps])
