"""A compiled callback shared by several tests, so that a process compiles it once."""

from __future__ import annotations

from typing import Any


def count_rows(batch: Any, state: Any) -> None:
    state[0] += len(batch.rows)
