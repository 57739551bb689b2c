"""Run contenders in turn, A B A B …, verify each round, and say what came out as ratios of the same round.

    warm-up     A B C      does not count: what is compiled, imported, connected is there after it
    round 1     A B C      each verifies what it received; one that lost something raises `Lost`: its round is void
    ...
    round 7     A B C      median, range, and the median of the ratios within a round

All that is printed is also kept as `extra_info["contest"]` in the JSON of a run: `make report` reads nothing else.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from bench.measure.machine import processors
from bench.measure.results import Against, Bound, Kind, Note, Percentiles, PercentilesAgainst, Result, Row, Void

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS: Final = 7
_MANY_CALLS: Final = 300
LEAST_VALID: Final = 4
"""With fewer valid rounds there is no median, no ratio, no percentile and no cost."""

WAITS: Final = "nothing lost: the publisher waits"
"""The promise of most deliveries."""


class Lost(Exception):  # noqa: N818  # a verdict on a round, not an error of the benchmark
    """Count, checksum or order did not hold at the receiver: the round is void."""


class Overloaded(Lost):
    """A sender did not keep the rate that it was asked for: delays are of its backlog, and tell nothing."""


def percentiles_of(values: NDArray[numpy.float64]) -> dict[str, float]:
    """Return what `Contest.percentiles` takes."""
    return {f"p{at:g}": float(numpy.percentile(values, at)) for at in (50, 99, 100)}


def expect(what: str, was: object, expected: object) -> None:
    """Raise Lost unless `was` is what was expected."""
    if was != expected:
        raise Lost(f"{what} was {was}, expected {expected}")


class Spent(NamedTuple):
    """What a round cost; all but `messages` may be unknown."""

    publisher_cpu_s: float | None = None
    subscriber_cpu_s: float | None = None
    wire_bytes: float | None = None
    messages: int = 0

    def per_million(self) -> dict[str, float]:
        """What is known, for a million messages."""
        known = {name: value for name, value in self._asdict().items() if name != "messages" and value is not None}
        return {name: value * 1e6 / self.messages for name, value in known.items()}


class Figure(NamedTuple):
    """What a contender returns when it also knows what it spent."""

    value: float
    spent: Spent | None = None


Contender = Callable[[], float | Figure]


@dataclass
class _Row:
    name: str
    contender: Contender
    kind: Kind
    promise: str
    at: float | None
    versus: tuple[str, ...] | None
    overloaded: bool = False
    values: list[float | None] = field(default_factory=list)
    spent: list[dict[str, float]] = field(default_factory=list)

    @property
    def valid(self) -> list[float]:
        return [value for value in self.values if value is not None]

    def median(self) -> float | None:
        return _median(self.valid, len(self.values))

    def cost(self) -> dict[str, float]:
        """Medians; of the bytes the least, as others on the same wire can only add."""
        found: dict[str, list[float]] = {}
        for each in self.spent:
            for name, value in each.items():
                found.setdefault(name, []).append(value)
        return {
            name: min(values) if name == "wire_bytes" else statistics.median(values)
            for name, values in found.items()
            if _median(values, len(self.values)) is not None
        }

    def label(self) -> str:
        return self.name if self.at is None else f"{self.name} at {self.at:,.10g}"


@dataclass
class _Percentiles:
    name: str
    unit: str
    row: _Row
    rounds: dict[int, dict[str, float]] = field(default_factory=dict)

    def of(self, percentile: str) -> list[float | None]:
        """One percentile in each round."""
        return [self.rounds.get(number, {}).get(percentile) for number in range(1, len(self.row.values) + 1)]

    def median(self) -> dict[str, float]:
        known = dict.fromkeys(name for each in self.rounds.values() for name in each)
        rounds = {name: [value for value in self.of(name) if value is not None] for name in known}
        medians = {name: _median(values, len(self.row.values)) for name, values in rounds.items()}
        return {name: value for name, value in medians.items() if value is not None}


class Contest:
    """Named contenders; each call of one returns its figure for that round.

    `unit` is of the figures; `lower` says that smaller is better. `topology` is the drawing of who talks to whom,
    mostly the file's docstring. With an `axis` ("payload bytes"), contenders entered `at` several places of it make a
    curve, and those entered without a place hold for the whole axis: they are compared at each place.
    """

    def __init__(
        self, title: str, unit: str, *, lower: bool = False, topology: str | None = "", axis: str = ""
    ) -> None:
        self.title = title
        self.unit = unit
        self.lower = lower
        self.topology = topology or ""
        self.axis = axis
        self._rows: list[_Row] = []
        self._skipped: list[Note] = []
        self._void: list[Void] = []
        self._bounds: list[Bound] = []
        self._percentiles: dict[str, _Percentiles] = {}
        self._staged: list[tuple[str, dict[str, float], str]] | None = None
        self._shown: list[Note] = []
        self._kept: dict[str, Any] = {}

    def add(
        self,
        name: str,
        contender: Contender,
        kind: Kind = "ours",
        promise: str = "",
        *,
        at: float | None = None,
        versus: str | tuple[str, ...] | None = (),
    ) -> None:
        """Enter a contender; the order of entry is the order within a round.

        `promise` is what its deliveries hold ("nothing lost, the publisher waits"). `versus` names those of ours
        that it is compared with at the same place: the first one unless told; None is for what cannot be compared.
        """
        versus = (versus,) if isinstance(versus, str) else versus
        self._rows.append(_Row(name, contender, kind, promise, at, versus))

    def skip(self, name: str, why: str) -> None:
        """Tell of a contender that could not be installed or started."""
        self._skipped.append(Note(name, why=why))
        print(f"\n  skipped: {name}: {why}")

    def bound(self, limit: str, bytes_each: float = 0) -> None:
        """Have the report draw a limit of bench_limits.py: one message or call takes so many bytes of it.

        0 draws it in its own unit.
        """
        self._bounds.append(Bound(limit, bytes_each))

    def percentiles(self, name: str, values: Mapping[str, float], unit: str = "µs") -> None:
        """Keep percentiles (`{"p50": 4.1, "p99": 20.0, "p99.9": 80.0, "p100": 120.0}`) of the round that runs.

        Called by a contender, once a round for each name; lower is better. Those of the warm-up and of void rounds do
        not count. They are compared with those of the contenders that this one is compared with.
        """
        if self._staged is None:
            raise RuntimeError(f"percentiles of {name} came outside a round, expected a call by a contender")
        self._staged.append((name, dict(values), unit))

    def calls(self, name: str, times_ns: Sequence[int]) -> float:
        """Return calls/s, by when the first one began and each returned; keep `percentiles` of many."""
        took_us = numpy.diff(times_ns) / 1e3
        if len(took_us) >= _MANY_CALLS:
            self.percentiles(name, percentiles_of(took_us))
        return float(1e6 / took_us.mean())

    def show(self, name: str, value: object) -> None:
        """Print one more figure below the table, and keep it."""
        self._shown.append(Note(name, str(value)))
        self._kept["shown"] = msgspec.to_builtins(self._shown)
        print(f"  {name:44s} {value}")

    def run(self, benchmark: BenchmarkFixture, rounds: int = ROUNDS) -> None:
        """One warm-up round that does not count, then `rounds` interleaved ones; prints and keeps the table.

        Fails when one of ours raises, or had no valid round and was not overloaded. A rival or a limit that raises has
        a void round.
        """
        for row in self._rows:
            self._check_versus(row)
        for row in self._rows:
            self._call(row, 0)
        benchmark.pedantic(self._round, rounds=rounds, iterations=1)
        told = self.told()
        self._kept = benchmark.extra_info["contest"] = msgspec.to_builtins(told)
        self._print(told, rounds)
        failed = [row.label() for row in self._rows if row.kind == "ours" and not row.valid and not row.overloaded]
        assert not failed, f"no valid round of {failed}: {[void.why for void in self._void]}"

    def _round(self) -> None:
        number = len(self._rows[0].values) + 1
        for row in self._rows:
            figure = self._call(row, number)
            row.values.append(None if figure is None else figure.value)
            if figure is not None and figure.spent is not None and figure.spent.messages:
                row.spent.append(figure.spent.per_million())

    def _call(self, row: _Row, number: int) -> Figure | None:
        """A round of one contender, or None when it is void; round 0 is the warm-up."""
        self._staged = []
        try:
            found = row.contender()
        except Lost as lost:
            row.overloaded |= isinstance(lost, Overloaded)
            self._tell_void(row, number, str(lost))
            return None
        except Exception as error:
            if row.kind == "ours":
                raise
            self._tell_void(row, number, f"{type(error).__name__}: {error}")
            return None
        else:
            for name, values, unit in self._staged if number else ():
                self._percentiles.setdefault(name, _Percentiles(name, unit, row)).rounds[number] = values
            return found if isinstance(found, Figure) else Figure(float(found))
        finally:
            self._staged = None

    def _tell_void(self, row: _Row, number: int, why: str) -> None:
        self._void.append(Void(row.name, row.at, number, why))
        print(f"\n  void: {row.label()}, round {number}: {why}")

    def _row(self, name: str, at: float | None = None) -> _Row | None:
        """The row of that name at a place of the axis, or the one that holds for the whole axis."""
        rows = [row for row in self._rows if row.name == name]
        return next((row for row in rows if row.at == at), next((row for row in rows if row.at is None), None))

    def _found(self, name: str, at: float | None) -> _Row:
        row = self._row(name, at)
        if row is None:
            raise KeyError(f"contender was {name!r} at {at}, expected one of {[row.label() for row in self._rows]}")
        return row

    def median(self, name: str, at: float | None = None) -> float | None:
        """A contender's median; None when too few rounds were valid."""
        return self._found(name, at).median()

    def ratio(self, name: str, other: str, at: float | None = None) -> float:
        """Median over the rounds of the ratio of two contenders in the same round; nan with too few that are valid."""
        return _ratio(self._found(name, at).values, self._found(other, at).values)

    def told(self) -> Result:
        """All of it, as far as it is known."""
        return Result(
            title=self.title,
            unit=self.unit,
            lower=self.lower,
            topology=self.topology,
            axis=self.axis,
            rows=[self._told_row(row) for row in self._rows],
            bounds=self._bounds,
            skipped=self._skipped,
            void=self._void,
            percentiles=[
                Percentiles(
                    name=each.name,
                    kind=each.row.kind,
                    unit=each.unit,
                    rounds=list(each.rounds.values()),
                    median=each.median(),
                    against=self._percentiles_against(each),
                )
                for each in self._percentiles.values()
            ],
            shown=self._shown,
        )

    def _ours(self) -> list[_Row]:
        return [row for row in self._rows if row.kind == "ours"]

    def _check_versus(self, row: _Row) -> None:
        ours = {other.name for other in self._ours()}
        if wrong := set(row.versus or ()) - ours:
            raise ValueError(f"versus of {row.label()} was {sorted(wrong)}, expected some of ours: {sorted(ours)}")

    def _compared(self, row: _Row) -> list[_Row]:
        """What a row is compared with: at its own place, or at every place when it holds for the whole axis."""
        ours = self._ours()
        if not ours or row.versus is None:
            return []
        named = [other for name in row.versus or (ours[0].name,) for other in ours if other.name == name]
        return [other for other in named if other is not row and (row.at is None or other.at in (row.at, None))]

    def _against(self, row: _Row) -> list[Against]:
        return [
            Against(other.label(), other.median(), _ahead(row.values, other.values, self.lower))
            for other in self._compared(row)
        ]

    def _percentiles_against(self, mine: _Percentiles) -> list[PercentilesAgainst]:
        """A contender may have several: they are compared in their order."""
        place = self._percentiles_of(mine.row).index(mine)
        found = []
        for row in self._compared(mine.row):
            for other in self._percentiles_of(row)[place : place + 1]:
                both = [name for name in mine.median() if name in other.median()]
                ahead = {name: _ahead(mine.of(name), other.of(name), lower=True) for name in both}
                found.append(PercentilesAgainst(other.name, other.median(), ahead))
        return found

    def _percentiles_of(self, row: _Row) -> list[_Percentiles]:
        return [each for each in self._percentiles.values() if each.row is row]

    def _told_row(self, row: _Row) -> Row:
        against = self._against(row)
        compared = self._compared(row)
        alone = not compared or (row.at is None and compared[0].at is not None)
        return Row(
            name=row.name,
            kind=row.kind,
            promise=row.promise,
            at=row.at,
            versus="" if alone else compared[0].name,
            values=row.values,
            median=row.median(),
            low=min(row.valid, default=None),
            high=max(row.valid, default=None),
            ahead=None if alone else against[0].ahead,
            against=against,
            spent=row.cost(),
        )

    def _print(self, told: Result, rounds: int) -> None:
        better = ", lower is better" if self.lower else ""
        print(f"\n{self.title}  ({rounds} rounds in turn, {self.unit}{better}; {machine()})")
        for row in told.rows:
            if row.median is None:
                print(f"  {row.label:44s} no median: {row.valid} of {rounds} rounds were valid")
                continue
            few = f"   {row.valid} of {rounds} rounds valid" if row.valid < rounds else ""
            ahead = "" if row.ahead is None else f"   {row.versus} is {row.ahead:.2f} x as good"
            print(f"  {row.label:44s} {row.median:10.3f}   {row.low:9.3f} to {row.high:9.3f}{ahead}{few}")
        for row in told.rows:
            if row.spent:
                texts = ", ".join(f"{name} {value:,.4g}" for name, value in row.spent.items())
                print(f"  {row.label:44s} a million messages: {texts}")
        for each in told.percentiles:
            texts = ", ".join(f"{name} {value:,.1f}" for name, value in each.median.items())
            print(f"  {each.name:44s} {texts} {each.unit}")


def _median(valid: list[float], rounds: int) -> float | None:
    return statistics.median(valid) if valid and len(valid) >= min(LEAST_VALID, rounds) else None


def _ratio(ones: list[float | None], others: list[float | None]) -> float:
    """Of too few rounds in which both are valid it is nan; nothing is so many times as much as 0."""
    found = _median([a / b for a, b in zip(ones, others, strict=True) if a and b], len(ones))
    return float("nan") if found is None else found


def _ahead(theirs: list[float | None], ours: list[float | None], lower: bool) -> float | None:
    """How many times as good ours is; None where it cannot be told: nan is not valid JSON."""
    ratio = _ratio(theirs, ours) if lower else _ratio(ours, theirs)
    return None if ratio != ratio else ratio


def machine() -> str:
    """What ran this, in a few words."""
    return f"{processors()} CPUs, {platform.machine()}, Python {platform.python_version()}"
