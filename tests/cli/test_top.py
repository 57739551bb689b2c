"""`blackbox top`: its tables on 80 columns, its keys, and its forms for scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import DataTable

from blackbox import Publisher
from blackbox.cli.watch.screen import Top
from blackbox.cli.watch.tables import CONDITIONS, PROCESSES, SLICES, TABS, rows_of
from blackbox.services.monitor.watch.view import View
from blackbox.testing import wait_until
from tests.cli.commands import Command, Place, Screen, invoke
from tests.monitor.test_watch_view import shown

WIDTH, HEIGHT = 80, 24


def screen_of(app: Top) -> list[str]:
    return ["".join(part.text for part in line) for line in app.screen._compositor.render_strips()]


def run(work: Callable[[Top, Pilot[None]], Awaitable[None]], view: View, asked: list[bool] | None = None) -> None:
    """Run a screen that shows a view, at 80x24, and `work` on it."""

    def look(wants_topics: bool) -> View:
        if asked is not None:
            asked.append(wants_topics)
        return view

    async def play() -> None:
        app = Top(look, every_s=3_600)
        async with asyncio.timeout(200), app.run_test(size=(WIDTH, HEIGHT)) as pilot:
            while app._view is None or "q quit" not in screen_of(app)[-1]:
                await pilot.pause(0.01)
            await work(app, pilot)

    asyncio.run(play())


@pytest.fixture(scope="module")
def view() -> View:
    return shown()[1]


def test_all_tables_fit_on_80_columns(view: View) -> None:
    for tab in TABS[:-1]:
        assert sum(column.width + 1 for column in tab.columns) <= WIDTH, tab.name
        for row in rows_of(tab, view):
            assert all(cell_len(column.cell(row)) <= column.width or column.is_left for column in tab.columns), tab.name


def test_the_first_screen_says_what_is_wrong(view: View) -> None:
    async def work(app: Top, _: Pilot[None]) -> None:
        lines = screen_of(app)
        assert (len(lines), {len(line) for line in lines}) == (HEIGHT, {WIDTH})
        text = "\n".join(lines)
        assert "500/s  40 kB/s  lag p99 9.00 ms  lost 9  repaired 4" in lines[0]
        assert "silent line: line B of quotes slice 0: no heartbeat" in text
        assert "quotes        0 A+ B!     500/s   2 kB/s 2.25 ms 9.00 ms 18.0 ms      9     4" in text
        assert "1:slices 2:processes 3:peers 4:consumers 5:topics 6:conditions" in text
        assert "q quit" in lines[-1]

    run(work, view)


def test_keys_choose_sort_filter_and_show_details(view: View) -> None:
    asked: list[bool] = []

    async def work(app: Top, pilot: Pilot[None]) -> None:
        table = app.query_one(DataTable)
        await pilot.press("2")
        labels = [row.label for row in app._rows]  # type: ignore[union-attr]
        assert labels[:3] == ["publisher 7 desk", "relay london london", "relay desk desk"]
        assert "    relay desk desk" in "\n".join(screen_of(app))
        await pilot.press(*["s"] * 5)
        assert [row.lost for row in app._rows] == [8, 7, 3, 0, 0, 0]  # type: ignore[union-attr]
        await pilot.press("slash", *"recorder", "enter")
        assert [row.role for row in app._rows] == ["recorder"]  # type: ignore[union-attr]
        assert table.row_count == 1
        await pilot.press("enter")
        while "uptime s" not in (text := "\n".join(screen_of(app))):
            await pilot.pause(0.01)
        assert "http://e:1" in text
        await pilot.press("escape")
        await pilot.press("escape")
        assert len(app._rows) == len(view.processes)
        while True not in asked:  # a look does not begin while another runs
            await pilot.press("5")
            await pilot.pause()
        await pilot.press("tab")
        assert app._tab is CONDITIONS
        assert "full_queue" in "\n".join(screen_of(app))
        await pilot.press("q")

    run(work, view, asked)


def test_rows_are_sorted_by_any_column(view: View) -> None:
    for tab in (SLICES, PROCESSES):
        for place, column in enumerate(tab.columns):
            values = [column.value(row) for row in rows_of(tab, view, sort=place)]
            assert values == sorted(values, reverse=not column.is_left)


def test_scripts_get_tables_or_json(place: Place) -> None:
    with Publisher(place.feed) as publisher:
        publisher.publish(b"A.t", b"x")
        table = invoke("top", place.path, "--once", "--timeout", 0.5)
        report = invoke("top", place.path, "--once", "--json", "--timeout", 0.5)
    assert (table.status, report.status) == (0, 0), table.errors + report.errors
    assert "slices" in table.out
    assert [row["feed"] for row in json.loads(report.out)["slices"]] == ["cli", "cli"]


def test_on_a_terminal_it_runs_until_q(place: Place, screen: Screen) -> None:
    with (
        Publisher(place.feed),
        Command("top", place.path, stdin=screen.program, stdout=screen.program, stderr=screen.program) as command,
    ):
        screen.wait("cli")
        screen.type(b"q")
        wait_until(lambda: command.process.poll() is not None, what="the end of top")
        assert command.process.returncode == 0
