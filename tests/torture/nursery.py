"""Processes to be killed, forked from one that has compiled everything, so that each starts immediately."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox import Feed

ROOT = Path(__file__).resolve().parents[2]

_PRELUDE = """
import os, sys, threading
import msgspec, numpy
from tests.script_names import *
feed, path = msgspec.json.decode(sys.argv[1], type=Feed), sys.argv[2]
notes = numpy.memmap(path, numpy.int64, "r+")
warm = Feed.local("warm", slices=1, key_bytes=feed.key_bytes)
with Publisher(warm) as publisher:
    subscriber = Subscriber(warm)
    subscriber.on_batch(b"")(lambda batch: None)
    with subscriber:
        publisher.publish_many((b"A",), numpy.zeros(1, int), numpy.zeros((1, 8), numpy.uint8))
globals().get("prepare", lambda: None)()
parent = os.getpid()
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        orphaned = lambda: (wait_until(lambda: os.getppid() != parent, 3600), os._exit(1))
        threading.Thread(target=orphaned, daemon=True).start()
        print(os.getpid(), flush=True)
        work(*line.split())
        os._exit(0)
    print("gone", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
WARM_RECORDER: Final = """
from tempfile import TemporaryDirectory
from blackbox.feed.endpoint import free_endpoints
def prepare():
    served = msgspec.structs.replace(warm, archives=free_endpoints("tcp", "archive", 1, 1)[0])
    with TemporaryDirectory() as directory, Publisher(served) as publisher, Recorder(served, directory, serve=True):
        publisher.publish(b"A", b"")
        publisher.wait_recorded()
        list(ArchiveClient(served, timeout=300).blocks(0, stop_ns=0))
"""
"""Compiles recording and serving before the fork, for code that does both."""


class Nursery:
    """Run the function `work(*words)` of `code` in a succession of processes that can be killed.

    The function has `feed`, everything of `blackbox` and `blackbox.testing`, and `notes`, memory shared with this
    process that survives a kill.
    """

    def __init__(self, feed: Feed, code: str, notes: int, *words: str) -> None:
        self._directory = TemporaryDirectory()
        path = Path(self._directory.name, "notes")
        self.notes: NDArray[numpy.int64] = numpy.memmap(path, numpy.int64, "w+", shape=notes)
        self._process = subprocess.Popen(
            [sys.executable, "-c", code + _PRELUDE, msgspec.json.encode(feed).decode(), str(path), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'feeds'}"},
        )
        self._expect("ready")
        self._pid = 0

    def begin(self, words: Sequence[Any] = ()) -> None:
        assert self._process.stdin is not None
        print(*words, "", file=self._process.stdin, flush=True)
        self._pid = int(self._read())

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended on its own."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def kill(self) -> None:
        """Send SIGKILL and wait until it has ended."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> tuple[int, list[str]]:
        """Wait until it ends on its own; return its status, negative for a signal, and the lines it printed."""
        said = []
        while not (line := self._read()).startswith("gone "):
            if not line and self._process.poll() is not None:
                raise AssertionError("the forking process has ended")
            said.append(line)
        return int(line.split()[1]), said

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _expect(self, words: str) -> None:
        said = self._read()
        if said != words:
            raise AssertionError(f"a forked process printed {said!r}, expected {words!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._directory.cleanup()
