"""Compress and decompress the bodies of real blocks: ratio and speed.

ITCH 5.0 ==source==> blocks of 256 KiB ==pack==> stored ==unpack==> body      rival: no compression, a copy
IEX DEEP                               one thread, one body at a time          report: MB/s of bodies, ratio
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import lz4.block
import pytest
import zstandard
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.measure.results import Kind
from bench.workload.captures import CAPTURES, DATA, source_of
from blackbox.block.form.block import Block
from blackbox.block.form.rows import PayloadColumns

BLOCK_BYTES = 256 << 10
LEAST_S = 0.05
"""Minimum time of a measurement; the captures are small and read repeatedly."""


class Codec(NamedTuple):
    """Compression and decompression with one algorithm."""

    pack: Callable[[bytes], bytes]
    unpack: Callable[[bytes, int], bytes]


PACKS = {level: zstandard.ZstdCompressor(level=level) for level in (1, 3)}
UNPACKS = zstandard.ZstdDecompressor()
COPY = "none (a copy)"
CODECS = {
    COPY: Codec(lambda body: bytes(bytearray(body)), lambda stored, size: bytes(bytearray(stored))),
    "lz4": Codec(
        lambda body: lz4.block.compress(body, store_size=False),
        lambda stored, size: lz4.block.decompress(stored, uncompressed_size=size),
    ),
    "zstd level 1": Codec(
        PACKS[1].compress,
        lambda stored, size: UNPACKS.decompress(stored, max_output_size=size),
    ),
    "zstd level 3": Codec(
        PACKS[3].compress,
        lambda stored, size: UNPACKS.decompress(stored, max_output_size=size),
    ),
}


@cache
def bodies_of(name: str) -> list[bytes]:
    """Return the messages of a capture as block bodies, as large as those of a burst."""
    found: list[bytes] = []
    for chunk in source_of(name).chunks():
        step = max(1, BLOCK_BYTES // (int(chunk.lengths.mean()) + 20))
        for start in range(0, len(chunk.starts), step):
            part = slice(start, start + step)
            block = Block.encode(
                chunk.topics,
                chunk.topic_index[part],
                PayloadColumns(
                    chunk.payloads,
                    ts_event=chunk.ts_event[part],
                    offsets=chunk.starts[part],
                    lengths=chunk.lengths[part],
                ),
            )
            found.append(block.body.tobytes())
    return found


def _packed_rate(codec: Codec, bodies: list[bytes]) -> float:
    """Return MB/s of bodies compressed."""
    done = 0
    started = time.perf_counter()
    while (seconds := time.perf_counter() - started) < LEAST_S:
        for body in bodies:
            codec.pack(body)
            done += len(body)
    return done / seconds / 1e6


def _unpacked_rate(codec: Codec, bodies: list[bytes]) -> float:
    """Return MB/s of bodies decompressed; they must equal the originals."""
    stored = [(codec.pack(body), len(body)) for body in bodies]
    expect("decompressed bodies equal the originals", [codec.unpack(*each) for each in stored] == bodies, True)
    done = 0
    started = time.perf_counter()
    while (seconds := time.perf_counter() - started) < LEAST_S:
        for each in stored:
            codec.unpack(*each)
            done += each[1]
    return done / seconds / 1e6


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("way", ["pack", "unpack"])
def test_compression(benchmark: BenchmarkFixture, name: str, way: str) -> None:
    """MB/s of uncompressed bodies, and the compression ratio."""
    if not DATA.is_dir():
        pytest.skip(f"no real captures at {DATA}")
    bodies = bodies_of(name)
    size = sum(map(len, bodies))
    measure = _packed_rate if way == "pack" else _unpacked_rate
    contest = Contest(
        f"{name}: {way} {len(bodies)} bodies of {size / len(bodies) / 1024:.0f} KiB", "MB/s", topology=__doc__
    )
    for title, codec in CODECS.items():
        kind: Kind = "limit" if title == COPY else "ours"
        contest.add(title, partial(measure, codec, bodies), kind)
    contest.run(benchmark)
    for title, codec in CODECS.items():
        contest.show(f"{title}: compression ratio", f"{size / sum(len(codec.pack(body)) for body in bodies):10.2f}")
