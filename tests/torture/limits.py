"""Let processes run out of file descriptors or threads: they work, or soon raise one error that names the limit."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from blackbox import Feed, Publisher
from blackbox.archive.record.recorder import Recorder
from blackbox.testing import wait_until
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome

KINDS = ("publisher", "subscriber", "processes", "recorder", "replay_to_callbacks", "replay_to_the_wire")
TRY = (
    f"KINDS = {KINDS}\n"
    """
import itertools, multiprocessing.popen_fork, resource, signal, tempfile
from pathlib import Path
from datetime import datetime

def try_publisher(feed, directory):
    feed = Feed.local("limited", slices=len(feed.slices), lines=2)
    with Publisher(feed) as publisher:
        publisher.publish(b"T", b"")

def try_subscriber(feed, directory, **settings):
    subscriber = Subscriber(feed, **settings)
    subscriber.on_batch(b"")(lambda batch: None)
    with subscriber:
        pass

def try_processes(feed, directory):
    try_subscriber(feed, directory, processes=True)

def try_recorder(feed, directory):
    with Recorder(feed, f"{directory}/{os.getpid()}"):
        pass

def try_replay_to_callbacks(feed, directory):
    days = [path.parent for path in Path(directory).glob("*/*/manifest.json")]
    subscriber = Subscriber(feed)
    subscriber.on_batch(b"")(lambda batch: None)
    subscriber.replay([Recording.open(day) for day in days])

def try_replay_to_the_wire(feed, directory):
    days = [path.parent for path in Path(directory).glob("*/*/manifest.json")]
    with Publisher(Feed.local("limits", slices=len(feed.slices))) as publisher:
        Replay([Recording.open(day) for day in days]).publish(publisher)

def prepare():
    directory = sys.argv[3]
    for kind in KINDS:
        if kind != "processes":
            globals()["try_" + kind](feed, directory)

def work(kind, what, more, directory):
    signal.alarm(150)
    print("began", flush=True)
    if what == "descriptors":
        used = {int(name) for name in os.listdir("/proc/self/fd")}
        unused = (number for number in range(1 << 20) if number not in used)
        limit, now = resource.RLIMIT_NOFILE, next(itertools.islice(unused, int(more), None))
    else:
        # Threads of a user are counted over all processes: other tests do the same at the same time.
        os.setuid(10_000 + os.getpid() % 50_000) if os.getuid() == 0 else None
        limit, now = resource.RLIMIT_NPROC, len(os.listdir("/proc/self/task")) + int(more)
    resource.setrlimit(limit, (now, now))
    try:
        globals()["try_" + kind](feed, directory)
        print("worked")
    except LimitError as error:
        print(f"LimitError: {error}")
    sys.stdout.flush()
"""
)


class Limits:
    """Runs operations in processes with few file descriptors or threads left."""

    def __init__(self, slices: int) -> None:
        self.feed = Feed.local("limits", slices=slices)
        self._directory = TemporaryDirectory()
        self._publisher = Publisher(self.feed)

    def __enter__(self) -> Limits:
        self._publisher.start()
        with Recorder(self.feed, self._directory.name) as recorder:
            for number in range(20):
                self._publisher.publish(b"S%d.T" % number, b"")
            self._publisher.flush()
            wait_until(lambda: recorder.statistics().messages == 20)
        # The limit on threads does not apply to root.
        for path in (Path(self._directory.name), *Path(self._directory.name).rglob("*")):
            path.chmod(0o777)
        self._nursery = Nursery(self.feed, TRY, 1, self._directory.name)
        return self

    def __exit__(self, *_: object) -> None:
        self._nursery.__exit__()
        self._publisher.close()
        self._directory.cleanup()

    def attempt(self, kind: str, what: str, more: int) -> str:
        """Run `kind` with `more` free `what` ("descriptors", "threads"); return its last line of output."""
        self._nursery.begin((kind, what, more, self._directory.name))
        began = time.monotonic()
        status, said = self._nursery.wait()
        took = time.monotonic() - began
        if status:
            return f"{kind} with {more} more {what}: status {status} after {took:.1f} s: {said[-1]}"
        return said[-1]


def attack(random: Random, seconds: float) -> Outcome:
    """Try every kind of operation with varying limits."""
    found, tried = [], 0
    with Limits(slices=random.choice((1, 2))) as limits:
        deadline = time.monotonic() + seconds
        while tried == 0 or time.monotonic() < deadline:
            kind, more = random.choice(KINDS), random.randrange(5, 60)
            said = limits.attempt(kind, "descriptors", more)
            if said != "worked" and not ("LimitError" in said and "RLIMIT_NOFILE" in said):
                found.append(said)
            tried += 1
    return Outcome(tried, "limits of descriptors", found)
