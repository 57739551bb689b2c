"""A site reached through `ssh -C`: throughput, bytes on the link and the CPU time of ssh, with real messages.

    direct     HubClient ==puts==> hub "ldn" ==========================> hub "ams" ==> SUB, this process
    ssh -C     HubClient ==puts==> hub "ldn" ==> sshd ==compressed==> ssh ==> hub "ams" ==> SUB, this process

All over TCP loopback on the same two cores; there is no slow link between the sites. A client puts 100 messages of ITCH
at a time, each call a block. `direct` counts the bytes of bodies and headers, ssh those of its TCP connection in both
directions.
"""

from __future__ import annotations

import statistics
import time
import zlib
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.processes.child import Child
from bench.processes.receiver import wait_for
from bench.processes.ssh_tunnel import SshTunnel
from bench.rivals.rival import tcp
from bench.rivals.servers import Missing
from bench.workload.captures import CAPTURES, DATA, calls_of
from blackbox import Batch, Feed, Subscriber

CAPTURE: Final = CAPTURES[0]
MESSAGES: Final = 10_000
AT_ONCE: Final = 100
SERVE: Final = "bench.processes.hub:serve"


class _Way:
    """A hub "ams" connected to hub "ldn" in one way, and its measurements by round, the warm-up first."""

    def __init__(self, stack: ExitStack, directory: Path, ldn: Feed, tunnel: SshTunnel | None = None) -> None:
        self._tunnel = tunnel
        there = ldn
        if tunnel is not None:
            tunnel.start()
            there = tunnel.feed
        self._here = msgspec.structs.replace(there, slices=Feed.local("ldn", slices=1).slices)
        ams = msgspec.structs.replace(Feed.local("ams", slices=1), archives=(tcp(),), hub=tcp())
        peers = [(there, self._here)]
        self._hub = stack.enter_context(Child(SERVE, feed=ams, directory=str(directory), peers=peers))
        self.crossed: list[float] = []
        """Bytes on the link per message."""
        self.cpu_us: list[float] = []
        """CPU time of ssh and sshd per message."""

    def round(self, putter: Child) -> float:
        """Return thousand messages/s from the first put until all have arrived. Raises Lost."""
        calls = calls_of(CAPTURE, MESSAGES, AT_ONCE)
        subscriber, so_far = Subscriber(self._here), 0

        @subscriber.on_batch(b"")
        def take(batch: Batch) -> None:
            nonlocal so_far
            so_far = zlib.crc32(b"".join(batch.payload_list()), so_far)

        with subscriber:
            before, cpu_s = self._told(), self._cpu_s()
            putter.send({"capture": CAPTURE, "messages": MESSAGES, "at_once": AT_ONCE})
            wait_for(subscriber, MESSAGES)
            ended, cpu_s, after = time.time_ns(), self._cpu_s() - cpu_s, self._told()
            began = int(putter.answer()["began"])
        expect("checksum of the payloads", so_far, zlib.crc32(b"".join(call.payloads for call in calls)))
        expect("gaps", subscriber.statistics().received.gaps, 0)
        expect("too few blocks", after["blocks"] - before["blocks"] < 0.9 * len(calls), False)  # a busy hub merges some
        self.crossed.append((after["crossed"] - before["crossed"]) / MESSAGES)
        self.cpu_us.append(cpu_s / MESSAGES * 1e6)
        return MESSAGES * 1e6 / (ended - began)

    def _told(self) -> dict[str, int]:
        """Return the number of blocks and bytes so far."""
        told = self._hub.ask({})
        return {"blocks": told["blocks"], "crossed": self._tunnel.crossed() if self._tunnel else told["bytes"]}

    def _cpu_s(self) -> float:
        return self._tunnel.cpu_s() if self._tunnel else 0.0


def test_compressed_sites(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Thousand messages/s of a site reached directly, through ssh and through `ssh -C`."""
    if not DATA.is_dir():
        pytest.skip(f"no real captures at {DATA}")
    contest = Contest(f"{CAPTURE}, another site, blocks of {AT_ONCE}", "1,000 messages/s", topology=__doc__)
    ldn = msgspec.structs.replace(Feed.local("ldn", slices=1), archives=(tcp(),), hub=tcp())
    with ExitStack() as stack:
        try:
            tunnels = {
                name: stack.enter_context(SshTunnel(ldn, *options))
                for name, options in (("ssh", ()), ("ssh -C", ("-C",)))
            }
        except Missing as why:
            pytest.skip(str(why))
        stack.enter_context(Child(SERVE, feed=ldn, directory=str(tmp_path / "ldn")))
        putter = stack.enter_context(Child("bench.processes.hub:put_captured", feed=ldn))
        ways = {"direct": _Way(stack, tmp_path / "direct", ldn)}
        ways |= {name: _Way(stack, tmp_path / name, ldn, tunnel) for name, tunnel in tunnels.items()}
        for name, way in ways.items():
            contest.add(name, partial(way.round, putter))
        contest.run(benchmark)
        for name, way in ways.items():
            contest.show(f"{name}: bytes on the link per message", f"{statistics.median(way.crossed[1:]):.1f}")
            contest.show(f"{name}: CPU of ssh and sshd per message", f"{statistics.median(way.cpu_us[1:]):.2f} µs")
