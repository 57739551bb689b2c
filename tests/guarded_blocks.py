"""Validate damaged blocks placed right before a protected page, and read those that pass.

    python -m tests.guarded_blocks SEED COUNT

Compiled code that reads past the end of a frame kills this process. Prints the numbers of valid and invalid blocks.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy
from numpy.typing import NDArray

from blackbox.block.form.block import Block
from blackbox.block.form.validate import RULE_OF_HEADER, check_block
from tests import wire
from tests.damage import cases

PAGE = mmap.PAGESIZE
NO_ACCESS = 0


class Guarded:
    """Two pages, the second without access; `put` places bytes right before it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 2 * PAGE)
        self._bytes = numpy.frombuffer(self._memory, numpy.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        second = ctypes.c_void_p(self._bytes.ctypes.data + PAGE)
        if libc.mprotect(second, ctypes.c_size_t(PAGE), NO_ACCESS) != 0:
            raise OSError(ctypes.get_errno(), "mprotect failed")

    def put(self, data: bytes, align: int) -> NDArray[numpy.uint8]:
        """Place the data as close to the guard page as the alignment allows and return it."""
        start = (PAGE - len(data)) // align * align
        target = self._bytes[start : start + len(data)]
        target[:] = numpy.frombuffer(data, numpy.uint8)
        return target


def touch(block: Block) -> None:
    """Read all views of a block."""
    total = int(block.ts_event.sum()) + int(block.topic_index.sum()) + len(block.topics)
    total += int(block.payload_offsets.sum()) + int(block.payloads.sum()) + len(block.topic_text.tobytes())
    assert sum(len(block.payload(row) or b"") for row in range(block.count)) == block.payloads.nbytes
    total += int(block.sequences.sum()) + int(block.valid.sum())
    total += 0 if block.same is None else int(block.same.sum())
    if block.flags & wire.CONTROL:
        block.ends()


def main(seed: int, count: int) -> None:
    keys, headers, bodies = Guarded(), Guarded(), Guarded()
    passed = refused = 0
    for key, header, body in cases(seed, count):
        name, head, data = keys.put(key, 1), headers.put(header, 8), bodies.put(body, 8)
        places = [place for frame in (head, data, name) for place in (frame.ctypes.data, len(frame))]
        fault = check_block(*places, RULE_OF_HEADER)
        assert (fault == 0) == wire.is_valid(key, header, body), (fault, key, header, body)
        if fault == 0:
            touch(Block(key, header, data))
            passed += 1
        else:
            refused += 1
    print(passed, refused)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
