"""A day of ticks recorded by another process, with an unregistered schema."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy

from blackbox import Schema
from blackbox.feed.schema.schema import price
from tests.support import ROOT

TICK = numpy.dtype([("type", "S1"), ("price", price("<i4", 2)), ("rate", "<f8"), ("sizes", "<u2", (2,)), ("up", "?")])
TICKS = Schema("ticks", 1_000, {"t": TICK}, names={"tick": "t"})
TICK_ROWS = [(b"t", 100 + i, i / 8, (i, 2 * i), i % 2 == 0) for i in range(20)]

RECORD = """
import sys
from pathlib import Path

import numpy

from blackbox import Feed, Publisher, Recorder
from tests.ticks import TICK, TICK_ROWS, TICKS

feed = Feed.local("ticks", schema=TICKS)
recorder = Recorder(feed, Path(sys.argv[1]))
with Publisher(feed, when_full="wait") as publisher:
    recorder.start()
    for i, row in enumerate(numpy.array(TICK_ROWS, TICK)):
        publisher.publish(b"AB"[i % 2 : i % 2 + 1] + b".tick", row.tobytes(), ts_event=1_700_000_000_000_000_000 + i)
    publisher.flush()
recorder.run(until_end=True, timeout=200)
"""


def recorded_ticks(directory: Path) -> Path:
    """Record the ticks in another process; return the day's directory."""
    subprocess.run([sys.executable, "-c", RECORD, str(directory)], check=True, cwd=ROOT, timeout=200)
    (manifest,) = directory.glob("ticks/*/manifest.json")
    return manifest.parent
