"""The cost of encryption: blocks over CURVE compared with the same blocks in plain text, by block size.

    plain     PUB process ==blocks, TCP==> SUB process
    CURVE     PUB process ==blocks, each frame encrypted (libsodium)==> SUB process

Both over TCP loopback, both with a publisher that waits, each message checked and counted by a compiled callback. The
sender's libzmq I/O thread encrypts and the receiver's decrypts, so the busier of the two threads sets the ratio. The
title says if libzmq uses TweetNaCl, which is slower than libsodium.
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
from blackbox.transport.security.curve import is_fast, make_pair

MESSAGES = 1_000_000
HWM_BLOCKS = 8
BLOCK_BYTES = (4_096, 16_384, 65_536, 262_144, 1_048_576)


def _security(directory: Path) -> Security:
    """Return one key pair for both ends, which authorizes itself."""
    _, public, secret = make_pair(directory, "both")
    (directory / "allowed").mkdir()
    shutil.copy(public, directory / "allowed")
    return Security(key=str(secret), server_keys=(str(public),), allowed_keys=str(directory / "allowed"))


def _feed(name: str, block_bytes: int, security: Security | None) -> Feed:
    feed = Feed.local(f"{name}-{block_bytes}", slices=1)
    return msgspec.structs.replace(feed, block_bytes=block_bytes, security=security)


def test_curve(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """M messages/s of 100 bytes by block size, counted by a compiled callback."""
    kind = "libsodium" if is_fast() else "TweetNaCl, slow"
    contest = Contest(f"Encrypted ({kind}) and plain", "M messages/s", topology=__doc__, axis="bytes of a block")
    ways = {"plain": None, "CURVE": _security(tmp_path)}
    feeds = {(name, size): _feed(name, size, its) for size in BLOCK_BYTES for name, its in ways.items()}
    with Pair.ours(*feeds.values(), when_full="wait", hwm_blocks=HWM_BLOCKS) as pair:
        for (name, size), feed in feeds.items():
            load = Load(feed=feed, messages=MESSAGES)
            contest.add(name, partial(pair.round, load, Work(form="compiled")), promise=WAITS, at=size)
        contest.run(benchmark)
        for size in BLOCK_BYTES:
            contest.show(f"CURVE / plain, {size:,} bytes", f"{contest.ratio('CURVE', 'plain', size):.2f} x")
