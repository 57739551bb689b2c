"""Run contenders in turn, A B A B …, and say what came out as ratios of medians."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS = 7


class Contest:
    """Named contenders; each call of one returns its figure for that round, higher is better unless `lower`."""

    def __init__(self, title: str, unit: str) -> None:
        self.title = title
        self.unit = unit
        self.figures: dict[str, list[float]] = {}
        self._contenders: dict[str, Callable[[], float]] = {}

    def add(self, name: str, contender: Callable[[], float]) -> None:
        """Enter a contender; the order of entry is the order within a round."""
        self._contenders[name] = contender
        self.figures[name] = []

    def run(self, benchmark: BenchmarkFixture, rounds: int = ROUNDS) -> None:
        """One warm-up round that does not count, then `rounds` interleaved ones; prints the table."""
        for contender in self._contenders.values():
            contender()
        benchmark.pedantic(self._round, rounds=rounds, iterations=1)
        benchmark.extra_info["unit"] = self.unit
        for name, values in self.figures.items():
            benchmark.extra_info[name] = {"median": statistics.median(values), "rounds": values}
        self.report()

    def _round(self) -> None:
        for name, contender in self._contenders.items():
            self.figures[name].append(contender())

    def median(self, name: str) -> float:
        """A contender's median."""
        return statistics.median(self.figures[name])

    def ratio(self, name: str, other: str) -> float:
        """Median over rounds of the ratio of two contenders in the same round."""
        return statistics.median(a / b for a, b in zip(self.figures[name], self.figures[other], strict=True))

    def report(self) -> None:
        """Print medians, ranges, and the ratio of the first contender to each."""
        first = next(iter(self.figures))
        rounds = len(self.figures[first])
        print(f"\n{self.title}  ({rounds} rounds in turn, {self.unit}; {machine()})")
        for name, values in self.figures.items():
            print(
                f"  {name:44s} {statistics.median(values):10.3f}   {min(values):9.3f} to {max(values):9.3f}"
                f"   first/this {self.ratio(first, name):7.2f}"
            )


def machine() -> str:
    """What ran this, in a few words."""
    return f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"


def show(name: str, value: Any) -> None:
    """Print one more figure below a table."""
    print(f"  {name:44s} {value}")
