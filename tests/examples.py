"""How many examples hypothesis tries: a part of them in `make test`, which is to be quick, all in `make test-long`."""

from __future__ import annotations

import os
from typing import Final

_PART: Final = 1 if os.environ.get("BLACKBOX_ALL_EXAMPLES") else 8


def examples(count: int) -> int:
    """Return how many of `count` examples are to be tried."""
    return -(-count // _PART)
