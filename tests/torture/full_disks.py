"""Record to a disk that fills up: the recorder reports it, and every message counted as recorded is stored."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec

from blackbox import Feed, Publisher, Recording
from tests.torture.numbered import numbers_of, publishing
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome

RECORD = """
def work(directory, most_bytes, fsync):
    import logging, resource
    logging.disable()  # each recorder logs that it ended
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(most_bytes), resource.RLIM_INFINITY))
    recorder = Recorder(feed, directory, fsync=fsync)
    try:
        notes[0] = 1
        recorder.run(timeout=60)
    except JournalError as error:
        now = recorder.statistics()
        came = now.received
        notes[1] = now.messages
        notes[2] = now.messages + now.lost == came.messages - came.duplicates - came.stale
        notes[3] = "File too large" in str(error)
    else:
        notes[3] = -1
"""


def attack(random: Random, seconds: float) -> Outcome:
    """Limit the file size of a recorder, from no bytes to a few megabytes."""
    feed = msgspec.structs.replace(Feed.local("full-disks", slices=1), block_bytes=8_192)
    outcome = Outcome(0, "full disks")
    with Publisher(feed) as publisher, Nursery(feed, RECORD, notes=4) as nursery, publishing(publisher, 500):
        deadline = time.monotonic() + seconds
        while outcome.tried == 0 or time.monotonic() < deadline:
            most_bytes = int(2 ** random.uniform(6, 22))
            with TemporaryDirectory() as directory:
                nursery.notes[:] = 0
                nursery.begin((directory, most_bytes, random.choice(("never", "interval", "block"))))
                status, _ = nursery.wait()
                outcome.tried += 1
                wrong = _wrong(status, nursery.notes.tolist(), Path(directory, feed.name))
            outcome.found += [f"files of {most_bytes} bytes at most: {each}" for each in wrong]
    return outcome


def _wrong(status: int, said: list[int], feed: Path) -> list[str]:
    _, recorded, is_right, why = said
    if status != 0 or why != 1:
        return [f"the recorder ended with status {status} and noted {why}"]
    wrong = [] if is_right else ["its statistics do not add up"]
    found = 0
    for day in sorted(path.parent for path in feed.glob("*/manifest.json")):
        recording = Recording.open(day)
        for batch in recording.batches():
            if (numbers_of(batch)[:, 1] != batch.sequence).any():
                wrong.append("a message has another sequence number")
            found += len(batch)
        wrong += [str(damage) for damage in recording.verify()]
    if found != recorded:
        wrong.append(f"{found} messages are stored, {recorded} were reported as recorded")
    return wrong
