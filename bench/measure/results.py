"""What came out of contests: what a run keeps as JSON, and the report is drawn from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

Kind = Literal["ours", "rival", "limit"]


class Against(msgspec.Struct, frozen=True):
    """One of ours beside a row: its median, and how many times as good it is."""

    versus: str
    median: float | None
    ahead: float | None


class PercentilesAgainst(msgspec.Struct, frozen=True):
    """The same of each percentile."""

    versus: str
    median: dict[str, float]
    ahead: dict[str, float | None]


class Row(msgspec.Struct, frozen=True):
    """A contender, at a place of the axis where there is one. See `bench.contest.Contest`."""

    name: str
    kind: Kind
    promise: str
    at: float | None
    versus: str
    values: list[float | None]
    median: float | None
    low: float | None
    high: float | None
    ahead: float | None
    against: list[Against]
    spent: dict[str, float]

    @property
    def label(self) -> str:
        """Its name and place."""
        return self.name if self.at is None else f"{self.name} at {self.at:,.10g}"

    @property
    def valid(self) -> int:
        """Rounds that were not void."""
        return sum(value is not None for value in self.values)


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles over the rounds, by name: `p99`."""

    name: str
    kind: Kind
    unit: str
    median: dict[str, float]
    against: list[PercentilesAgainst]
    rounds: list[dict[str, float]] = []

    @property
    def points(self) -> list[tuple[float, float]]:
        """Shares and values, in order."""
        return sorted((float(name.removeprefix("p")) / 100, value) for name, value in self.median.items())


class Bound(msgspec.Struct, frozen=True):
    """A physical limit that a chart shows."""

    name: str
    bytes_each: float


class Void(msgspec.Struct, frozen=True):
    """A round that did not count."""

    name: str
    at: float | None
    round: int
    why: str


class Note(msgspec.Struct, frozen=True):
    """A name and what is said of it."""

    name: str
    value: str = ""
    why: str = ""


class Result(msgspec.Struct, frozen=True):
    """A contest as it came out."""

    title: str
    unit: str
    lower: bool
    topology: str
    axis: str
    rows: list[Row]
    bounds: list[Bound]
    skipped: list[Note]
    void: list[Void]
    percentiles: list[Percentiles]
    shown: list[Note]
    file: str = ""
    slug: str = ""

    @property
    def singles(self) -> list[Row]:
        """The rows without a place on an axis."""
        return [row for row in self.rows if row.at is None]

    @property
    def series(self) -> dict[str, list[Row]]:
        """The rows with a place, by name, in the axis' order."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.at is not None:
                found.setdefault(row.name, []).append(row)
        return {name: sorted(rows, key=lambda row: row.at or 0) for name, rows in found.items()}


class Run(msgspec.Struct, frozen=True):
    """All contests of a run, and what they ran on."""

    machine: dict[str, Any]
    commit: dict[str, Any]
    when: str
    load: dict[str, list[float]]
    results: list[Result]
    failed: list[Note]
    left_out: list[Note]
    not_run: list[str]
    """What was still to come when the run ended, where it ended early."""

    def limit(self, name: str) -> float | None:
        """A physical limit's median in this run."""
        rows = (row for result in self.results if result.file == "limits" for row in result.rows)
        return next((row.median for row in rows if row.name == name), None)


def read(path: Path) -> Run:
    """The run of a JSON that pytest-benchmark wrote. Raises msgspec.ValidationError where it is of another form."""
    told = json.loads(path.read_text())
    results = []
    for each in told["benchmarks"]:
        if contest := each["extra_info"].get("contest"):
            file = re.sub(r"^.*?bench_(\w+)\.py::.*$", r"\1", each["fullname"])
            name = each["name"].removeprefix("test_")
            slug = re.sub(r"[^a-z0-9]+", "-", f"{file}-{name}".lower()).strip("-")
            results.append(msgspec.convert({**contest, "file": file, "slug": slug}, Result))
    machine = told["machine_info"].get("described", {})
    failed, left_out = (msgspec.convert(told.get(name, []), list[Note]) for name in ("failed", "left_out"))
    when, load, not_run = told["datetime"], told.get("load", {}), told.get("not_run", [])
    return Run(machine, told["commit_info"], when, load, results, failed, left_out, not_run)
