"""Packets of a recorded day by MoldUDP64, as fast as the kernel takes them, on this machine.

    the server   recording ==replay==> messages stored, cut into packets ==sendmmsg==> 127.0.0.1
    a plain loop the same packets, made before ==sendmmsg==> 127.0.0.1
    tcpreplay    the same packets in a capture ==--topspeed==> lo

The receiver never reads: its buffer is full, so a packet costs no wake-up. Every round must send all packets.
"""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy
from blackbox_feeds.itch50.moldudp64_server import MoldOptions, MoldUdp64Server
from blackbox_feeds.serving.datagrams import DatagramPath, Faults
from blackbox_feeds.synthetic import Synthetic

from bench.measure.contest import Contest, expect
from bench.workload.recorded import directory
from blackbox import Feed, Recording
from blackbox.archive.importing.import_days import import_days
from blackbox.feed.venue_url import Address
from blackbox.replay.play.to_venue import VenuePlayer
from blackbox.replay.replay import Replay
from blackbox.transport.udp.mmsg import Gathered, send_gathered

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

_MESSAGES: Final = 2_000_000
_HEADERS_BYTES: Final = 14 + 20 + 8
"""Ethernet, IPv4, UDP."""


@cache
def _sink() -> tuple[socket.socket, Address]:
    """Return a socket that never reads, and its address."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    return made, Address(*made.getsockname())


@cache
def _day() -> Recording:
    feed = msgspec.structs.replace(Feed.local("venues", 1), schema="itch50")
    (day,) = import_days(feed, directory().name, [Synthetic(_MESSAGES, symbols=500, date="2026-01-05")])
    return Recording.open(day.path)


def _serve() -> float:
    """Return thousand packets/s of a whole replay; `sent` has the packets."""
    recording = _day()
    options = MoldOptions(linger=0.0, store=directory().name)
    with MoldUdp64Server(_sink()[1], [recording], options) as server:
        statistics = Replay(recording, order="sent").run(VenuePlayer(server, [recording]))
        expect("messages", server.counts()["messages"], _MESSAGES)
        return server.counts()["packets"] / statistics.seconds / 1e3


@cache
def _packets() -> list[bytes]:
    """Return the packets of the day, as another process would receive them."""
    found: list[bytes] = []

    class Kept(DatagramPath):
        def send(self, headers, data, bounds):  # type: ignore[no-untyped-def]
            found.extend(
                head.tobytes() + data[start:stop].tobytes()
                for head, start, stop in zip(headers, bounds[:-1], bounds[1:], strict=True)
            )

    recording = _day()
    with MoldUdp64Server(_sink()[1], [recording], MoldOptions(linger=0.0, store=directory().name)) as server:
        server._paths.append(Kept(_sink()[1], 1, None, Faults(), 1))
        Replay(recording, order="sent").run(VenuePlayer(server, [recording]))
    return found


def _plain() -> float:
    """Return thousand packets/s of `sendmmsg` with packets that exist already."""
    packets = _packets()
    data = numpy.frombuffer(b"".join(packets), numpy.uint8)
    sizes = numpy.array([len(packet) for packet in packets])
    gathered = Gathered(len(packets), 1)
    gathered.pieces[:, 0, 0], gathered.pieces[:, 0, 1] = data.ctypes.data + numpy.cumsum(sizes) - sizes, sizes
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect(_sink()[0].getsockname())
        started = time.perf_counter()
        done = 0
        while done < len(packets):
            sent, _ = send_gathered(made.fileno(), gathered.messages, done, min(1_024, len(packets) - done))
            expect("packets sent above 0", sent > 0, True)
            done += sent
        return done / (time.perf_counter() - started) / 1e3


@cache
def _capture() -> Path:
    """Return a capture of the packets."""
    path = Path(directory().name) / "venue.pcap"
    port = _sink()[1].port
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 1))
        for packet in _packets():
            udp = struct.pack(">HHHH", 40_000, port, 8 + len(packet), 0)
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28 + len(packet), 0, 0, 64, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
            size = _HEADERS_BYTES + len(packet)
            file.write(struct.pack("<IIII", 0, 0, size, size) + b"\0" * 12 + b"\x08\x00" + ip + udp + packet)
    return path


def _tcpreplay(program: str) -> float:
    command = [program, "-i", "lo", "--topspeed", "--preload-pcap", str(_capture())]
    started = time.perf_counter()
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    (line,) = [line for line in ended.stdout.splitlines() if "Actual:" in line]
    expect("packets", int(line.split()[1]), len(_packets()))
    took = line.rsplit(" in ", 1)[1].split()[0]
    return len(_packets()) / min(seconds, float(took)) / 1e3


def test_venues(benchmark: BenchmarkFixture) -> None:
    """Thousand packets/s."""
    _serve()  # makes the recording
    contest = Contest("Packets of MoldUDP64, 1,400 bytes", "thousand packets/s", topology=__doc__)
    contest.add("the server, --speed max", _serve, promise="every packet is kept for requests")
    contest.add("sendmmsg, packets made before", _plain, "limit")
    program = shutil.which("tcpreplay")
    if program is None:
        contest.skip("tcpreplay", "tcpreplay is not installed")
    else:
        contest.add("tcpreplay --topspeed", lambda: _tcpreplay(program), "rival")
    contest.run(benchmark)
