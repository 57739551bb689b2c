"""What a recorder knows of the keys that a control block counts."""

from __future__ import annotations

import numpy
from numba import njit

from blackbox.archive.key_positions import Keys, total_of
from blackbox.block.block import Block
from blackbox.native.name_table import FULL


@njit
def _total_of(keys, header, body):  # type: ignore[no-untyped-def]
    return total_of(keys, header, body)


def total(keys: Keys, numbers: dict[bytes, int]) -> tuple[int, int]:
    block = Block.encode_sequences(b"\0H", numbers, slice_id=0, epoch=1, ts_out=1, key_bytes=1)
    header, body = (numpy.frombuffer(part, numpy.uint8) for part in (block.header, block.body))
    found: tuple[int, int] = _total_of(keys.at, header.ctypes.data, body.ctypes.data)
    return found


def test_a_key_that_has_no_room_tells_whatever_comes_behind_it() -> None:
    keys = Keys(most=4)
    four = {b"A": 1, b"B": 2, b"C": 3, b"D": 4}
    assert total(keys, four) == (10, 3), "the last of those that lack some"
    assert total(keys, four | {b"E": 5})[1] == FULL
    assert total(keys, {b"E": 5} | four)[1] == FULL
