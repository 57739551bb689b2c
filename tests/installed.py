"""Publish, subscribe, record, replay and import with an installed package: run by `make test-install`, without pytest.

Each path must deliver the messages of a generated session, compared one by one. If pyspark is installed, Spark reads
them too.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections import defaultdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from blackbox_feeds.synthetic import Synthetic

import blackbox
from blackbox import Feed, Message, Publisher, Recorder, Recording, Subscriber

MESSAGES = 20_000
COMMAND = str(Path(sysconfig.get_path("scripts"), "blackbox"))

Row = tuple[int, bytes]
ByTopic = dict[bytes, list[Row]]


def expected() -> ByTopic:
    """Return time and payload of each message of the session, by topic, in order."""
    rows: ByTopic = defaultdict(list)
    for chunk in Synthetic(MESSAGES).chunks():
        columns = (column.tolist() for column in (chunk.topic_index, chunk.ts_event, chunk.starts, chunk.lengths))
        for topic, ts_event, start, length in zip(*columns, strict=True):
            rows[chunk.topics[topic]].append((ts_event, chunk.payloads[start : start + length].tobytes()))
    return rows


def keep(subscriber: Subscriber) -> ByTopic:
    """Register a callback; return the messages it collects."""
    rows: ByTopic = defaultdict(list)

    @subscriber.on(b"")
    def message(message: Message) -> None:
        rows[message.topic].append((message.ts_event, bytes(message.payload or b"")))

    return rows


def replayed(feed: Feed, day: Path) -> ByTopic:
    """Return the messages of a replay of a recorded day."""
    subscriber = Subscriber(feed)
    rows = keep(subscriber)
    subscriber.replay(Recording.open(day))
    return rows


def read_by_spark(day: Path) -> tuple[ByTopic, str]:
    """Return the messages of a recorded day as Spark's Java connector reads them, and the origin of its jar."""
    from blackbox.analysis.spark.jar import SOURCES, connector_jar
    from blackbox.analysis.spark.session import session

    spark = session("local[2]", conf={"spark.ui.enabled": False, "spark.ui.showConsoleProgress": False})
    frame = spark.read.format("blackbox").option("engine", "java").load(str(day))
    rows: ByTopic = defaultdict(list)
    for row in frame.orderBy("slice", "sequence").select("topic", "ts_event", "payload").collect():
        rows[row.topic.encode()].append((row.ts_event, bytes(row.payload)))
    origin = "packed" if connector_jar().parent == SOURCES else "compiled here"
    spark.stop()
    return rows, origin


def main() -> None:
    """Run all checks."""
    clone = Path(__file__).resolve().parent.parent / "blackbox"
    assert Path(blackbox.__file__).parent != clone, f"{clone} was imported instead of an installed package"
    said = subprocess.run([COMMAND, "--version"], check=True, capture_output=True, text=True).stdout
    assert blackbox.__version__ == version("blackbox-md")
    assert blackbox.__version__ in said.split(), f"the version was {said!r}, expected {blackbox.__version__}"
    feed = Feed.local("session", schema="itch50")
    wanted = expected()
    assert sum(map(len, wanted.values())) == MESSAGES
    with TemporaryDirectory() as directory:
        live, recorder = Subscriber(feed), Recorder(feed, Path(directory, "recorded"))
        received = keep(live)
        with Publisher(feed, when_full="wait") as publisher:
            live.start(timeout=300)
            recorder.start(timeout=300)
            Synthetic(MESSAGES).publish(publisher)
        live.run(until_end=True)
        recorder.run(until_end=True)
        assert received == wanted, "the subscriber received other messages than the published ones"
        (day,) = recorder.directory.glob("*-*-*")
        assert replayed(feed, day) == wanted, "the replay of the recorded day has other messages"

        out = str(Path(directory, "imported"))
        subprocess.run([COMMAND, "import", f"synthetic:{MESSAGES}", "--out", out], check=True)
        (day,) = Path(out).glob("*/*-*-*")
        assert replayed(feed, day) == wanted, "the replay of the imported day has other messages"
        spark = "not installed"
        if find_spec("pyspark") is not None:
            rows, origin = read_by_spark(day)
            assert rows == wanted, "Spark read other messages from the imported day"
            spark = f"{version('pyspark')}, its jar {origin}"
    python = ".".join(map(str, sys.version_info[:3]))
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "pyzmq", "msgspec"))
    print(f"Python {python}, {versions}; Spark {spark}: {MESSAGES:,} messages on each path")


if __name__ == "__main__":
    main()
