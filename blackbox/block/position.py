"""How far a reader is in one slice and key: the message that comes next."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Position(NamedTuple):
    """How far a slice is with a key: what comes next. Stored and sent as [epoch, sequence]."""

    epoch: Number
    """The run of its publisher."""
    sequence: Number
    """The number of the next message."""
