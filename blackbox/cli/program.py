"""The program: its commands, and how it logs.

What needs numba is imported inside of each command, so that `--help` is quick.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from inspect import cleandoc
from typing import Annotated

import typer

from blackbox import __version__
from blackbox.cli.analyse import analyse
from blackbox.cli.bridge import bridge
from blackbox.cli.client import client
from blackbox.cli.compact import compact
from blackbox.cli.control import control
from blackbox.cli.demo import demo
from blackbox.cli.dump import dump
from blackbox.cli.export import export
from blackbox.cli.get import get, unsubscribe
from blackbox.cli.hub import hub
from blackbox.cli.import_ import import_
from blackbox.cli.inspect import inspect
from blackbox.cli.keys import keys
from blackbox.cli.positions import positions
from blackbox.cli.publish import publish
from blackbox.cli.put import put
from blackbox.cli.record import record
from blackbox.cli.relay import relay
from blackbox.cli.repair import repair
from blackbox.cli.replay import replay
from blackbox.cli.serve import serve
from blackbox.cli.stat import stat
from blackbox.cli.subscribe import subscribe
from blackbox.cli.ui.status import STATUS_HELP
from blackbox.cli.verify import verify

app = typer.Typer(
    name="blackbox",
    help="Market data over ZeroMQ: publish a feed in slices, dispatch it to callbacks by topic prefix.",
    epilog=STATUS_HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _help_of(command: Callable[..., None]) -> str:
    """Return a command's docstring with each paragraph on one line, for the terminal to wrap."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", cleandoc(command.__doc__ or ""))


for _command in (
    demo,
    publish,
    subscribe,
    relay,
    hub,
    put,
    get,
    unsubscribe,
    client,
    bridge,
    record,
    import_,
    replay,
    serve,
    positions,
    inspect,
    verify,
    repair,
    dump,
    export,
    compact,
    analyse,
    stat,
    control,
    keys,
):
    app.command(_command.__name__.rstrip("_"), help=_help_of(_command), epilog=STATUS_HELP)(_command)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"blackbox {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


class _OneLine(logging.Formatter):
    """`warning: text`, as the errors of the command line look."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {record.getMessage()}"


def run() -> None:
    """Run the command that the arguments name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine())
    log = logging.getLogger("blackbox")
    log.addHandler(handler)
    log.propagate = False
    app()
