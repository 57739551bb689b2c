"""Lines of text files: skip the text between them, compiled; skip damage, and report losses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox_feeds.io.losses import Losses
from blackbox_feeds.io.window import FileWindow

LINES, EMPTY, BAD, IS_SKIPPING, OWN = range(5)
"""Indices in a reader's state: counts of lines, of empty and of bad lines; 1 while the rest of a skipped line is
expected. The reader's own indices begin at `OWN`."""

_CR, _LF = b"\r\n"
_BOM_0, _BOM_1, _BOM_2 = b"\xef\xbb\xbf"


@njit(nogil=True, cache=True)
def next_line(data: NDArray[numpy.uint8], at: int) -> int:
    """Return where the line after the one at `at` starts, or -1 if no line feed is in view."""
    while at < len(data):
        if data[at] == _LF:
            return at + 1
        at += 1
    return -1


@njit(nogil=True, cache=True)
def skip_line(data: NDArray[numpy.uint8], at: int, state: NDArray[numpy.int64]) -> int:
    """Skip the line at `at`, or its visible part. Return the end."""
    behind = next_line(data, at)
    state[IS_SKIPPING] = behind < 0
    return len(data) if behind < 0 else behind


@njit(nogil=True, cache=True)
def skip_filler(data: NDArray[numpy.uint8], at: int, state: NDArray[numpy.int64]) -> int:
    """Skip the rest of a skipped line, a byte order mark or an empty line. Return the end.

    Returns `at` if there is none of them.
    """
    end = len(data)
    if state[IS_SKIPPING]:
        behind: int = skip_line(data, at, state)
        return behind
    if data[at] == _LF or (data[at] == _CR and at + 1 < end and data[at + 1] == _LF):
        state[EMPTY] += 1
        state[LINES] += 1
        return at + (1 if data[at] == _LF else 2)
    if data[at] == _BOM_0 and at + 2 < end and data[at + 1] == _BOM_1 and data[at + 2] == _BOM_2:
        return at + 3
    return at


@njit(nogil=True, cache=True)
def is_cut_filler(data: NDArray[numpy.uint8], at: int) -> bool:
    """Return True if the data ends within what may be a byte order mark or the end of an empty line."""
    left = len(data) - at
    if data[at] == _BOM_0:
        return left == 1 or (left == 2 and data[at + 1] == _BOM_1)
    return bool(left == 1 and data[at] == _CR)


def goes_on_after(window: FileWindow, position: int, noun: str, ends: Losses) -> bool:
    """Skip damage at the end of a window's data, if there is any; return True if more data follows.

    `position`: where reading stopped. The loss is added to `ends`; `noun` is the name of a line.
    """
    end = window.ending(position, noun)
    if end is None:
        return False
    goes_on = window.skip_damage()
    ends.name(f"{end}; {goes_on}, with the next whole {noun}" if goes_on else end)
    ends.count += 1
    return goes_on is not None


def losses(file: object, noun: str, good: int, bad: Losses, ends: Losses) -> Iterator[str]:
    """Describe a file's losses, one sentence each: bad lines, damaged places. `noun` is the name of its lines."""
    if bad.count and good:
        yield f"{file}: {bad.count:,} of {good + bad.count:,} {noun} were bad and left out: {bad}"
    elif bad.count:
        yield f"{file}: none of its {bad.count:,} {noun} is valid: {bad.first}"
    if ends.count:
        yield str(ends)
