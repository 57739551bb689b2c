"""Serve a recorded day as Binance does, to one client on the same machine.

recorded lines ==frames==> WebSocket server ==TCP==> a client that keeps the bytes   rival: a plain server, Node's `ws`
                                                                                     report: frames/s, bytes checked
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy
import pytest
from blackbox_feeds.binance.server.server import BinanceServer
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.workload.captures import DATA
from blackbox import Feed, Recording
from blackbox.feed.venue_url import Address
from blackbox.replay.play.venue_server import VenueMessages

FILE: Final = DATA / "binance" / "usdm_btcusdt_20240808.gz"
STREAMS: Final = ("btcusdt@trade", "btcusdt@bookTicker", "btcusdt@depth@0ms")
PLACE: Final = Path(os.environ.get("BLACKBOX_NODE_WS", Path(tempfile.gettempdir()) / "blackbox-node-ws"))
"""Directory with the package `ws` in `node_modules`; installed there if missing."""
SERVER: Final = Path(__file__).parent / "rivals" / "node_ws_server.js"
WAIT_S: Final = 60.0


class Day(NamedTuple):
    """The lines of a file, and the WebSocket frames that a server has to send."""

    lines: list[bytes]
    wire_bytes: int
    digest: str


@cache
def day() -> Day:
    """Return the lines with a stream's name, and what a client has to receive."""
    lines = [line + b"\n" for line in gzip.decompress(FILE.read_bytes()).splitlines() if b'{"stream"' in line]
    wire = bytearray()
    for line in lines:
        frame = line.partition(b" ")[2][:-1]
        size = len(frame)
        head = bytes((0x81, size)) if size < 126 else b"\x81\x7e" + size.to_bytes(2, "big")
        wire += (head if size < 1 << 16 else b"\x81\x7f" + size.to_bytes(8, "big")) + frame
    return Day(lines, len(wire), hashlib.sha256(wire).hexdigest())


def receive(port: int) -> float:
    """Return the seconds from connecting to the last byte; check every byte."""
    expected = day()
    buffer = bytearray(expected.wire_bytes)
    view = memoryview(buffer)
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
        started = time.perf_counter()
        client.sendall(
            b"GET /stream?streams=%b HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            % "/".join(STREAMS).encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1)
        got = 0
        while got < len(buffer):
            more = client.recv_into(view[got:])
            if not more:
                break
            got += more
        seconds = time.perf_counter() - started
    expect("bytes of all frames", hashlib.sha256(buffer[:got]).hexdigest(), expected.digest)
    return seconds


def ours() -> float:
    """Return frames/s of `BinanceServer`."""
    lines = day().lines
    data = numpy.frombuffer(b"".join(lines), numpy.uint8)
    lengths = numpy.array([len(line) for line in lines], numpy.int32)
    addresses = data.ctypes.data + numpy.cumsum(lengths, dtype=numpy.int64) - lengths
    none, times = numpy.zeros(len(lines), numpy.int32), numpy.ones(len(lines), numpy.int64)
    messages = VenueMessages(times, addresses, lengths, none, (b"btcusdt.other",))
    with tempfile.TemporaryDirectory() as directory:
        feed = msgspec.structs.replace(Feed.local("binance"), schema="binance")
        one = {"topic": [b"btcusdt.trade"], "ts_event": [1_723_161_255_000_000_000], "payload": [lines[0]]}
        recording = Recording.create(directory, feed, one)
        with BinanceServer(Address("127.0.0.1", 0), [recording], BinanceServer.Options()) as server:

            def send() -> None:
                server.wait_for(1, WAIT_S)
                server.send(messages)

            sender = threading.Thread(target=send)
            sender.start()
            seconds = receive(server.port)
            sender.join()
    return len(lines) / seconds


def nodes(node: str, file: Path) -> float:
    """Return frames/s of a plain server with Node's `ws`."""
    environment = os.environ | {"NODE_PATH": str(PLACE / "node_modules")}
    with subprocess.Popen([node, str(SERVER), str(file)], stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            return len(day().lines) / receive(int(server.stdout.readline()))
        finally:
            server.kill()


def test_binance_server(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Frames per second to one client, which is the same for both servers."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if not FILE.exists() or node is None or npm is None:
        pytest.skip(f"needs {FILE}, node and npm")
    if not (PLACE / "node_modules" / "ws").exists():
        PLACE.mkdir(exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(PLACE), "ws@8"]
        subprocess.run(command, check=True, timeout=WAIT_S)
    file = tmp_path / "lines.txt"
    file.write_bytes(b"".join(day().lines))
    contest = Contest(f"Binance server: {len(day().lines)} frames to one client", "frames/s", topology=__doc__)
    contest.add("blackbox", ours, "ours")
    contest.add("Node's ws", lambda: nodes(node, file), "rival")
    contest.run(benchmark)
