"""Synthetic recordings of random blocks with known messages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.journals import Day, Put, Row, feed_of

BEGIN = 1_700_000_000_000_000_000
SECOND = 10**9


def puts_of(choice: random.Random, letter: str, blocks: int, sizes: list[int], codecs: list[int]) -> Iterator[Put]:
    """Yield blocks of one slice, one second apart."""
    sequence = 0
    for number in range(blocks):
        count = choice.choice(sizes)
        long = [choice.randrange(40) for _ in range(count)] if number % 2 else [choice.choice([0, 9])] * count
        rows = tuple(
            Row(
                b"%s%d.%s" % (letter.encode(), choice.randrange(60), choice.choice([b"trade", b"quote"])),
                choice.randbytes(long[i]),
                choice.choice([0, BEGIN + number * SECOND + i]),
            )
            for i in range(count)
        )
        yield Put(
            rows,
            sequence=sequence,
            ts_out=BEGIN + number * SECOND,
            ts_recv=BEGIN + number * SECOND + 1_234_567,
            epoch=choice.choice([3, (1 << 62) + 5]),
            first_row=choice.choice([0, 0, count // 2]),
            codec=choice.choice(codecs),
            flags=choice.choice([0, 1]),
        )
        sequence += count


def make_day(
    path: Path,
    seed: int = 1,
    slices: int = 2,
    key_bytes: int = 1,
    blocks: int = 20,
    sizes: tuple[int, ...] = (1, 5, 300, 700),
    codecs: tuple[int, ...] = (0, 1, 2),
    **settings: Any,
) -> Day:
    choice = random.Random(seed)
    day = Day(path, feed_of(slices, key_bytes), **settings)
    for slice_id in range(slices):
        puts = list(puts_of(choice, chr(65 + slice_id), blocks, list(sizes), list(codecs)))
        day.put(slice_id, *puts[: blocks // 2])
        day.put(slice_id, *puts[blocks // 2 :])
    return day
