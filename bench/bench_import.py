"""Importing ITCH files into dated recordings: read again, checked and durable when the clock stops.

    ours    file ==decoded, in columns==> blocks ==write==> journal ==read again==> a day's name
    beside  file ==decoded, in columns==> publisher ==TCP loopback==> recorder ==write==> journal
    limit   the file ==read, write==> a copy, durable

Figures are MB/s of the ITCH files, a few seconds of them; several days are a process a core.
"""

from __future__ import annotations

import datetime
import os
import shutil
import time
from functools import partial
from pathlib import Path

import msgspec
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.synthetic import Synthetic
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.workload.recorded import record
from blackbox import Feed, Publisher
from blackbox.archive.import_days import import_days

MESSAGES = 4_000_000
DAYS = 4
FIRST = datetime.date(2026, 1, 5)


def _files(directory: Path) -> list[Path]:
    """A file for each day, all of the same bytes."""
    first = directory / f"{FIRST:%Y%m%d}.itch"
    Synthetic(MESSAGES).write(first)
    others = [directory / f"{FIRST + datetime.timedelta(day):%Y%m%d}.itch" for day in range(1, DAYS)]
    for path in others:
        path.hardlink_to(first)
    return [first, *others]


def _rate(files: list[Path], seconds: float) -> float:
    return sum(path.stat().st_size for path in files) / seconds / 1e6


def _imported(feed: Feed, directory: Path, files: list[Path], compression: str = "none") -> float:
    began = time.perf_counter()
    done = import_days(
        feed,
        directory,
        [Itch50(path) for path in files],
        compression=compression,  # type: ignore[arg-type]
        processes=os.cpu_count() or 1,
    )
    seconds = time.perf_counter() - began
    shutil.rmtree(directory / feed.name)
    expect("messages", [day.messages for day in done], [MESSAGES] * len(files))
    return _rate(files, seconds)


def _recorded(feed: Feed, files: list[Path]) -> float:
    began = 0.0

    def publish(publisher: Publisher) -> None:
        nonlocal began
        began = time.perf_counter()
        Itch50(files[0]).publish(publisher)

    day = record(feed, MESSAGES, publish)
    seconds = time.perf_counter() - began
    shutil.rmtree(day)
    return _rate(files, seconds)


def _copied(directory: Path, files: list[Path]) -> float:
    began = time.perf_counter()
    for path in files:
        with path.open("rb") as source, (directory / "copy").open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
    seconds = time.perf_counter() - began
    (directory / "copy").unlink()
    return _rate(files, seconds)


def test_import(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """MB/s of the files."""
    feed = msgspec.structs.replace(Feed.local("import"), schema="itch50")
    files = _files(tmp_path)
    contest = Contest(f"Importing ITCH days of {MESSAGES:,} messages", "MB/s of the files", topology=__doc__)
    contest.add("one day", partial(_imported, feed, tmp_path, files[:1]))
    contest.add("one day, zstd", partial(_imported, feed, tmp_path, files[:1], "zstd"))
    contest.add(f"{DAYS} days at once", partial(_imported, feed, tmp_path, files))
    contest.add("publish and record, one day", partial(_recorded, feed, files[:1]), "limit", versus="one day")
    contest.add("copy of the file, durable", partial(_copied, tmp_path, files[:1]), "limit", versus="one day")
    contest.run(benchmark)
