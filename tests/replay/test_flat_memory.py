"""Memory does not grow with the length of a day: each use runs in its own process, on a day and one 5 times as long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blackbox import Recording
from blackbox.archive.read.reader import RUN_RECORDS
from blackbox.archive.recordings import runs_of
from blackbox.feed.symbol_choice import ALL_TOPICS
from blackbox.replay.slice_numbering import ReplayedFeeds
from blackbox.replay.tables.block_table import Selection, block_tables
from tests.replay.audience import simple_day

SHORT, LONG = 300_000, 1_500_000
SPARE_KB = 8 << 10
AHEAD_KB = 24 << 10

IMPORT = """
from blackbox.archive.importing.import_days import import_days
from blackbox_feeds.synthetic import Synthetic
(day,) = import_days(Feed.local("session", 2, schema="itch50"), sys.argv[1], [Synthetic(int(sys.argv[2]), symbols=50)])
seen = day.messages
"""
OPEN = """
(day,) = Path(sys.argv[1]).glob("session/*-*-*")
recording = Recording.open(day)
subscriber = Subscriber(recording.feed)
seen = 0
"""
COUNT = """
def count(messages):
    global seen
    seen += many(messages)
"""
USES = {
    "messages": "many = lambda message: 1" + COUNT + "subscriber.on(b'')(count)\nsubscriber.replay(recording)",
    "batches": "many = len" + COUNT + "subscriber.on_batch(b'')(count)\nsubscriber.replay(recording)",
    "frames": "seen = sum(chunk.num_rows for chunk in recording.arrow_chunks(rows=1 << 16))\n"
    "assert sum(chunk.num_rows for chunk in recording.arrow_chunks(rows=1 << 16, message_type='A'))",
}
BEGIN = """
import sys
from pathlib import Path
from blackbox import Feed, Recording, Subscriber
"""
END = """
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(seen), peak.split()[1])
"""


def peak_kb(use: str, directory: Path, messages: int) -> int:
    """Run the use in a process and return the peak memory of that process, in kB."""
    command = [sys.executable, "-c", BEGIN + use + END, str(directory), str(messages)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    seen, peak = map(int, ran.stdout.split())
    assert seen == messages
    return peak


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, int]]:
    """Return a short and a long day, each with the peak memory of its import, in kB."""
    found = {}
    for messages in (SHORT, LONG):
        directory = tmp_path_factory.mktemp("days")
        found[messages] = directory, peak_kb(IMPORT, directory, messages)
    return found


@pytest.mark.long
def test_an_import_of_a_longer_day_takes_no_more_memory(imported: dict[int, tuple[Path, int]]) -> None:
    """AHEAD_KB: only the long day is large enough to fill the decode-ahead and the read-ahead of its verification."""
    short, long = imported[SHORT][1], imported[LONG][1]
    assert long < 1.1 * short + SPARE_KB + AHEAD_KB


@pytest.mark.long
@pytest.mark.parametrize("use", USES)
def test_a_longer_day_takes_no_more_memory(imported: dict[int, tuple[Path, int]], use: str) -> None:
    short, long = (peak_kb(OPEN + USES[use], imported[messages][0], messages) for messages in (SHORT, LONG))
    assert long < 1.1 * short + SPARE_KB


def test_a_table_releases_earlier_blocks_which_remain_readable(tmp_path: Path) -> None:
    simple_day(tmp_path, range(2 * RUN_RECORDS + 1))
    recordings = [Recording.open(tmp_path)]
    runs = runs_of(recordings, bodies="unpacked", kept=9)
    selection = Selection(0, ALL_TOPICS, "ts_event")
    tables = list(block_tables(runs, selection, ReplayedFeeds(recordings), is_measured=False))
    assert [table.played for table in tables] == [(), *(tuple(table.run.ranges()) for table in tables[:-1])]
    for table in tables:
        table.release_played()
    for table in tables:
        table.measure(0, len(table.rows))
    assert [int(table.rows["count"].sum()) for table in tables] == [RUN_RECORDS, RUN_RECORDS, 1]
