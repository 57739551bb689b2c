"""Column `same` of a block: it joins the rows of a message that has several topics. Compiled.

Blocks are cut between messages, so that a reader finds all rows of a message in one block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from blackbox.native.memory.intrinsics import bytes_at, inner, int64s_at

if TYPE_CHECKING:
    from blackbox.block.form.encode import Rows


@inner
def _back(rows: Rows, row: int) -> Any:
    return numpy.int64(bytes_at(rows.same + row, 1)[0])


@inner
def _first_of(rows: Rows, row: int) -> Any:
    """Return the first row or sequence of a row's message."""
    return (int64s_at(rows.sequences + 8 * row, 1)[0] if rows.sequences != 0 else row) - _back(rows, row)


@inner
def continues(rows: Rows, order: NDArray[numpy.int32], at: int) -> bool:
    """Return True if a row is of the same message as the one before it."""
    row, before = numpy.int64(order[at]), numpy.int64(order[at - 1])
    return _back(rows, row) > 0 and _first_of(rows, row) == _first_of(rows, before)


@inner
def whole_messages(rows: Rows, order: NDArray[numpy.int32], start: int, at: int, stop: int) -> int:
    """Return the end of a block that would end before `at`, so that no message is cut."""
    end = at
    while end > start and end < stop and continues(rows, order, end):
        end -= 1
    if end == start:  # one message alone is larger than a block
        end = at
        while end < stop and continues(rows, order, end):
            end += 1
    return end


@inner
def has_same(rows: Rows, order: NDArray[numpy.int32], start: int, stop: int) -> bool:
    """Return True if some rows would not be 0 in the column `same`."""
    found = rows.sequences != 0 and _back(rows, numpy.int64(order[start])) > 0
    for at in range(start + 1, stop):
        found |= _back(rows, numpy.int64(order[at])) > 0 if rows.sequences != 0 else continues(rows, order, at)
    return found


@inner
def write_same(target: int, rows: Rows, order: NDArray[numpy.int32], start: int, stop: int) -> None:
    """Write the column `same` of rows `[start, stop)` of the order."""
    same = bytes_at(target, stop - start)
    for i in range(stop - start):
        if rows.sequences != 0:
            same[i] = _back(rows, numpy.int64(order[start + i]))
        else:  # rows between them may be in other blocks
            same[i] = same[i - 1] + 1 if i > 0 and continues(rows, order, start + i) else 0
