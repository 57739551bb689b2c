"""Import ITCH files into dated recordings. The clock stops when they are read back, checked and durable.

    ours    file ==decoded, in columns==> blocks ==write==> journal ==read back==> renamed to its date
    limit   file ==decoded, in columns==> publisher ==TCP loopback==> recorder ==write==> journal, durable
    limit   the file ==read, write==> a copy, durable
    limit   the journals ==read, write==> a copy, durable: the speed of the disk

Figures are MB/s of the ITCH files; their journals are half as large again. Publishing and recording handles one day;
ours handles one, or several in parallel as an import does. In memory (tmpfs) there is no disk to wait for.
"""

from __future__ import annotations

import datetime
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.synthetic import Synthetic
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.workload.recorded import record
from blackbox import Feed, Publisher
from blackbox.archive.files.day import recorded_files
from blackbox.archive.importing.import_days import import_days

MESSAGES = 4_000_000
DAYS = 4
LONG_DAY = 16_000_000
FIRST = datetime.date(2026, 1, 5)
MEMORY = Path("/dev/shm")


def _feed() -> Feed:
    return msgspec.structs.replace(Feed.local("import"), schema="itch50")


def _file(directory: Path, messages: int, day: int) -> Path:
    path = directory / f"{FIRST + datetime.timedelta(day):%Y%m%d}.itch"
    Synthetic(messages).write(path)
    return path


def _files(directory: Path) -> list[Path]:
    """Return a file per day, all with the same bytes."""
    first = _file(directory, MESSAGES, 0)
    others = [directory / f"{FIRST + datetime.timedelta(day):%Y%m%d}.itch" for day in range(1, DAYS)]
    for path in others:
        path.hardlink_to(first)
    return [first, *others]


def _bytes(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _imported(
    directory: Path, files: list[Path], messages: int = MESSAGES, compression: str = "none", *, keep: bool = False
) -> float:
    feed = _feed()
    began = time.perf_counter()
    done = import_days(
        feed,
        directory,
        [Itch50(path) for path in files],
        compression=compression,  # type: ignore[arg-type]
        threads=os.cpu_count() or 1,
    )
    seconds = time.perf_counter() - began
    expect("messages", [day.messages for day in done], [messages] * len(files))
    if not keep:
        shutil.rmtree(directory / feed.name)
    return _bytes(files) / seconds / 1e6


def _recorded(directory: Path, file: Path) -> float:
    began = 0.0

    def publish(publisher: Publisher) -> None:
        nonlocal began
        began = time.perf_counter()
        Itch50(file).publish(publisher)

    day = record(_feed(), MESSAGES, publish, directory / "recorded")
    seconds = time.perf_counter() - began
    shutil.rmtree(day)
    return _bytes([file]) / seconds / 1e6


def _copied(directory: Path, files: list[Path], of: int) -> float:
    """Copy files; return MB/s for `of` bytes."""
    copies = directory / "copies"
    copies.mkdir()
    began = time.perf_counter()
    for number, path in enumerate(files):
        with path.open("rb") as source, (copies / str(number)).open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fdatasync(copy.fileno())
    seconds = time.perf_counter() - began
    shutil.rmtree(copies)
    return of / seconds / 1e6


def _contest(title: str, directory: Path) -> Contest:
    files = _files(directory)
    contest = Contest(f"Importing ITCH days of {MESSAGES:,} messages{title}", "MB/s of the files", topology=__doc__)
    contest.add("one day", partial(_imported, directory, files[:1]))
    several = f"{DAYS} days at once"
    contest.add(several, partial(_imported, directory, files))
    contest.add("publish and record, one day", partial(_recorded, directory, files[0]), "limit", versus=several)
    contest.add("copy of the files", partial(_copied, directory, files, _bytes(files)), "limit", versus=several)
    kept = directory / "kept"
    _imported(kept, files, keep=True)
    journals = [file for day in (kept / "import").iterdir() if day.is_dir() for file in recorded_files(day)]
    contest.add("copy of the journals", partial(_copied, directory, journals, _bytes(files)), "limit", versus=several)
    return contest


def test_import(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """MB/s of the files, from page cache to disk."""
    contest = _contest("", tmp_path)
    contest.add("one day, zstd", partial(_imported, tmp_path, [tmp_path / f"{FIRST:%Y%m%d}.itch"], compression="zstd"))
    long = _file(tmp_path, LONG_DAY, DAYS)
    contest.add(f"one day of {LONG_DAY:,} messages", partial(_imported, tmp_path, [long], LONG_DAY))
    contest.run(benchmark)


@pytest.fixture
def memory() -> Iterator[Path]:
    """Yield a directory in memory."""
    if not MEMORY.is_dir():
        pytest.skip(f"{MEMORY} does not exist")
    with TemporaryDirectory(prefix="blackbox-bench-", dir=MEMORY) as directory:
        yield Path(directory)


def test_import_in_memory(benchmark: BenchmarkFixture, memory: Path) -> None:
    """MB/s of the files, from memory to memory."""
    _contest(", in memory", memory).run(benchmark)
