"""Comparisons within a run: ours with its rivals and with its limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from bench.measure.results import Result, Row, Run
from bench.report.markdown import number, times

AHEAD: Final = 1.2
"""Smallest ratio at which a rival or limit is listed as ahead of ours."""
_LISTED: Final = ("p99", "p99.9", "p99.99")
"""Percentiles listed as ahead: the median usually is the contest's figure, and the maximum is noise."""
_FIRST: Final = ("delivery", "messages", "latency")
"""First files of the pages; the others follow by name."""


def in_order(run: Run) -> list[Result]:
    """Return the contests in the order of the pages."""
    order = {name: place for place, name in enumerate(_FIRST)}
    return sorted(run.results, key=lambda result: (order.get(result.file, len(order)), result.file))


class Pair(NamedTuple):
    """A rival or a limit compared with one of ours."""

    kind: str
    name: str
    versus: str
    ahead: float | None
    figures: str


def pairs(result: Result) -> Iterator[Pair]:
    for row in result.rows:
        for other in row.against:
            figures = f"{number(row.median)} against {number(other.median)} {result.unit}"
            yield Pair(row.kind, row.label, other.versus, other.ahead, figures)
    for each in result.percentiles:
        for beside in each.against:
            for name, ahead in beside.ahead.items():
                if name in _LISTED:
                    figures = f"{number(each.median[name])} against {number(beside.median[name])} {each.unit}"
                    yield Pair(each.kind, f"{each.name}, {name}", beside.versus, ahead, figures)


def ratio_text(row: Row) -> str:
    """Return how many times as good ours is, or "" for ours itself."""
    return "" if row.ahead is None else times(row.ahead)
