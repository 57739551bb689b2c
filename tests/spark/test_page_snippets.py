"""Run the snippets of the pages on Spark on real captures, under the paths that the pages name."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackbox_feeds.iex import Iex
from pyspark.sql import SparkSession

from blackbox import Recording
from blackbox.cli.ui.status import Status
from tests.cli.commands import invoke
from tests.project.test_page_snippets import run, snippets
from tests.recorded import record

NAMES = {"tops": "tops", "xnas": "itch"}
"""Capture used for each feed of the pages; `iex` needs one with keys that are whole slices."""


@pytest.fixture
def shown(captured: Callable[[str], Path], shared_data: Path, tmp_path: Path) -> Callable[[str], list[str]]:
    """Return a page's snippets, with the dates of the recorded days, and relative paths and `/mnt` below `tmp_path`."""
    feeds = {name: captured(capture) for name, capture in NAMES.items()}
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    for name, path in feeds.items():
        (recordings / name).symlink_to(path)
    record(recordings, "iex", lambda: Iex(shared_data / "iex" / "goiex_TOPS16.pcapng.gz"))
    days = {name: sorted(day.parent.name for day in path.glob("*/manifest.json")) for name, path in feeds.items()}

    def dated(code: str) -> str:
        """Replace dates by recorded days: midnight may be between two recordings."""
        code = re.sub(r"(recordings/(\w+)/)[\d-]{10}", lambda at: at[1] + days[at[2]][-1], code)
        code = re.sub(r'\bfirst="[\d-]{10}"', f'first="{days["tops"][0]}"', code)
        return re.sub(r'\blast="[\d-]{10}"', f'last="{days["tops"][-1]}"', code)

    def of(page: str) -> list[str]:
        codes = map(dated, snippets(page))
        return [re.sub(r'"(?:/mnt/)?(recordings/|bars/|ckpt|out)', rf'"{tmp_path}/\1', code) for code in codes]

    return of


def test_the_page_on_the_data_source(spark: SparkSession, shown: Callable[[str], list[str]], tmp_path: Path) -> None:
    query, days, connector, follow = shown("spark.md")
    names: dict[str, Any] = {}
    run(query, names)
    run(days, names)
    assert names["frame"].count() == spark.read.format("blackbox").load(f"{tmp_path}/recordings/tops").count() > 0
    run(connector, names)
    run(follow, names)
    (streaming,) = spark.streams.active
    try:
        streaming.processAllAvailable()
    finally:
        streaming.stop()
    assert (
        spark.read.parquet(f"{tmp_path}/out").count()
        == spark.read.format("blackbox").load(f"{tmp_path}/recordings/xnas").count()
        > 0
    )


def test_the_page_on_analysis(spark: SparkSession, shown: Callable[[str], list[str]]) -> None:
    (code,) = shown("spark-analysis.md")
    names: dict[str, Any] = {}
    run(code, names)
    for name in ("bars", "priced", "bbo", "beside", "auctions"):
        names[name].count()
    assert names["trades"].count() > 0


def test_the_page_on_your_own_format(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, publish, bars, _ = snippets("own-format.md")
    (tmp_path / "ticks.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        names: dict[str, Any] = {}
        run(publish, names)
    finally:
        sys.modules.pop("ticks", None)
    assert names["seen"] == [189.98 * 100] * 600
    run(bars, {})
    assert capsys.readouterr().out.count("|189.9800|189.9800|  6000|    60|") == 10
    (day,) = tmp_path.glob("recordings/ticks/*-*-*")
    monkeypatch.setattr("blackbox.cli.ui.drawing._SETTINGS", {})
    assert invoke("analyse", day, "--out", tmp_path / "day.html").status == Status.OK
    assert "AAPL" in (tmp_path / "day.html").read_text()
    (quote,) = Recording.open(day).quotes.to_arrow(prices="float").to_pylist()
    assert (quote["bid_price"], quote["ask_price"]) == (189.97, None)


def test_the_page_on_clusters(spark: SparkSession, shown: Callable[[str], list[str]], tmp_path: Path) -> None:
    (code,) = shown("spark-cluster.md")
    run(code, {})
    assert spark.read.parquet(f"{tmp_path}/bars/tops").count() > 0
