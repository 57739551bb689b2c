"""Results of contests: the JSON of a run and the input of the report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

Kind = Literal["ours", "rival", "limit"]


class Against(msgspec.Struct, frozen=True):
    """A contender of ours compared with a row: its median, and how many times as good it is."""

    versus: str
    median: float | None
    ahead: float | None


class PercentilesAgainst(msgspec.Struct, frozen=True):
    """A contender of ours compared with a row, by percentile."""

    versus: str
    median: dict[str, float]
    ahead: dict[str, float | None]


class Row(msgspec.Struct, frozen=True):
    """A contender, or its point on the axis. See `bench.measure.contest.Contest`."""

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
        """Name and point on the axis."""
        return self.name if self.at is None else f"{self.name} at {self.at:,.10g}"

    @property
    def valid(self) -> int:
        """Number of valid rounds."""
        return sum(value is not None for value in self.values)


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles over the rounds, by name: `p99`."""

    name: str
    kind: Kind
    unit: str
    median: dict[str, float]
    against: list[PercentilesAgainst]
    rounds: list[dict[str, float]] = []


class Void(msgspec.Struct, frozen=True):
    """A round that did not count."""

    name: str
    at: float | None
    round: int
    why: str


class Note(msgspec.Struct, frozen=True):
    """A name with its value or reason."""

    name: str
    value: str = ""
    why: str = ""


class Result(msgspec.Struct, frozen=True):
    """Result of a contest."""

    title: str
    unit: str
    lower: bool
    topology: str
    axis: str
    rows: list[Row]
    skipped: list[Note]
    void: list[Void]
    percentiles: list[Percentiles]
    shown: list[Note]
    file: str = ""
    slug: str = ""

    @property
    def singles(self) -> list[Row]:
        """Rows without a point on an axis."""
        return [row for row in self.rows if row.at is None]

    @property
    def series(self) -> dict[str, list[Row]]:
        """Rows with a point, by name, in the order of the axis."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.at is not None:
                found.setdefault(row.name, []).append(row)
        return {name: sorted(rows, key=lambda row: row.at or 0) for name, rows in found.items()}


class Run(msgspec.Struct, frozen=True):
    """All contests of a run, and its machine."""

    machine: dict[str, Any]
    commit: dict[str, Any]
    when: str
    load: dict[str, list[float]]
    results: list[Result]
    failed: list[Note]
    left_out: list[Note]
    not_run: list[str]
    """Benchmarks that did not run because the run ended early."""


def read(path: Path) -> Run:
    """Read a run from pytest-benchmark's JSON. Raises msgspec.ValidationError if its format differs."""
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
