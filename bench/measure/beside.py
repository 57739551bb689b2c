"""Latency of a live subscriber while something else runs."""

from __future__ import annotations

from collections.abc import Callable

from bench.measure.contest import Contest, expect
from bench.processes.child import Child


def late_beside(contest: Contest, name: str, listener: Child, meanwhile: Callable[[], object]) -> float:
    """Return the p99 latency at `listener` while `meanwhile` ran, in µs; keep all its percentiles."""
    listener.ask({})
    meanwhile()
    told = listener.ask({})
    expect("messages lost", told.pop("gaps"), 0)
    contest.percentiles(name, told)
    return float(told["p99"])
