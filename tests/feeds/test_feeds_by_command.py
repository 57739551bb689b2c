"""Each feed by commands alone: recorded while it is published, inspected, and exported as the original file."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blackbox_feeds.io.open_window import open_window

from blackbox import Feed
from tests.cli.commands import Command, invoke, write_feed

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def unpacked(path: Path) -> bytes:
    with open_window(path) as window:
        while not window.last:
            window.slide(0)
        assert window.fault is None
        return window.data.tobytes()


def run(tmp_path: Path, name: str, source: str) -> Path:
    """Publish a source to a recorder, with free ports but otherwise as configured; return the recorded day."""
    config = Feed.load(CONFIGS / f"{name}.toml")
    local = Feed.local(name, len(config.slices))
    feed = msgspec.structs.replace(local, schema=config.schema, heartbeat_ns=50_000_000)
    path = write_feed(feed, tmp_path / "feed.toml")
    with (
        Command("record", "--feed", path, "--out", tmp_path / "recordings", "--until-end") as recorder,
        Command("publish", source, "--feed", path) as publisher,
    ):
        published, done = publisher.end(300), recorder.end(300)
    assert (published.status, done.status) == (0, 0), published.errors + done.errors
    assert published.value("messages") == done.value("recorded")
    (day,) = (tmp_path / "recordings" / name).glob("*-*-*")
    return day


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "file", "output", "read", "messages", "shown"),
    [
        (
            "tape", "lean/ibm_20131009_trade.zip", "day.zip", members_of, 27_042,
            r"2013-10-09T13:12:36\.320000000Z IBM\.trade type=T exchange=P suspicious=0 .* price=179\.0500 symbol=IBM",
        ),
        (
            "dbn", "dbn/futures_mbp-1_2024-07-01T23-58.dbn.zst", "day.dbn.zst", unpacked, 2_289,
            r"2024-07-01T23:58:01\.218218853Z ESU4\.mbp-1 length=20 rtype=1 .* price=5528\.750000000 size=2 action=T",
        ),
        (
            "binance", "binance/spot_ethusdt_20240808.gz", "frames.gz", unpacked, 33_618,
            r"2024-08-08T23:54:15\.308000000Z ethusdt\.depth b'1723161254036052868 \{\"stream\":\"ethusdt@depth",
        ),
    ],
)  # fmt: skip
def test_an_exported_file_equals_the_original(
    shared_data: Path, tmp_path: Path, name: str, file: str, output: str, read: Any, messages: int, shown: str
) -> None:
    source = shared_data / file
    day = run(tmp_path, name, f"{name}:{source}")
    exported = invoke("export", day, "--out", tmp_path / output)
    assert exported.status == 0, exported.errors
    assert exported.value("messages") == messages
    assert read(tmp_path / output) == read(source)
    dumped = invoke("dump", day, "--count", "3")
    assert dumped.status == 0, dumped.errors
    assert re.search(rf"^{shown}", dumped.out, re.MULTILINE), dumped.out
