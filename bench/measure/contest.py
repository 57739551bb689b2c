"""Run contenders in turn, A B A B …, verify each round and report ratios within a round.

    warm-up     A B C      does not count: compiles, imports, connects
    round 1     A B C      each verifies what it received; one that lost a message raises `Lost`, its round is void
    ...
    round 7     A B C      median, range, and the median of the ratios within a round

All printed figures are also kept as `extra_info["contest"]` in the JSON of a run, the only input of `make report`.
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
"""Minimum number of valid rounds for a median, ratio, percentile or cost."""

WAITS: Final = "nothing lost: the publisher waits"
"""The promise of most deliveries."""


class Lost(Exception):  # noqa: N818  # describes a round; the benchmark itself is fine
    """The receiver's check of count, checksum or order failed, so the round is void."""


class Overloaded(Lost):
    """A sender did not reach the requested rate: its latencies would be those of its backlog."""


def percentiles_of(values: NDArray[numpy.float64]) -> dict[str, float]:
    """Return percentiles as `Contest.percentiles` takes them."""
    return {f"p{at:g}": float(numpy.percentile(values, at)) for at in (50, 99, 100)}


def expect(what: str, was: object, expected: object) -> None:
    """Raise Lost unless `was` equals `expected`."""
    if was != expected:
        raise Lost(f"{what} was {was}, expected {expected}")


class Spent(NamedTuple):
    """Costs of a round; all but `messages` may be unknown."""

    publisher_cpu_s: float | None = None
    subscriber_cpu_s: float | None = None
    wire_bytes: float | None = None
    messages: int = 0

    def per_million(self) -> dict[str, float]:
        """Return the known costs per million messages."""
        known = {name: value for name, value in self._asdict().items() if name != "messages" and value is not None}
        return {name: value * 1e6 / self.messages for name, value in known.items()}


class Figure(NamedTuple):
    """A contender's figure together with its costs."""

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
        """Return median costs, but the minimum of bytes, because other traffic on the wire can only add."""
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
        """Return one percentile in each round."""
        return [self.rounds.get(number, {}).get(percentile) for number in range(1, len(self.row.values) + 1)]

    def median(self) -> dict[str, float]:
        known = dict.fromkeys(name for each in self.rounds.values() for name in each)
        rounds = {name: [value for value in self.of(name) if value is not None] for name in known}
        medians = {name: _median(values, len(self.row.values)) for name, values in rounds.items()}
        return {name: value for name, value in medians.items() if value is not None}


class Contest:
    """Named contenders; each call of a contender runs a round and returns its figure.

    `unit` is the unit of the figures; with `lower`, smaller is better. `topology` is a drawing of the processes and
    their connections, usually the file's docstring. With an `axis` ("payload bytes"), contenders entered `at` several
    points form a curve; a contender entered without a point is compared at every point.
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

        `promise` is its delivery guarantee ("nothing lost, the publisher waits"). `versus` names those of ours that it
        is compared with at the same point, by default the first one; None disables comparison.
        """
        versus = (versus,) if isinstance(versus, str) else versus
        self._rows.append(_Row(name, contender, kind, promise, at, versus))

    def skip(self, name: str, why: str) -> None:
        """Report a contender that could not be installed or started."""
        self._skipped.append(Note(name, why=why))
        print(f"\n  skipped: {name}: {why}")

    def bound(self, limit: str, bytes_each: float = 0) -> None:
        """Draw a limit of bench_limits.py in the report; each message or call uses `bytes_each` bytes of it.

        With 0 it is drawn in its own unit.
        """
        self._bounds.append(Bound(limit, bytes_each))

    def percentiles(self, name: str, values: Mapping[str, float], unit: str = "µs") -> None:
        """Keep percentiles (`{"p50": 4.1, "p99": 20.0, "p99.9": 80.0, "p100": 120.0}`) of the current round.

        Contenders call this once per round and name; lower is better. Warm-up and void rounds do not count.
        Percentiles are compared like the figures of their contenders.
        """
        if self._staged is None:
            raise RuntimeError(f"percentiles of {name} outside a round: call percentiles() from a contender")
        self._staged.append((name, dict(values), unit))

    def calls(self, name: str, times_ns: Sequence[int]) -> float:
        """Return calls/s from the start of the first call and the end of each; keep percentiles if there are many."""
        took_us = numpy.diff(times_ns) / 1e3
        if len(took_us) >= _MANY_CALLS:
            self.percentiles(name, percentiles_of(took_us))
        return float(1e6 / took_us.mean())

    def show(self, name: str, value: object) -> None:
        """Print a further figure below the table, and keep it."""
        self._shown.append(Note(name, str(value)))
        self._kept["shown"] = msgspec.to_builtins(self._shown)
        print(f"  {name:44s} {value}")

    def run(self, benchmark: BenchmarkFixture, rounds: int = ROUNDS) -> None:
        """Run a warm-up round and then `rounds` alternating rounds; print and keep the table.

        Fails if one of ours raises, or had no valid round without being overloaded. If a rival or a limit raises, its
        round is void.
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
        """Run a round of one contender; return None if it is void. Round 0 is the warm-up."""
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
        """Return the row of that name at a point of the axis, or the one for the whole axis."""
        rows = [row for row in self._rows if row.name == name]
        return next((row for row in rows if row.at == at), next((row for row in rows if row.at is None), None))

    def _found(self, name: str, at: float | None) -> _Row:
        row = self._row(name, at)
        if row is None:
            raise KeyError(f"contender was {name!r} at {at}, expected one of {[row.label() for row in self._rows]}")
        return row

    def median(self, name: str, at: float | None = None) -> float | None:
        """Return a contender's median, or None with too few valid rounds."""
        return self._found(name, at).median()

    def ratio(self, name: str, other: str, at: float | None = None) -> float:
        """Return the median ratio of two contenders within a round, or nan with too few valid rounds."""
        return _ratio(self._found(name, at).values, self._found(other, at).values)

    def told(self) -> Result:
        """Return the result so far."""
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
        """Return the rows that a row is compared with, at its own point or at every point of the axis."""
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
        """Compare a contender's sets of percentiles, in the order of their names' first use."""
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
    """Return the median ratio, or nan with too few common valid rounds or zeros."""
    found = _median([a / b for a, b in zip(ones, others, strict=True) if a and b], len(ones))
    return float("nan") if found is None else found


def _ahead(theirs: list[float | None], ours: list[float | None], lower: bool) -> float | None:
    """Return how many times as good ours is, or None if unknown, because nan is not valid JSON."""
    ratio = _ratio(theirs, ours) if lower else _ratio(ours, theirs)
    return None if ratio != ratio else ratio


def machine() -> str:
    """Return a short description of the machine."""
    return f"{processors()} CPUs, {platform.machine()}, Python {platform.python_version()}"
