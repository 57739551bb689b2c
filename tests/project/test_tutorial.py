"""Each command and program of `docs/tutorial.md` runs unchanged and prints the output on the page."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import zstandard

from blackbox import Recordings
from blackbox.feed.endpoint import free_endpoints
from tests.cli.commands import Ended, succeed
from tests.feeds.dbn_reference import expected_messages
from tests.patience import MAX_LAG_NS
from tests.project.scripts import ROOT, in_turn, start

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
LINES = re.findall(r"^ {4}(\S.*)$", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL), re.MULTILINE)
BARS, BACK_TEST, OF_MADE_UP = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MADE_UP = LINES[LINES.index("blackbox feed new made-up.toml --schema itch50 --slices 1") :]
FROM_FILE = [line for line in LINES if line.startswith("blackbox ") and line not in MADE_UP]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with the page's programs. Feeds use free ports instead of those of their files."""
    (tmp_path / "bars.py").write_text(BARS)
    (tmp_path / "back_test.py").write_text(BACK_TEST)
    ((endpoint,),) = free_endpoints("tcp", "tutorial", 1, 1)
    monkeypatch.setenv("BLACKBOX_FEED_SLICES_0_ENDPOINTS", endpoint)
    monkeypatch.setenv("BLACKBOX_FEED_MAX_LAG_NS", str(MAX_LAG_NS))  # the recording keeps it for the live strategy
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(line: str) -> Ended:
    return succeed(*shlex.split(line)[1:])


def test_a_day_from_file_to_live_prints_the_output_on_the_page(shared_data: Path, place: Path) -> None:
    file = shared_data / "dbn/futures_mbp-1_2024-07-01T23-58.dbn.zst"
    (place / "day.dbn.zst").symlink_to(file)
    *before, replay = [line for line in FROM_FILE if line != "blackbox doctor"]
    assert replay.startswith("blackbox replay ")
    shown = {line: command(line) for line in before}
    imported, dumped = (shown[line] for line in before if line.split()[1] in ("import", "dump"))
    warnings = [line for line in imported.errors.splitlines() if "(F_" in line or "session date" in line]
    assert len(warnings) == 1
    assert "without an exact ts_recv (F_BAD_TS_RECV): 1, 1 of them in snapshots" in warnings[0]
    assert "`import` rightly warns of an inexact time of receipt" in " ".join(PAGE.split())
    assert len(dumped.out.splitlines()) == 3
    assert "ESU4.mbp-1" in dumped.out

    records = sorted_records(file)
    (bars,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    found = in_turn(place / "bars.py", place / "back_test.py")
    assert found["bars"].split() == bars.split()
    assert [line.split()[2:] for line in bars.splitlines()[2:]] == plain_bars(records)
    result = found["back_test"]
    assert f"`{result.strip()}`" in PAGE
    assert result == plain_result(records)

    assert "python back_test.py live" in LINES
    with start("back_test.py", "live", cwd=place) as live:
        command(replay)
        out, _ = live.communicate(timeout=300)
    assert (live.returncode, out) == (0, result)


def sorted_records(file: Path) -> list[Any]:
    """Return the records of the file in time order, from Databento's decoder."""
    with zstandard.open(file) as opened:
        messages = expected_messages(opened.read())
    return [message.record for message in sorted(messages, key=lambda message: message.ts_event)]


def plain_bars(records: list[Any]) -> list[list[str]]:
    minutes: dict[int, list[Any]] = {}
    for record in records:
        if record.action == "T":
            minutes.setdefault(record.ts_event // 60_000_000_000, []).append(record)
    prices = [[trade.price / 10**9 for trade in trades] for trades in minutes.values()]
    volumes = [sum(trade.size for trade in trades) for trades in minutes.values()]
    return [
        [*(f"{price:.2f}" for price in (bar[0], max(bar), min(bar), bar[-1])), str(volume)]
        for bar, volume in zip(prices, volumes, strict=True)
    ]


def plain_result(records: list[Any]) -> str:
    average = middle = cash = 0.0
    fills = 0
    for record in records:
        bid, ask = (price / 10**9 for price in (record.levels[0].bid_px, record.levels[0].ask_px))
        middle = (bid + ask) / 2
        average = average + (middle - average) * 0.02 if average else middle
        if (middle < average) != (fills % 2 == 1):
            cash += bid if fills % 2 else -ask
            fills += 1
    return f"fills: {fills} profit: {cash + fills % 2 * middle:.3f}\n"


@pytest.mark.long
def test_the_synthetic_day_runs_with_the_lines_of_the_page(place: Path) -> None:
    for line in MADE_UP:
        assert "session date" not in command(line).errors
    assert 'Use `recordings/made-up` and the day 2026-01-05 in the commands, and `b"AAPL."` in `bars.py`.' in PAGE
    bars = BARS.replace("recordings/es", "recordings/made-up").replace('b"ESU4."', 'b"AAPL."')
    (place / "bars.py").write_text(bars.replace("print(bars)", "print(len(bars), bars['volume'].sum())"))
    trades = Recordings.open("recordings/made-up").trades.to_arrow(b"AAPL.")
    minutes = {time // 60_000_000_000 for time in trades["ts_event"].cast("int64").to_pylist()}
    back_test, count = re.subn(r"^DAYS, .*\n", OF_MADE_UP, BACK_TEST, flags=re.MULTILINE)
    assert count == 1
    (place / "back_test.py").write_text(back_test)
    found = in_turn(place / "bars.py", place / "back_test.py")
    assert found["bars"].strip() == f"{max(minutes) - min(minutes) + 1} {sum(trades['size'].to_pylist())}"
    fills = re.fullmatch(r"fills: (\d+) profit: -?[\d.]+\n", found["back_test"])
    assert fills is not None
    assert int(fills[1]) > 2


def test_the_installation_uses_existing_extras() -> None:
    (line,) = [line for line in LINES if line.startswith("pip install ")]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r"\[(.*)\]", line)
    assert set(named.split(",")) <= extras.keys()


def test_each_line_of_the_page_is_tested_or_sets_up() -> None:
    tested = {*FROM_FILE, *MADE_UP, "python back_test.py live"}
    others = [line.split()[0] for line in LINES if line not in tested]
    assert others == ["python3", ".", "pip", "curl"]
