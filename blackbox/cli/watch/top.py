"""`blackbox top`: a screen of feeds and processes while they run."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from blackbox.cli.ui.options import JsonLinesOption
from blackbox.cli.ui.status import exit_statuses
from blackbox.cli.ui.terminal import check_output, print_json, stdout
from blackbox.cli.watch.watched import FeedsArgument, WatchedPositions, WatchOption, watcher_of
from blackbox.errors import BlackBoxError

if TYPE_CHECKING:
    from blackbox.services.monitor.watch.topics import TopicCounts
    from blackbox.services.monitor.watch.view import View
    from blackbox.services.monitor.watch.watch import Watch

_LOOK_S: Final = 0.5
_ONCE_S: Final = 3.0


def top(
    feeds: FeedsArgument = None,
    watch: WatchOption = None,
    positions: WatchedPositions = None,
    topics: Annotated[
        bool,
        typer.Option(
            "--topics", help="With --once or --json: also the busiest topics. This subscribes to the whole feeds."
        ),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Print all tables after --timeout seconds, and end.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help=f"With --once: time to look. Default: {_ONCE_S:g} s, enough for rates.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Show slices, processes, peers, consumers, busiest topics, and what is wrong, on a terminal.

    Keys: 1 to 6 or tab choose a table, s sorts by the next column, / filters, enter shows all of a row, q quits. The
    busiest topics are counted while they are shown.

    Without a terminal it prints the tables once. JSON is one object per second, or with --once a single one, with
    `slices`, `processes`, `peers`, `consumers`, `topics`, `conditions` and totals.

    For example:

    blackbox top                                   the feed `local`, until q

    blackbox top feed.toml --watch http://10.0.0.5:9300 --positions positions

    blackbox top feed.toml --once --json           for a script
    """
    with exit_statuses(), ExitStack() as stack:
        from blackbox.services.monitor.watch.topics import TopicCounts
        from blackbox.services.monitor.watch.watch import Watch

        watching = Watch(watcher_of(feeds, watch, positions))
        stack.enter_context(watching.watcher)
        if once or as_json or not stdout.is_terminal:
            counts = stack.enter_context(TopicCounts(watching.watcher.feeds)) if topics else None
            _print(watching, counts, (_ONCE_S if timeout is None else timeout), once=once, as_json=as_json)
            return
        try:
            from blackbox.cli.watch.screen import Top
        except ImportError as error:
            raise BlackBoxError(f"top needs textual: pip install 'blackbox-md[monitor]' ({error})") from None
        Top(_Looks(watching, stack).look).run()


class _Looks:
    """Looks for the screen, in the thread that calls `look`; counts topics from when they are first shown."""

    def __init__(self, watching: Watch, stack: ExitStack) -> None:
        self._watching, self._stack = watching, stack
        self._counts: TopicCounts | None = None

    def look(self, wants_topics: bool) -> View:
        """Return the present state."""
        from blackbox.services.monitor.watch.topics import TopicCounts

        if wants_topics and self._counts is None:
            self._counts = self._stack.enter_context(TopicCounts(self._watching.watcher.feeds))
        self._watching.look()
        return self._watching.view(self._counts.busiest() if self._counts is not None else ())


def _print(watching: Watch, counts: TopicCounts | None, seconds: float, *, once: bool, as_json: bool) -> None:
    """Look for `seconds`, then print; with JSON and not `once` again every second."""
    deadline = time.monotonic() + seconds
    while True:
        watching.look()
        if time.monotonic() >= deadline:
            view = watching.view(() if counts is None else counts.busiest())
            if as_json:
                print_json(view)
                check_output()
            else:
                _print_tables(view)
            if once or not as_json:
                return
            deadline = time.monotonic() + 1.0
        time.sleep(min(_LOOK_S, max(0.0, deadline - time.monotonic())))


def _print_tables(view: View) -> None:
    from blackbox.cli.ui.terminal import columns_table, titled
    from blackbox.cli.watch.tables import TABS, headline, news, rows_of

    stdout.print(headline(view), highlight=False)
    for line in news(view, most=100) or ["nothing is wrong"]:
        stdout.print(Text(line), soft_wrap=True)
    for tab in TABS[:-1]:
        rows = rows_of(tab, view)
        if rows:
            table = columns_table([column.title for column in tab.columns])
            for row in rows:
                table.add_row(*(column.cell(row) for column in tab.columns))
            stdout.print(titled(tab.name, table))
