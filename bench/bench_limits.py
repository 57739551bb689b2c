"""Physical limits of the machine, which no design can exceed.

memory   array ==memcpy==> array                           64 MiB, more than its caches hold
loopback process ==TCP, writes of 256 KiB==> recv_into()   this process
disk     buffer ==write, fdatasync==> file ==read==> buffer   from the page cache, and after dropping it
Python   a loop that calls an empty function of two arguments
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import numpy
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.processes.child import Child, answer, orders

CALLS = 500_000
COPIED = 64 << 20
FILE_BYTES = 256 << 20
SENT = 1 << 30
_CHUNK = 256 << 10


def send(port: int) -> None:
    """Send the ordered number of bytes to a port of this host."""
    peer = socket.create_connection(("127.0.0.1", port))
    chunk = bytes(_CHUNK)
    for size in orders():
        for _ in range(size // len(chunk)):
            peer.sendall(chunk)
        answer()


def memcpy() -> float:
    """Return GB/s that one core copies."""
    source, target = numpy.ones(COPIED, numpy.uint8), numpy.ones(COPIED, numpy.uint8)
    times = 16
    started = time.perf_counter()
    for _ in range(times):
        numpy.copyto(target, source)
    return times * COPIED / (time.perf_counter() - started) / 1e9


def _loopback(child: Child, peer: socket.socket) -> float:
    buffer = bytearray(_CHUNK)
    left = SENT
    started = time.perf_counter()
    child.send(SENT)
    while left and (got := peer.recv_into(buffer)):
        left -= got
    seconds = time.perf_counter() - started
    child.answer()
    expect("missing bytes", left, 0)
    return SENT / seconds / 1e9


def _write(path: Path) -> float:
    chunk = os.urandom(_CHUNK)
    path.unlink(missing_ok=True)  # freeing the blocks of the previous round takes time
    started = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(FILE_BYTES // _CHUNK):
            file.write(chunk)
        os.fdatasync(file.fileno())
        return FILE_BYTES / (time.perf_counter() - started) / 1e9


def _read(path: Path, cold: bool) -> float:
    buffer = bytearray(_CHUNK)
    size = 0
    with path.open("rb", buffering=0) as file:
        if cold:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        while got := file.readinto(buffer):
            size += got
        seconds = time.perf_counter() - started
    expect("bytes read", size, FILE_BYTES)
    return size / seconds / 1e9


def empty_calls() -> float:
    """Return M calls/s of an empty function."""

    def nothing(topic: bytes, payload: bytes) -> None:
        pass

    topic, payload = b"S0001.trade", bytes(100)
    started = time.perf_counter()
    for _ in range(CALLS):
        nothing(topic, payload)
    return CALLS / (time.perf_counter() - started) / 1e6


def test_bytes(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """GB/s."""
    contest = Contest("Limits of memory, loopback and disk", "GB/s", topology=__doc__)
    path = tmp_path / "file"
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = Child("bench.bench_limits:send", port=server.getsockname()[1])
        with child, server.accept()[0] as peer:
            contest.add("memcpy", memcpy, "limit")
            contest.add("loopback TCP", lambda: _loopback(child, peer), "limit")
            contest.add("disk write", lambda: _write(path), "limit", "on disk: fdatasync at the end")
            contest.add("page-cache read", lambda: _read(path, False), "limit")
            contest.add("disk read", lambda: _read(path, True), "limit")
            contest.run(benchmark)


def test_calls(benchmark: BenchmarkFixture) -> None:
    """M calls/s."""
    contest = Contest("Limits of the interpreter", "M calls/s", topology=__doc__)
    contest.add("an empty Python call", empty_calls, "limit")
    contest.run(benchmark)
