"""Run damaged input through the decoders in memory that ends at an inaccessible page.

    python -m tests.feeds.guarded

A compiled decoder that reads past the end of its input kills this process.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import blackbox_feeds.binance.source
import blackbox_feeds.dbn.source
import blackbox_feeds.iex.source
import blackbox_feeds.itch50.source
import blackbox_feeds.tape.files
import databento_dbn
import numpy
from blackbox_feeds.binance import Binance
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.dbn.records import lengths_of
from blackbox_feeds.iex import Iex
from blackbox_feeds.io.window import FileWindow
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.tape import Tape

from blackbox.errors import SourceError
from tests.examples import examples
from tests.feeds.build import (
    IEX_LENGTHS,
    ITCH_LENGTHS,
    ethernet,
    framed,
    iex,
    iex_tp,
    itch,
    mold,
    pcap,
    pcapng,
)

PAGE = mmap.PAGESIZE
FRAMES = b'1723161254087896568 {"stream":"btcusdt@trade","data":{"e":"t","E":1723161255343,"b":[["1","2"]]}}\n' * 12
RECORDS = lengths_of(1).items()
STYPE: Any = databento_dbn.SType.INSTRUMENT_ID
METADATA = databento_dbn.Metadata("X", 5, None, STYPE, None, version=1).encode()
NO_ACCESS = 0
CUTS = examples(240)


class GuardedWindow(FileWindow):
    """A whole file in memory, with its last byte just before a page without access."""

    made = 0

    def __init__(self, path: str | Path, window_bytes: int = 0, *, expected: str = "") -> None:
        GuardedWindow.made += 1
        content = Path(path).read_bytes()
        self.path = str(path)
        self.start = 0
        self.last = True
        pages = -(-len(content) // PAGE)
        self._memory = mmap.mmap(-1, (pages + 1) * PAGE)
        whole = numpy.frombuffer(self._memory, numpy.uint8)
        address = whole.ctypes.data + pages * PAGE
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), NO_ACCESS) != 0:
            raise OSError(ctypes.get_errno(), "mprotect failed")
        self.data = whole[pages * PAGE - len(content) : pages * PAGE]
        self.data[:] = numpy.frombuffer(content, numpy.uint8)
        self.data.flags.writeable = False

    def slide(self, consumed: int) -> None:
        raise AssertionError(f"slid by {consumed}, but all of it is in view")

    def close(self) -> None:
        pass


def damaged(content: bytes) -> Iterator[bytes]:
    """Yield the input cut at many places, and with flipped bits."""
    chance = random.Random(9)
    for _ in range(CUTS):
        yield content[: chance.randrange(4, len(content) + 1)]
    for _ in range(2 * CUTS):
        flipped = bytearray(content)
        for _ in range(chance.choice([1, 2, 5])):
            bit = chance.randrange(32, 8 * len(content))
            flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped[: chance.randrange(4, len(content) + 1)] if bit % 2 else flipped)


def main() -> None:
    for module in (
        blackbox_feeds.binance.source,
        blackbox_feeds.dbn.source,
        blackbox_feeds.iex.source,
        blackbox_feeds.itch50.source,
        blackbox_feeds.tape.files,
    ):
        module.open_window = GuardedWindow  # type: ignore[attr-defined]
    messages = [itch(kind, locate=k) for k, kind in enumerate(ITCH_LENGTHS)]
    molds = [ethernet(mold(1 + k, messages[k : k + 4])) for k in range(0, len(messages), 4)]
    iex_messages = [iex(kind) for kind in IEX_LENGTHS]
    iex_tps = [ethernet(iex_tp(1 + k, iex_messages[k : k + 3], k)) for k in range(0, 12, 3)]
    runs = [
        (Itch50, framed(messages), {"date": "2019-12-30"}),
        (Itch50, pcap(molds), {"date": "2019-12-30"}),
        (Itch50, pcapng(molds), {"date": "2019-12-30"}),
        (Iex, pcap(iex_tps), {}),
        (Iex, pcapng(iex_tps), {}),
        (Binance, FRAMES, {}),
        (Dbn, METADATA + b"".join(struct.pack("<BBHIQ", n // 4, k, 1, 7, 9).ljust(n) for k, n in RECORDS), {}),
        (Tape, b"34200000,139400,500,P,20002020,0\n" * 30, {}),
    ]
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bac_20131007_trade.csv"
        for kind, content, options in runs:
            for input_bytes in damaged(content):
                path.write_bytes(input_bytes)
                try:
                    for chunk in kind(path, **options).chunks():
                        ends = chunk.starts + chunk.lengths
                        assert 0 <= chunk.starts.min() <= ends.max() <= max(len(input_bytes), len(chunk.payloads))
                        count += len(chunk.starts)
                except SourceError:
                    continue
    assert GuardedWindow.made >= len(runs) * 3 * CUTS, GuardedWindow.made
    print(count)


if __name__ == "__main__":
    main()
