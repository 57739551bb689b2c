"""Entries of a contest: their figures by round, medians, and ratios within a round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from bench.measure.results import Against, Kind, Percentiles, PercentilesAgainst, Row

_LEAST_VALID: Final = 4
"""Minimum number of valid rounds for a median, ratio, percentile or cost."""


@dataclass
class Distribution:
    """Percentiles of an entry, by round and name."""

    name: str
    unit: str
    rounds: dict[int, dict[str, float]] = field(default_factory=dict)

    def of(self, percentile: str, rounds: int) -> list[float | None]:
        """Return one percentile in each round."""
        return [self.rounds.get(number, {}).get(percentile) for number in range(1, rounds + 1)]

    def median(self, rounds: int) -> dict[str, float]:
        """Return the median of each percentile that enough rounds have."""
        names = dict.fromkeys(name for each in self.rounds.values() for name in each)
        medians = {name: _median(self.of(name, rounds)) for name in names}
        return {name: value for name, value in medians.items() if value is not None}


@dataclass
class Entry:
    """A contender, or its point on the axis, with its figure in each round; None: the round was void."""

    name: str
    contender: Callable[[], Any]
    kind: Kind
    promise: str
    at: float | None
    versus: tuple[str, ...] | None
    overloaded: bool = False
    values: list[float | None] = field(default_factory=list)
    spent: list[dict[str, float]] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)

    @property
    def valid(self) -> list[float]:
        """Figures of the valid rounds."""
        return [value for value in self.values if value is not None]

    def cost(self) -> dict[str, float]:
        """Return median costs, but the minimum of bytes, because other traffic on the wire can only add."""
        found: dict[str, list[float]] = {}
        for each in self.spent:
            for name, value in each.items():
                found.setdefault(name, []).append(value)
        return {
            name: min(values) if name == "wire_bytes" else statistics.median(values)
            for name, values in found.items()
            if len(values) >= min(_LEAST_VALID, len(self.values))
        }

    def label(self) -> str:
        """Return name and point on the axis."""
        return self.name if self.at is None else f"{self.name} at {self.at:,.10g}"

    def note(self, number: int, name: str, values: dict[str, float], unit: str) -> None:
        """Keep percentiles of a round."""
        known = next((each for each in self.distributions if each.name == name), None)
        if known is None:
            self.distributions.append(known := Distribution(name, unit))
        known.rounds[number] = values


class Entries(list[Entry]):
    """The entries of a contest, in the order of a round. With `lower`, a smaller figure is better."""

    def __init__(self, lower: bool) -> None:
        super().__init__()
        self._lower = lower

    @property
    def ours(self) -> list[Entry]:
        """Entries of ours."""
        return [entry for entry in self if entry.kind == "ours"]

    def check(self) -> None:
        """Raise ValueError for an entry whose `versus` names none of our entries."""
        ours = {entry.name for entry in self.ours}
        for entry in self:
            if wrong := set(entry.versus or ()) - ours:
                raise ValueError(
                    f"versus of {entry.label()} was {sorted(wrong)}, expected some of ours: {sorted(ours)}"
                )

    def ratio(self, name: str, other: str, at: float | None) -> float:
        """Return the median ratio of two entries within a round, or nan with too few valid rounds."""
        return _ratio(self._find(name, at).values, self._find(other, at).values)

    def _find(self, name: str, at: float | None) -> Entry:
        """Return the entry of that name at a point of the axis, or the one for the whole axis."""
        for place in (at, None):
            for entry in self:
                if entry.name == name and entry.at == place:
                    return entry
        raise KeyError(f"contender was {name!r} at {at}, expected one of {[entry.label() for entry in self]}")

    def _compared(self, entry: Entry) -> list[Entry]:
        """Return the entries that one is compared with, at its own point or at every point of the axis."""
        ours = self.ours
        if not ours or entry.versus is None:
            return []
        named = [other for name in entry.versus or (ours[0].name,) for other in ours if other.name == name]
        return [other for other in named if other is not entry and (entry.at is None or other.at in (entry.at, None))]

    def rows(self) -> Iterator[Row]:
        """Yield each entry's result."""
        for entry in self:
            compared = self._compared(entry)
            against = [
                Against(other.label(), _median(other.values), _ahead(entry.values, other.values, self._lower))
                for other in compared
            ]
            alone = not compared or (entry.at is None and compared[0].at is not None)
            yield Row(
                name=entry.name,
                kind=entry.kind,
                promise=entry.promise,
                at=entry.at,
                versus="" if alone else compared[0].name,
                values=entry.values,
                median=_median(entry.values),
                low=min(entry.valid, default=None),
                high=max(entry.valid, default=None),
                ahead=None if alone else against[0].ahead,
                against=against,
                spent=entry.cost(),
            )

    def percentiles(self) -> Iterator[Percentiles]:
        """Yield the percentiles of each entry, compared in the order of their names' first use."""
        for entry in self:
            for place, mine in enumerate(entry.distributions):
                rounds, against = len(entry.values), list[PercentilesAgainst]()
                for row in self._compared(entry):
                    for other in row.distributions[place : place + 1]:
                        theirs = other.median(rounds)
                        ahead = {
                            name: _ahead(mine.of(name, rounds), other.of(name, rounds), lower=True)
                            for name in mine.median(rounds)
                            if name in theirs
                        }
                        against.append(PercentilesAgainst(other.name, theirs, ahead))
                yield Percentiles(
                    mine.name, entry.kind, mine.unit, mine.median(rounds), against, [*mine.rounds.values()]
                )


def _median(values: list[float | None]) -> float | None:
    valid = [value for value in values if value is not None]
    return statistics.median(valid) if valid and len(valid) >= min(_LEAST_VALID, len(values)) else None


def _ratio(ones: list[float | None], others: list[float | None]) -> float:
    """Return the median ratio, or nan with too few common valid rounds or zeros."""
    found = _median([a / b if a and b else None for a, b in zip(ones, others, strict=True)])
    return float("nan") if found is None else found


def _ahead(theirs: list[float | None], ours: list[float | None], lower: bool) -> float | None:
    """Return how many times as good ours is, or None if unknown, because nan is not valid JSON."""
    ratio = _ratio(theirs, ours) if lower else _ratio(ours, theirs)
    return None if ratio != ratio else ratio
