"""What encryption costs: blocks through CURVE beside the same blocks in the clear, by the size of a block.

    plain     PUB process ==blocks, TCP==> SUB process
    CURVE     PUB process ==the same, each frame encrypted (libsodium)==> SUB process

Both over TCP loopback, both waiting for who is slow, each message checked and counted by a compiled callback. Frames
are encrypted by libzmq's I/O thread of the sender and decrypted by that of the receiver, so the ratio is that of the
busiest of these two threads. With the slow kind of CURVE, without libsodium, the title says so.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import msgspec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import WAITS, Contest
from bench.processes.pair import Pair, Work
from bench.workload.load import Load
from blackbox import Feed
from blackbox.feed.security import Security
from blackbox.transport.curve import is_fast, make_pair

MESSAGES = 1_000_000
HWM_BLOCKS = 8
BLOCK_BYTES = (4_096, 16_384, 65_536, 262_144, 1_048_576)


def _security(directory: Path) -> Security:
    """One pair for both ends, which lets itself in."""
    _, public, secret = make_pair(directory, "both")
    (directory / "allowed").mkdir()
    shutil.copy(public, directory / "allowed")
    return Security(key=str(secret), server_keys=(str(public),), allowed_keys=str(directory / "allowed"))


def _feed(name: str, block_bytes: int, security: Security | None) -> Feed:
    feed = Feed.local(f"{name}-{block_bytes}", slices=1)
    return msgspec.structs.replace(feed, block_bytes=block_bytes, security=security)


def test_curve(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """M messages/s of 100 bytes in blocks of each size, counted by a compiled callback."""
    kind = "libsodium" if is_fast() else "TweetNaCl, the slow kind"
    contest = Contest(f"Encrypted ({kind}) beside plain", "M messages/s", topology=__doc__, axis="bytes of a block")
    ways = {"plain": None, "CURVE": _security(tmp_path)}
    feeds = {(name, size): _feed(name, size, its) for size in BLOCK_BYTES for name, its in ways.items()}
    with Pair.ours(*feeds.values(), when_full="wait", hwm_blocks=HWM_BLOCKS) as pair:
        for (name, size), feed in feeds.items():
            load = Load(feed=feed, messages=MESSAGES)
            contest.add(name, partial(pair.round, load, Work(form="compiled")), promise=WAITS, at=size)
        contest.run(benchmark)
        for size in BLOCK_BYTES:
            contest.show(f"CURVE beside plain, {size:,} bytes", f"{contest.ratio('CURVE', 'plain', size):.2f} x")
