"""Features that should run without Linux do without the calls that macOS lacks. Checked on Linux, not on macOS."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

NEEDS_LINUX = (
    "blackbox/transport/shared_memory/",
    "blackbox/transport/udp/",
    "feeds/blackbox_feeds/live/",
    "feeds/blackbox_feeds/serving/datagrams.py",
)
"""Code behind one error, or unused, on other systems."""

IMPORTS = """
import zmq
import tests.native.as_macos
import importlib, sys
from pathlib import Path

failed = []
for package, folder in (("blackbox", Path("blackbox")), ("blackbox_feeds", Path("feeds/blackbox_feeds"))):
    for path in sorted(folder.rglob("*.py")):
        name = ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        if name == "blackbox.cli.__main__":
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
assert sys.platform == "darwin"
print(*failed, sep="\\n")
"""

FIRST_STEPS = """
import pandas, zmq
import tests.native.as_macos
import sys
from pathlib import Path

from msgspec.structs import replace
from blackbox import ConfigError, Feed, Publisher, Recording, Subscriber
from blackbox.archive.importing.import_days import import_days
from blackbox_feeds.itch50.live_moldudp64 import MoldUdp64Client
from blackbox_feeds.synthetic import Synthetic

assert sys.platform == "darwin"
place = Path(sys.argv[1])
feed = Feed.local("day", schema="itch50")
(day,) = import_days(feed, place / "imported", [Synthetic(5_000)], threads=2)
recording = Recording.latest(place / "imported" / "day")
print("frame:", len(recording.to_pandas()), "trades:", len(recording.trades.to_pandas()) > 0)

subscriber = Subscriber(feed)
count = 0

@subscriber.on(b"")
def message(message):
    global count
    count += 1

subscriber.replay(recording)
print("replayed:", count)

part = Feed.local("live", slices=1)
groups = replace(part, slices=[replace(part.slices[0], endpoints=("udp://239.1.1.1:26400",))])
for refused in (lambda: MoldUdp64Client("moldudp64://239.1.1.1:26400"), Publisher(groups).start):
    try:
        refused()
    except ConfigError as error:
        print(error)
"""


def run(script: str, *arguments: object, cache: Path) -> str:
    """Return the output of a script. Its kernels must not get into the cache of this system."""
    ended = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=1_800,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.long
def test_every_module_is_imported_without_what_macos_lacks(tmp_path: Path) -> None:
    assert run(IMPORTS, cache=tmp_path).split() == []


@pytest.mark.long
@pytest.mark.timeout(2_000)
def test_import_replay_and_frames_do_without_what_macos_lacks(tmp_path: Path) -> None:
    assert run(FIRST_STEPS, tmp_path, cache=tmp_path / "cache").splitlines() == [
        "frame: 5000 trades: True",
        "replayed: 5000",
        "live sources need Linux, and this system is darwin",
        "feed 'live' slice 0: multicast lines need Linux, and this system is darwin",
    ]


@pytest.mark.long
def test_types_are_right_on_macos_outside_of_the_rooms_that_need_linux(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--platform", "darwin", "--no-warn-unreachable"]
    command += ["--cache-dir", str(tmp_path), "blackbox", "feeds/blackbox_feeds", "pyspark_blackbox"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    errors = re.findall(r"^.*: error: .*$", ended.stdout, re.MULTILINE)
    assert ended.returncode in (0, 1), ended.stderr
    assert [error for error in errors if not error.startswith(NEEDS_LINUX)] == []
