"""Run contenders in turn, A B A B …, verify each round and report ratios within a round.

    warm-up     A B C      does not count: compiles, imports, connects
    round 1     A B C      each verifies what it received; one that lost a message raises `Lost`, its round is void
    ...
    round 7     A B C      median, range, and the median of the ratios within a round

All printed figures are also kept as `extra_info["contest"]` in the JSON of a run, the only input of `make report`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from bench.measure.entries import Entries, Entry
from bench.measure.machine import processors
from bench.measure.results import Kind, Note, Result, Void

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS: Final = 7
_MANY_CALLS: Final = 300
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
        self._entries = Entries(lower)
        self._skipped: list[Note] = []
        self._void: list[Void] = []
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
        self._entries.append(Entry(name, contender, kind, promise, at, versus))

    def skip(self, name: str, why: str) -> None:
        """Report a contender that could not be installed or started."""
        self._skipped.append(Note(name, why=why))
        print(f"\n  skipped: {name}: {why}")

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
        self._entries.check()
        for entry in self._entries:
            self._call(entry, 0)
        benchmark.pedantic(self._round, rounds=rounds, iterations=1)
        told = self.told()
        self._kept = benchmark.extra_info["contest"] = msgspec.to_builtins(told)
        self._print(told, rounds)
        failed = [each.label() for each in self._entries.ours if not each.valid and not each.overloaded]
        assert not failed, f"no valid round of {failed}: {[void.why for void in self._void]}"

    def _round(self) -> None:
        number = len(self._entries[0].values) + 1
        for entry in self._entries:
            figure = self._call(entry, number)
            entry.values.append(None if figure is None else figure.value)
            if figure is not None and figure.spent is not None and figure.spent.messages:
                entry.spent.append(figure.spent.per_million())

    def _call(self, entry: Entry, number: int) -> Figure | None:
        """Run a round of one contender; return None if it is void. Round 0 is the warm-up."""
        self._staged = []
        try:
            found = entry.contender()
        except Lost as lost:
            entry.overloaded |= isinstance(lost, Overloaded)
            self._tell_void(entry, number, str(lost))
            return None
        except Exception as error:
            if entry.kind == "ours":
                raise
            self._tell_void(entry, number, f"{type(error).__name__}: {error}")
            return None
        else:
            for name, values, unit in self._staged if number else ():
                entry.note(number, name, values, unit)
            return found if isinstance(found, Figure) else Figure(float(found))
        finally:
            self._staged = None

    def _tell_void(self, entry: Entry, number: int, why: str) -> None:
        self._void.append(Void(entry.name, entry.at, number, why))
        print(f"\n  void: {entry.label()}, round {number}: {why}")

    def ratio(self, name: str, other: str, at: float | None = None) -> float:
        """Return the median ratio of two contenders within a round, or nan with too few valid rounds."""
        return self._entries.ratio(name, other, at)

    def told(self) -> Result:
        """Return the result so far."""
        return Result(
            title=self.title,
            unit=self.unit,
            lower=self.lower,
            topology=self.topology,
            axis=self.axis,
            rows=[*self._entries.rows()],
            skipped=self._skipped,
            void=self._void,
            percentiles=[*self._entries.percentiles()],
            shown=self._shown,
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
            for other in each.against:
                if (ratio := other.ahead.get("p99")) is not None:
                    print(f"  {'':44s} p99: {other.versus} is {ratio:.2f} x as good")


def machine() -> str:
    """Return a short description of the machine."""
    return f"{processors()} CPUs, {platform.machine()}, Python {platform.python_version()}"
