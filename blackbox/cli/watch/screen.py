"""The screen of `blackbox top`: tables, a filter, and the details of a row, on 80 columns by 24 lines or more."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static
from textual.worker import get_current_worker

from blackbox.cli.watch.tables import TABS, TOPICS, Column, Row, Tab, details, headline, news, rows_of
from blackbox.services.monitor.watch.view import View

_BAD: Final = ("error", "silent", "refused", "invalid", "unreachable", "failed")
_NAMES: Final = " ".join(f"{number}:{tab.name}" for number, tab in enumerate(TABS, 1))


class Details(ModalScreen[None]):
    """All fields of one row."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "back")]
    CSS = """
    Details { align: center middle; }
    #details { width: 76; max-height: 90%; height: auto; border: round $accent; padding: 0 1; background: $surface; }
    """

    def __init__(self, row: Row) -> None:
        super().__init__()
        self._row = row

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        text = Text()
        for name, value in details(self._row):
            text.append(f"{name.replace('_', ' '):20} ", "bold")
            text.append(f"{value}\n")
        with VerticalScroll(id="details"):
            yield Static(text)


class Top(App[None]):
    """Shows a view of an installation, a new one every second.

    `look` returns the present view; a thread calls it, with True while the busiest topics are shown.
    """

    TITLE = "blackbox top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"tab({number - 1})", tab.name, show=False) for number, tab in enumerate(TABS, 1)),
        Binding("tab", "next_tab", "next table", priority=True),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter"),
        Binding("enter", "drill", "details", key_display="enter"),
        Binding("q", "quit", "quit"),
    ]
    CSS = """
    #head { height: 1; background: $primary; color: $text; }
    #news { height: auto; max-height: 3; }
    #tabs { height: 1; }
    #table { height: 1fr; }
    #filter { display: none; height: 1; border: none; }
    #filter.shown { display: block; }
    """

    def __init__(self, look: Callable[[bool], View], every_s: float = 1.0) -> None:
        super().__init__()
        self._look, self._every_s = look, every_s
        self._view: View | None = None
        self._tab: Tab = TABS[0]
        self._sort: int | None = None
        self._text = ""
        self._rows: list[Row] = []

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static("blackbox top: looking ...", id="head")
        yield Static("", id="news")
        yield Static("", id="tabs")
        yield DataTable(id="table", cursor_type="row", zebra_stripes=True, cell_padding=0)
        yield Input(placeholder="only rows with this text; enter ends, escape clears", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one(DataTable).focus()
        self._show_tab()
        self._begin_look()
        self.set_interval(self._every_s, self._begin_look)

    def _begin_look(self) -> None:
        """Look in a thread, unless the last look still runs."""
        if not any(worker.is_running for worker in self.workers if worker.name == "look"):
            self.run_worker(self._look_once, name="look", thread=True, exit_on_error=True)

    def _look_once(self) -> None:
        view = self._look(self._tab is TOPICS)
        if not get_current_worker().is_cancelled:
            self.call_from_thread(self.show, view)

    def show(self, view: View) -> None:
        """Show a view."""
        self._view = view
        self.query_one("#head", Static).update(Text(f" blackbox top  {headline(view)}", no_wrap=True))
        lines = news(view)
        text = Text("\n".join(_cut(f" {line}", self.size.width) for line in lines) or " nothing is wrong", no_wrap=True)
        text.stylize("bold red" if lines else "green")
        self.query_one("#news", Static).update(text)
        self._fill()

    def _show_tab(self) -> None:
        table = self.query_one(DataTable)
        table.clear(columns=True)
        for place, column in enumerate(self._tab.columns):
            mark = " *" if place == self._sort else ""
            gap = " " if place and column.is_left else ""
            title = Text(f"{gap}{column.title}{mark}", justify="left" if column.is_left else "right")
            table.add_column(title, width=column.width + 1)
        number = TABS.index(self._tab) + 1
        text = Text(f" {_NAMES}" + (f"  /{self._text}" if self._text else ""), no_wrap=True)
        text.highlight_words([f"{number}:{self._tab.name}"], "reverse")
        self.query_one("#tabs", Static).update(text)
        self._fill()

    def _fill(self) -> None:
        """Fill the table and keep the cursor on its row number."""
        table = self.query_one(DataTable)
        if self._view is None:
            return
        place = table.cursor_row
        self._rows = rows_of(self._tab, self._view, sort=self._sort, text=self._text)
        table.clear()
        for row in self._rows:
            table.add_row(*(_cell(place, column, row) for place, column in enumerate(self._tab.columns)))
        if self._rows:
            table.move_cursor(row=min(max(place, 0), len(self._rows) - 1))

    # Keys

    def action_tab(self, number: int) -> None:
        """Show a table."""
        self._tab, self._sort = TABS[number], None
        self._show_tab()
        if self._tab is TOPICS:
            self._begin_look()

    def action_next_tab(self) -> None:
        """Show the next table."""
        self.action_tab((TABS.index(self._tab) + 1) % len(TABS))

    def action_sort(self) -> None:
        """Sort by the next column, and after the last one as at first."""
        following = 0 if self._sort is None else self._sort + 1
        self._sort = following if following < len(self._tab.columns) else None
        self._show_tab()

    def action_filter(self) -> None:
        """Show the line for a filter."""
        line = self.query_one("#filter", Input)
        line.add_class("shown")
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter as it is typed."""
        self._text = event.value
        self._show_tab()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Return to the table."""
        self.query_one("#filter", Input).remove_class("shown")
        self.query_one(DataTable).focus()

    def on_key(self, event: object) -> None:
        """Clear the filter at escape."""
        line = self.query_one("#filter", Input) if self.query("#filter") else None
        if line is not None and getattr(event, "key", "") == "escape" and (line.has_focus or self._text):
            line.value = ""
            self.on_input_submitted(Input.Submitted(line, ""))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the details of the chosen row."""
        self._drill(event.cursor_row)

    def action_drill(self) -> None:
        """Show the details of the row at the cursor."""
        self._drill(self.query_one(DataTable).cursor_row)

    def _drill(self, place: int) -> None:
        if 0 <= place < len(self._rows):
            self.push_screen(Details(self._rows[place]))


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _cell(place: int, column: Column, row: Row) -> Text:
    """Return a cell; a left one has a space before it, since the column before it may be full to its end."""
    text = column.cell(row)
    cell = Text(f"{' ' * (place > 0)}{text}" if column.is_left else text, no_wrap=True, overflow="ellipsis")
    cell.justify = "left" if column.is_left else "right"
    cell.truncate(column.width + 1, overflow="ellipsis")
    if text in _BAD or (column.title == "lines" and "!" in text):
        cell.stylize("bold red")
    return cell
