"""Compress and decompress the bodies of real blocks: ratio and speed.

ITCH 5.0 ==source==> blocks of 256 KiB ==pack==> stored ==unpack==> body
IEX DEEP                               one thread, one body at a time          report: MB/s of bodies, ratio
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

import lz4.block
import pytest
import zstandard
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.workload.captures import CAPTURES, DATA, source_of
from blackbox.block.form.block import Block
from blackbox.block.form.rows import PayloadColumns

BLOCK_BYTES: Final = 256 << 10
LEAST_S: Final = 0.05
"""Minimum time of a measurement; the captures are small and read repeatedly."""
PACKS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "lz4": partial(lz4.block.compress, store_size=False),
    "zstd level 1": zstandard.ZstdCompressor(level=1).compress,
    "zstd level 3": zstandard.ZstdCompressor(level=3).compress,
}
_UNZSTD: Final = zstandard.ZstdDecompressor()


def _unpack(name: str, stored: bytes, size: int) -> bytes:
    if name == "lz4":
        body: bytes = lz4.block.decompress(stored, uncompressed_size=size)
        return body
    return _UNZSTD.decompress(stored, max_output_size=size)


@cache
def bodies_of(capture: str) -> list[bytes]:
    """Return the messages of a capture as block bodies, as large as those of a burst."""
    found: list[bytes] = []
    for chunk in source_of(capture).chunks():
        step = max(1, BLOCK_BYTES // (int(chunk.lengths.mean()) + 20))
        for start in range(0, len(chunk.starts), step):
            part = slice(start, start + step)
            columns = PayloadColumns(
                chunk.payloads, ts_event=chunk.ts_event[part], offsets=chunk.starts[part], lengths=chunk.lengths[part]
            )
            found.append(Block.encode(chunk.topics, chunk.topic_index[part], columns).body.tobytes())
    return found


def _rate(name: str, bodies: list[bytes], way: str) -> float:
    """Return MB/s of uncompressed bodies; unpacked ones must equal the originals."""
    stored = [(PACKS[name](body), len(body)) for body in bodies]
    expect("unpacked bodies equal the originals", [_unpack(name, *each) for each in stored] == bodies, True)
    call: Callable[..., Any] = PACKS[name] if way == "pack" else partial(_unpack, name)
    arguments: list[Any] = [(body,) for body in bodies] if way == "pack" else stored
    done, started = 0, time.perf_counter()
    while (seconds := time.perf_counter() - started) < LEAST_S:
        for each in arguments:
            call(*each)
        done += sum(map(len, bodies))
    return done / seconds / 1e6


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("way", ["pack", "unpack"])
def test_compression(benchmark: BenchmarkFixture, capture: str, way: str) -> None:
    """MB/s of uncompressed bodies, and the compression ratio."""
    if not DATA.is_dir():
        pytest.skip(f"no real captures at {DATA}")
    bodies = bodies_of(capture)
    size = sum(map(len, bodies))
    title = f"{capture}: {way} {len(bodies)} bodies of {size / len(bodies) / 1024:.0f} KiB"
    contest = Contest(title, "MB/s", topology=__doc__)
    for name in PACKS:
        contest.add(name, partial(_rate, name, bodies, way))
    contest.run(benchmark)
    for name, pack in PACKS.items():
        contest.show(f"{name}: compression ratio", f"{size / sum(len(pack(body)) for body in bodies):10.2f}")
