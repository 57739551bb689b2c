"""Publish, subscribe, record, replay and import with an installed package: run by `make test-install`, without pytest.

Each path must deliver the messages of a generated session, compared one by one.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy
from blackbox_feeds.synthetic import Synthetic

import blackbox
from blackbox import Feed, Message, Publisher, Recorder, Recording, Subscriber

MESSAGES = 20_000

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


def main() -> None:
    """Run all checks."""
    clone = Path(__file__).resolve().parent.parent / "blackbox"
    assert Path(blackbox.__file__).parent != clone, f"{clone} was imported instead of an installed package"
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

        command = [str(Path(sysconfig.get_path("scripts"), "blackbox")), "import", f"synthetic:{MESSAGES}"]
        subprocess.run([*command, "--out", str(Path(directory, "imported"))], check=True)
        (day,) = Path(directory, "imported").glob("*/*-*-*")
        assert replayed(feed, day) == wanted, "the replay of the imported day has other messages"
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"installed with Python {version}, numpy {numpy.__version__}: {MESSAGES:,} messages on each path")


if __name__ == "__main__":
    main()
