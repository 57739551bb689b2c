"""Publish and wait after each call until its messages are on disk.

ours        PUB process ==blocks, TCP loopback==> recorder process ==write, fdatasync==> journal
            wait_synced() <------ position, once a call -----------'
JetStream   nats-py ==a message each, TCP loopback==> nats-server ==write, fsync==> files
            acknowledgements <--------- one a message -----------'
limit       the same bytes, write() and fdatasync() once a call
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.processes.acknowledged import PAYLOAD_BYTES
from bench.processes.child import Child
from bench.rivals.rival import need
from bench.rivals.servers import Missing, nats_server
from blackbox import Feed

CALLS = {1: 500, 10_000: 60}
_JETSTREAM_CALLS = {1: 300, 10_000: 3}
_ROW_BYTES = PAYLOAD_BYTES + 12
"""Bytes of a message in a journal, without block headers."""
_SETTINGS = 'jetstream {{ store_dir: "{place}", sync_interval: always }}'


def _ours(publisher: Child, recorder: Child, what: str, at_once: int) -> float:
    calls = CALLS[at_once]
    before = recorder.ask({})["messages"]
    told = publisher.ask({"what": what, "at_once": at_once, "calls": calls})
    expect("messages recorded when the last call returned", recorder.ask({})["messages"] - before, calls * at_once)
    expect("peers disconnected", told["put_out"], 0)
    return float(calls / told["seconds"])


def _limit(directory: Path, at_once: int) -> float:
    path, data = directory / "plain", os.urandom(at_once * _ROW_BYTES)
    with path.open("wb", buffering=0) as file:
        began = time.perf_counter()
        for _ in range(CALLS[at_once]):
            file.write(data)
            os.fdatasync(file.fileno())
        seconds = time.perf_counter() - began
    path.unlink()
    return CALLS[at_once] / seconds


def _jetstream(child: Child, at_once: int) -> float:
    told = child.ask({"at_once": at_once, "calls": _JETSTREAM_CALLS[at_once]})
    expect("messages stored", told["stored"], at_once * _JETSTREAM_CALLS[at_once])
    return 1e9 * _JETSTREAM_CALLS[at_once] / float(told["times"][-1] - told["times"][0])


def test_acknowledged(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Calls/s; each call returns when its messages are stored."""
    contest = Contest("Publish and wait until it is on disk", "calls/s", topology=__doc__, axis="messages a call")
    with ExitStack() as stack:
        for fsync, promise in (("block", "synced block by block"), ("interval", "synced every ms")):
            feed = Feed.local(f"acknowledged-{fsync}", slices=1)
            publisher = stack.enter_context(Child("bench.processes.acknowledged:publish", feed=feed))
            recorder = stack.enter_context(
                Child("bench.processes.acknowledged:record", feed=feed, directory=str(tmp_path), fsync=fsync)
            )
            for at_once in CALLS:
                name = f"wait_synced(), fsync={fsync}"
                contest.add(name, partial(_ours, publisher, recorder, "synced", at_once), promise=promise, at=at_once)
                if fsync == "interval":
                    run = partial(_ours, publisher, recorder, "recorded", at_once)
                    contest.add("wait_recorded()", run, promise="in the page cache", at=at_once)
        for at_once in CALLS:
            contest.add("write(), fdatasync()", partial(_limit, tmp_path, at_once), "limit", at=at_once)
        try:
            need("nats-py:nats", "uvloop")
            settings = tmp_path / "nats.conf"
            settings.write_text(_SETTINGS.format(place=tmp_path / "nats"))
            server = stack.enter_context(nats_server("-c", str(settings)))
            child = stack.enter_context(Child("bench.rivals.nats_jetstream:acknowledge", address=server.url))
        except Missing as why:
            contest.skip("NATS JetStream", str(why))
        else:
            name = f"NATS JetStream, nats-server {server.version}"
            for at_once in CALLS:
                run = partial(_jetstream, child, at_once)
                contest.add(name, run, "rival", "synced message by message", at=at_once)
        contest.run(benchmark)
