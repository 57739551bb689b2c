"""Keep `make test` fast: most hypothesis examples and the less important parameters run in `make test-long`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import pytest

EXPLORES: Final = bool(os.environ.get("BLACKBOX_ALL_EXAMPLES"))
"""True in `make test-long`: all examples, and other ones each time."""


def examples(count: int) -> int:
    """Return the number of examples to run of `count`."""
    return count if EXPLORES else -(-count // 8)


def first_of(values: Iterable[Any], keep: int = 1) -> list[Any]:
    """Return `values` as parameters of a test, all but the first `keep` of them marked `long`.

    A tuple has the values of several arguments.
    """
    rows = [each if isinstance(each, tuple) else (each,) for each in values]
    return [pytest.param(*row, marks=() if number < keep else pytest.mark.long) for number, row in enumerate(rows)]
