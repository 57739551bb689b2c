"""The golden files: blocks of every kind and a recording, from the slow writers of `tests.wire` and `tests.journals`.

`make layout` writes the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from blackbox.feed.schema.schema import load_schema
from tests import wire
from tests.journals import Day, Put, Row, Told, feed_of

TESTS = Path(__file__).parent
BLOCKS = TESTS / "block" / "golden"
RECORDING = TESTS / "archive" / "golden_recording"
NOW = 1_700_000_000_123_456_789
"""An arbitrary time, ns since 1970."""
RUN = 1_699_999_999_000_000_000
"""Epoch of the publisher, ns since 1970."""


class Frames(NamedTuple):
    """The frames of a block."""

    key: bytes
    header: bytes
    body: bytes

    @property
    def text(self) -> str:
        """Return the contents of the block's golden file."""
        return "".join(f"{name}: {frame.hex()}\n" for name, frame in self._asdict().items())


def _data(rows: Sequence[tuple[bytes, bytes | None, int]], key: bytes = b"", **fields: Any) -> Frames:
    return Frames(key, *wire.data(rows, **{"key_rule": len(key), **fields}))


def _control(key: bytes, ends: Mapping[bytes, int | tuple[int, int]], flags: int = 0, **fields: Any) -> Frames:
    return Frames(key, *wire.control(ends, flags, **fields))


def _trades(payloads: list[bytes | None], sequences: list[int] | None = None, same: list[int] | None = None) -> Frames:
    topics = b"AAPL.quote", b"AAPL.trade", b"AAPL.quote"
    at = 1_700_000_000_000_000_000
    rows = [(topics[i], payload, at + i) for i, payload in enumerate(payloads)]
    numbers = {"sequences": sequences, "same": same, "sequence": 7}
    return _data(rows, b"AA", slice_id=3, epoch=RUN, ts_out=at + 1_000, ts_in=at + 500, **numbers)


def blocks() -> dict[str, Frames]:
    """Return one block of every kind by its name."""
    return {
        "confirmation": _control(b"\0Cnonce678", {b"": 3}, epoch=9, ts_out=NOW, key_rule=2),
        "heartbeat": _control(
            b"\0H",
            {b"AAPL": (44, 37), b"MSFT": (7, 7), b"X": (1 << 62, 3)},
            slice_id=1,
            epoch=9,
            ts_out=NOW,
            key_rule=2,
        ),
        "last_heartbeat_of_line_b_without_keys": _control(
            b"\0H", {}, wire.LINE_B | wire.END, slice_id=1, epoch=9, ts_out=NOW
        ),
        "empty_payloads": _data(
            [(b"A", b"", 1), (b"B", b"", 2), (b"A", b"", 3)],
            epoch=7,
            sequence=5,
            ts_out=NOW,
            ts_in=NOW - 1_000,
        ),
        "messages_without_a_value": _trades([b"12.5", None, b""]),
        "sequences_of_their_own": _trades([b"12.5", b"12.6", b"12.7"], [7, 9, 10]),
        "several_topics": _trades([b"12.5", b"12.6", b"12.6"], None, [0, 0, 1]),
        "several_topics_and_sequences_of_their_own": _trades([b"12.6", None, b"12.8"], [7, 10, 13], [1, 0, 3]),
        "one_message_without_checksum": _data(
            [(b"T", b"payload", 0)],
            flags=0,
            schema=65_535,
            slice_id=65_535,
            epoch=(1 << 63) - 1,
            body_checksum=0,
        ),
        "payloads_of_any_size": _data(
            [
                (b"AAPL.trade", b"12.50", NOW),
                (b"MSFT.quote", b"", NOW + 1),
                (b"AAPL.trade", b"x" * 17, 0),
                (b"\xff\0", b"\0\xff", -5),
            ],
            schema=1,
            slice_id=3,
            epoch=0x7EDCBA9876543210,
            sequence=41,
            previous=33,
            key_sequence=21,
            ts_out=NOW + 1_000,
            ts_in=NOW,
        ),
        "payloads_of_one_size": _data(
            [
                (b"AAPL.A", bytes(range(8)), NOW),
                (b"AAPL.E", bytes(range(8, 16)), NOW + 1),
                (b"AAPL.A", bytes(range(16, 24)), NOW + 2),
            ],
            b"AAPL",
            flags=wire.CHECKSUM | wire.LINE_B,
            epoch=1,
            sequence=1 << 61,
            ts_out=NOW,
            ts_in=NOW - 1_000,
        ),
    }


def example() -> Frames:
    """Return the data block of `docs/wire-format.md`."""
    at = 1_700_000_000_000_000_000
    rows = [(b"AAPL.trade", b"12.50", at + 1), (b"MSFT.trade", b"40.1", at + 2), (b"AAPL.trade", b"12.51", at + 3)]
    return _data(rows, slice_id=1, epoch=RUN, sequence=41, ts_out=at + 500_000, ts_in=at + 400_000)


def write_recording(path: Path) -> list[Told]:
    """Write the golden recording of two slices; return its messages in the order of reading."""
    day = Day(path, feed_of(2, key_bytes=2, time_zone="America/New_York"))
    slices = [{"endpoints": [f"inproc://recorded-{n}"], "prefixes": [prefix]} for n, prefix in enumerate("AB")]
    settings = {"name": "recorded", "schema": "raw", "key_bytes": 2, "slices": slices, "time_zone": "America/New_York"}
    day.write_manifest(load_schema("raw"), settings)
    at = 1_795_271_400 * 10**9
    rows = tuple(Row(b"AB.trade" if i % 2 else b"AB.quote", b"%d" % (i * i), at + i) for i in range(6))
    fixed = tuple(Row(b"BCD", b"%04d" % i, 0) for i in range(4))
    first = day.put(0, *(Put(rows, 6 * i, at + 10 * i, at + 10 * i + 3, codec=i % 3) for i in range(4)))
    first.close()
    first.write_index()
    day.put(0, Put(rows, 24, at + 41, at + 44, first_row=4), Put(rows, 0, at + 50, at + 51, epoch=2), index=False)
    day.put(1, *(Put(fixed, 4 * i, at + 15 * i, at + 15 * i + 2, flags=wire.LINE_B) for i in range(3)))
    return day.told()
