"""The program: its commands, and logging.

Commands import modules that need numba only when they run, so that `--help` is fast.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from blackbox import __version__
from blackbox.cli.demo import demo
from blackbox.cli.feed.check import check
from blackbox.cli.feed.doctor import doctor
from blackbox.cli.feed.keys import keys
from blackbox.cli.feed.new import new
from blackbox.cli.hub.client import client
from blackbox.cli.hub.get import get, unsubscribe
from blackbox.cli.hub.hub import hub
from blackbox.cli.hub.put import put
from blackbox.cli.live.bridge import bridge
from blackbox.cli.live.control import control
from blackbox.cli.live.publish import publish
from blackbox.cli.live.relay import relay
from blackbox.cli.live.replay import replay
from blackbox.cli.live.subscribe import subscribe
from blackbox.cli.live.tap import tap
from blackbox.cli.live.trace import trace
from blackbox.cli.recordings.analyse import analyse
from blackbox.cli.recordings.compact import compact
from blackbox.cli.recordings.dump import dump
from blackbox.cli.recordings.export import export
from blackbox.cli.recordings.import_ import import_
from blackbox.cli.recordings.inspect import inspect
from blackbox.cli.recordings.instruments import instruments
from blackbox.cli.recordings.positions import positions
from blackbox.cli.recordings.record import record
from blackbox.cli.recordings.repair import repair
from blackbox.cli.recordings.serve import serve
from blackbox.cli.recordings.sync import sync
from blackbox.cli.recordings.verify import verify
from blackbox.cli.ui.log import Format, begin_log, set_log
from blackbox.cli.ui.options import FormatOption, LevelOption, help_of, with_log_options
from blackbox.cli.ui.status import STATUS_HELP
from blackbox.cli.warmup import warmup
from blackbox.cli.watch.console import console
from blackbox.cli.watch.dashboard import dashboard
from blackbox.cli.watch.stat import stat
from blackbox.cli.watch.top import top

app = typer.Typer(
    name="blackbox",
    help="Market data over ZeroMQ: publish a feed in slices, dispatch it to callbacks by topic prefix.",
    epilog=STATUS_HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_PANELS: Final = {
    "Live": (demo, publish, subscribe, relay, bridge),
    "Watch": (stat, tap, trace, top, console, dashboard),
    "Recordings": (
        record,
        import_,
        replay,
        control,
        serve,
        positions,
        inspect,
        instruments,
        verify,
        repair,
        dump,
        export,
        compact,
        sync,
    ),
    "Hub": (hub, put, get, unsubscribe, client),
    "Analysis": (analyse,),
    "Setup": (doctor, warmup, keys),
}
"""Commands grouped by task."""

for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(_command.__name__.rstrip("_"), help=help_of(_command), epilog=STATUS_HELP, rich_help_panel=_panel)(
            with_log_options(_command)
        )


_feed = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", epilog=STATUS_HELP)
for _part in (new, check):
    _feed.command(_part.__name__, help=help_of(_part), epilog=STATUS_HELP)(with_log_options(_part))
app.add_typer(_feed, name="feed", help="Write a feed file, or check one.", rich_help_panel="Setup")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"blackbox {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    log_level: LevelOption = None,
    log_format: FormatOption = None,
) -> None:
    set_log(log_level, log_format or Format.TEXT)


def run() -> None:
    """Run the command given by the arguments."""
    begin_log()
    app()
